"""The page at / in a real Chromium against a real server: what it shows is what the server says, whoever looks at it.

BERTVISION_PAGE_PACKAGE names a package to take the README's picture with (docs/page.png) instead of a throw-away one.
"""

import contextlib
import math
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from page_cases import CHROMIUM, Visit, browser, make_package, visit
from serving import Server, serving

pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium executable")

FACES = "\U0001f600 The mill in Arden \U0001f600 was built by Ada Holt in 1871. \U0001f600 It stands near the old road."
WHO = "Who built the mill?"
PICTURE = Path(__file__).parents[1] / "docs" / "page.png"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path, toy_squad: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERTVISION_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        return make_package(tmp_path_factory.mktemp("page"), tiny_bert, toy_squad)


@pytest.fixture(scope="module")
def server(package: Path) -> Iterator[Server]:
    with serving(package) as started:
        yield started


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as started:
        yield started


@pytest.fixture
def seen(server: Server, chromium: Any) -> Iterator[Visit]:
    with visit(chromium, server.url) as opened:
        yield opened


def explained(server: Server, **body: str) -> dict[str, Any]:
    answer = server.post("/v1/explain", body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture(scope="module")
def faces(server: Server) -> dict[str, Any]:
    return explained(server, question=WHO, context=FACES)


def shades(probabilities: list[float]) -> Any:
    return pytest.approx([0.0 if p < 0.004 else min(1.0, p**0.55) for p in probabilities], abs=1e-3)


# ---- what is shown


def test_the_first_visit_shows_an_answer_and_asks_nobody_else(seen: Visit, server: Server) -> None:
    assert seen.text("#answer")
    assert seen.page.get_by_label("Passage", exact=True).input_value()
    assert seen.page.locator("#rows label").count() == 3 + 1, "the states of the encoder, and the head"
    assert "3 heads" in seen.text("#about")
    elsewhere = [one for one in seen.addresses if not re.match(rf"(GET|POST) ({server.url}/|data:)", one)]
    assert elsewhere == []
    assert seen.addresses.count(f"POST {server.url}/v1/explain") == 1


def test_what_is_typed_is_answered_and_marked_where_it_stands(seen: Visit, faces: dict[str, Any]) -> None:
    """Behind characters that a script counts twice, too."""
    told = faces["tasks"]["adapter"]
    best = told["nbest"][0]
    seen.ask(FACES, WHO)
    seen.slide(1)  # whatever the head thinks of it, it answers
    assert seen.text("#answer") == best["text"]
    assert seen.marked() == FACES[best["start"] : best["end"]] == best["text"]
    assert seen.text("#passage") == FACES
    assert (seen.heat("start"), seen.heat("end")) == (shades(told["start"]), shades(told["end"]))
    shown = seen.page.locator("#rivals li .words").all_inner_texts()
    assert shown == [*(one["text"] for one in told["nbest"]), "no answer"]
    assert f"adapter: {best['text']}" in seen.text("#live"), "told to who cannot see it"


def test_a_long_passage_scrolls_to_its_answer(seen: Visit, server: Server) -> None:
    """Its windows are read one by one; what no colour is told of is grey."""
    passage = "The wind was cold and the road was long. " * 60 + "The mill was built by Ada Holt."
    best = explained(server, question=WHO, context=passage)["tasks"]["adapter"]["nbest"][0]
    shown, grey = seen.page.locator("#passage"), seen.page.get_by_text("in another window, not shown")
    seen.ask(passage, WHO)
    seen.slide(1)
    assert seen.marked() == passage[best["start"] : best["end"]]
    box, mark = (seen.page.locator(place).first.bounding_box() for place in ("#passage", "#passage .found"))
    assert box is not None
    assert mark is not None
    assert box["y"] <= mark["y"]
    assert mark["y"] + mark["height"] <= box["y"] + box["height"]
    assert (grey.is_visible(), shown.get_attribute("tabindex")) == (True, "0")
    assert seen.page.locator("#passage .far").count() > 0
    seen.ask(FACES, WHO)
    assert (grey.is_visible(), shown.get_attribute("tabindex")) == (False, None)


def test_heads_and_layers_are_looked_at_one_by_one(seen: Visit, faces: dict[str, Any]) -> None:
    seen.ask(FACES, WHO)
    asked = len(seen.addresses)
    for name in ("pooling", "adapter"):
        seen.choose(name)
        assert seen.heat("start") == shades(faces["tasks"][name]["start"])
        for row in faces["layers"]["adapter"]:
            seen.page.locator("#rows label").nth(row["layer"]).click()
            assert seen.heat("end") == shades(row["end"])
            assert seen.text("#answer") == seen.marked() == row["answer"]["text"]
    figure = seen.page.locator("#weight-figures figure", has_text="pooling")
    weights = faces["tasks"]["pooling"]["layer_weights"]
    assert figure.locator(".value").all_inner_texts() == [f"{round(100 * weight)} %" for weight in weights]
    assert len(seen.addresses) == asked, "nothing of this asks the server"


def test_the_threshold_decides_as_the_formula_says(seen: Visit, faces: dict[str, Any]) -> None:
    task = faces["tasks"]["adapter"]
    shift, temperature = task["shift"] or 0.0, task["temperature"] or 1.0
    doubt = 1 / (1 + math.exp(-(task["score_diff"] - shift) / temperature))
    seen.ask(FACES, WHO)
    first = seen.text("#answer")
    assert first == (task["prediction"]["text"] or "no answer"), "where it was tuned the server has the word"
    for place in (0.0, max(0.0, doubt - 0.01), min(1.0, doubt + 0.01), 1.0):
        seen.slide(place)
        none = round(1000 * place) / 1000 < doubt
        assert seen.text("#answer") == ("no answer" if none else task["nbest"][0]["text"])
        assert (seen.marked() == "") == none
        table = seen.page.locator("#heads-table tr", has_text="adapter").inner_text()
        assert ("no answer" in table) == none
    seen.press("Back to the tuned one")
    assert seen.text("#answer") == first


def test_labels_have_their_own_cards(seen: Visit, server: Server) -> None:
    with seen.page.expect_response("**/v1/explain"):
        seen.page.get_by_role("radio", name="One text").check()
    seen.page.get_by_label("Text", exact=True).fill("the mill is good")
    with seen.page.expect_response("**/v1/explain"):
        seen.page.keyboard.press("Enter")
    seen.settled()
    told = explained(server, text="the mill is good")
    card = seen.page.locator("#cards article")
    assert card.locator(".answer").inner_text() == told["tasks"]["mood"]["label"]
    best = [max(layer["probabilities"].items(), key=lambda item: item[1]) for layer in told["layers"]["mood"]]
    rows = card.locator(".text-rows .words").all_inner_texts()
    assert rows == [f"{name} · {round(100 * p)} %" for name, p in best]
    assert not seen.page.locator("#spans").is_visible()


# ---- links, errors


def test_a_link_restores_the_view(server: Server, chromium: Any) -> None:
    def looks(seen: Visit) -> list[Any]:
        return [
            *(re.sub(r"\d+ ms", "", seen.text(place)) for place in ("#says", "#answer", "#numbers", "#gauge-says")),
            *(seen.page.get_by_label(name, exact=True).input_value() for name in ("Passage", "Question")),
            seen.page.locator("#rows input:checked").get_attribute("value"),
            seen.text("#heads-table input:checked + label"),
            seen.heat("start"),
        ]  # fmt: skip

    with visit(chromium, server.url) as seen:
        seen.ask(FACES + "\nA second line & more = 100 % #1.", WHO)
        seen.choose("pooling")
        seen.slide(0.85)
        seen.page.locator("#rows label").nth(1).click()
        link, before = seen.page.url, looks(seen)
    with visit(chromium, link) as seen:
        assert looks(seen) == before
        seen.press("Copy a link to this view")
        seen.page.locator("#copied", has_text=re.compile("Copied|address bar")).wait_for()


def test_what_cannot_be_asked_is_said_at_its_field(seen: Visit) -> None:
    asked = len(seen.addresses)
    passage = seen.page.get_by_label("Passage", exact=True)
    passage.fill(" \n")
    seen.press("Answer")
    assert seen.text("#text-wrong") == "Write a passage first."
    assert passage.get_attribute("aria-invalid") == "true"
    assert passage.evaluate("node => node === document.activeElement")
    assert len(seen.addresses) == asked
    seen.ask("Ada came.", "Who came?")
    assert not seen.page.locator("#text-wrong").is_visible()
    assert passage.get_attribute("aria-invalid") is None


def test_a_key_is_asked_for_and_a_server_that_is_gone_is_told(
    package: Path, tmp_path: Path, chromium: Any
) -> None:
    (tmp_path / "key").write_text("correct-horse\n", encoding="utf-8")
    with (
        serving(package, "--api-key-file", str(tmp_path / "key"), "--max-text", "200") as own,
        visit(chromium, own.url, fails=True) as seen,
    ):
        alert = seen.page.get_by_role("alert")
        alert.get_by_label("Key").fill("wrong")
        seen.page.keyboard.press("Enter")
        alert.get_by_text("needs its key").wait_for()
        alert.get_by_label("Key").fill("correct-horse")
        seen.press("Use it")
        seen.page.locator("#text-wrong", has_text="longer than the 200 characters").wait_for()
        seen.ask("Ada came.", "Who came?")
        assert seen.text("#answer")
        # The browser's own word for a refusal, and no more.
        assert all(text.startswith("error:") and "401" in text for text in seen.errors), seen.errors
        own.stop()
        seen.press("Answer")
        alert.get_by_text("The server does not answer. Is it still running?").wait_for()
        assert seen.page.get_by_role("button", name="Try again").is_visible()
        assert seen.page.locator("#answer").is_visible(), "what was there stays"


# ---- everybody


def test_a_keyboard_is_enough(seen: Visit) -> None:
    page, press = seen.page, seen.page.keyboard.press

    def go(place: str) -> None:
        for _ in range(40):
            press("Tab")
            if page.locator(f"{place}:focus").count():
                return
        raise AssertionError(f"Tab never comes to {place}")

    for place, text in (("#text", FACES), ("#with", WHO)):
        go(place)
        press("Control+a")
        page.keyboard.insert_text(text)
    with page.expect_response("**/v1/explain"):
        press("Enter")
    seen.settled()
    go("#rows input")
    press("ArrowUp")
    assert page.locator("#rows input:checked").get_attribute("value") == "2"
    go("#threshold")
    press("Home")
    press("End")
    assert page.locator("#threshold").input_value() == "1000"
    go("#heads-table input")
    for name in ("pooling", "adapter"):
        press("ArrowDown")
        assert seen.text("#heads-table input:checked + label") == name
        assert page.locator("#heads-table input:checked:focus").count() == 1, "the place is kept"


def test_every_control_has_a_name(seen: Visit) -> None:
    controls = seen.page.locator("button:visible, input:visible, textarea:visible, [role=region]:visible")
    assert controls.count() > 12
    for i in range(controls.count()):
        told = controls.nth(i).aria_snapshot()
        assert re.match(r"""- '?[\w/]+ ".+\"""", told), told


def luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_narrow_and_dark(server: Server, chromium: Any, scheme: str) -> None:
    options = {"viewport": {"width": 390, "height": 844}, "color_scheme": scheme, "has_touch": True}
    with visit(chromium, server.url, **options) as seen:
        seen.ask(FACES * 4, WHO)
        assert seen.page.evaluate("document.documentElement.scrollWidth") == 390, "nothing is cut off"
        paper = luminance(seen.page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert (paper < 0.1) == (scheme == "dark")
        look = "n => { const c = getComputedStyle(n); return [c.color, n.id === 'go' ? c.backgroundColor : '']; }"
        for place in (
            "#lede",
            "#numbers",
            "#answer",
            "#passage .token",
            "#go",
            "#gauge-says",
            "#rows .words",
        ):
            ink, own = seen.page.locator(place).first.evaluate(look)
            bright, dim = sorted((luminance(ink), luminance(own) if own else paper), reverse=True)
            assert (bright + 0.05) / (dim + 0.05) >= 4.5, f"{place} is hard to read"


def test_the_picture_of_the_readme(server: Server, chromium: Any, tmp_path: Path) -> None:
    """The page as a newcomer sees it, from its top to the row of the head."""
    real = os.environ.get("BERTVISION_PAGE_PACKAGE")
    path = PICTURE if real else tmp_path / "page.png"
    with (
        serving(real) if real else contextlib.nullcontext(server) as own,
        visit(chromium, own.url, device_scale_factor=1.5) as seen,
    ):
        forget_time = "node => node.textContent = node.textContent.replace(/ · answered.*/, '')"
        seen.page.locator("#numbers").evaluate(forget_time)
        end = seen.page.locator("#rows").bounding_box()
        assert end is not None
        clip = {"x": 0, "y": 0, "width": 1240, "height": round(end["y"] + end["height"] + 30)}
        seen.page.screenshot(path=path, full_page=True, clip=clip)
    width, height = struct.unpack(">II", path.read_bytes()[16:24])
    assert width == 1.5 * 1240
    assert 1.5 * 900 < height < 1.5 * 1600
