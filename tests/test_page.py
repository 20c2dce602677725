"""The page at / in a real Chromium against a real server: what it shows is what the server says, whoever looks at it.

BERTVISION_PAGE_PACKAGE names a package to take the README's picture with (docs/page.png) instead of a throw-away one.
"""

import math
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import CHROMIUM
from page_cases import Visit, browser, make_package, visit
from serving import Server, serving

pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium executable")

FACES = "\U0001f600 The mill in Arden \U0001f600 was built by Ada Holt in 1871. \U0001f600 It stands near the old road."
WHO = "Who built the mill?"
PICTURE = Path(__file__).parents[1] / "docs" / "page.png"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path, toy_squad: Path) -> Path:
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERTVISION_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        return make_package(folder, tiny_bert, toy_squad)


@pytest.fixture(scope="module")
def server(package: Path) -> Iterator[Server]:
    with serving(package) as started:
        yield started


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as started:
        yield started


def explained(server: Server, passage: str, question: str) -> dict[str, Any]:
    answer = server.post("/v1/explain", {"question": question, "context": passage})
    assert answer.status_code == 200, answer.text
    return answer.json()


def slide(seen: Visit, to: float) -> None:
    seen.page.get_by_label("Threshold").fill(str(round(1000 * to)))


def luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


# ---- what is shown


def test_the_first_visit_shows_an_answer_and_asks_nobody_else(server: Server, chromium: Any) -> None:
    with visit(chromium, server.url) as seen:
        assert seen.page.locator("#answer").inner_text()
        assert seen.page.get_by_label("Passage", exact=True).input_value()
        assert seen.page.locator("#rows label").count() == 3 + 1, "the states of the encoder, and the head"
        assert "3 heads" in seen.page.locator("#about").inner_text()
        elsewhere = [one for one in seen.addresses if not re.match(rf"(GET|POST) ({server.url}/|data:)", one)]
        assert elsewhere == []
        assert seen.addresses.count(f"POST {server.url}/v1/explain") == 1
        assert seen.errors == []


def test_what_is_typed_is_answered_and_marked_where_it_stands(server: Server, chromium: Any) -> None:
    """Behind characters that a script counts twice, too."""
    told = explained(server, FACES, WHO)["tasks"]["adapter"]
    best = told["nbest"][0]
    with visit(chromium, server.url) as seen:
        seen.ask(FACES, WHO)
        slide(seen, 1)  # whatever the head thinks of it, it answers
        assert seen.page.locator("#answer").inner_text() == best["text"]
        assert seen.marked() == FACES[best["start"] : best["end"]] == best["text"]
        assert seen.page.locator("#passage").inner_text() == FACES
        assert seen.heat("start") == pytest.approx([shade(p) for p in told["start"]], abs=1e-3)
        assert seen.heat("end") == pytest.approx([shade(p) for p in told["end"]], abs=1e-3)
        shown = seen.page.locator("#rivals li .words").all_inner_texts()
        assert shown == [*(one["text"] for one in told["nbest"]), "no answer"]
        assert f"adapter: {best['text']}" in seen.page.locator("#live").inner_text(), (
            "told to who cannot see it"
        )
        assert seen.errors == []


def shade(p: float) -> float:
    return 0.0 if p < 0.004 else min(1.0, p**0.55)


def test_a_long_passage_scrolls_to_its_answer(server: Server, chromium: Any) -> None:
    """Its windows are read one by one; what no colour is told of is grey."""
    passage = "The wind was cold and the road was long. " * 60 + "The mill was built by Ada Holt."
    best = explained(server, passage, WHO)["tasks"]["adapter"]["nbest"][0]
    with visit(chromium, server.url) as seen:
        seen.ask(passage, WHO)
        slide(seen, 1)
        assert seen.marked() == passage[best["start"] : best["end"]]
        box, mark = (
            seen.page.locator(place).first.bounding_box() for place in ("#passage", "#passage .found")
        )
        assert box is not None
        assert mark is not None
        assert box["y"] <= mark["y"]
        assert mark["y"] + mark["height"] <= box["y"] + box["height"]
        assert seen.page.get_by_text("in another window, not shown").is_visible()
        assert seen.page.locator("#passage .far").count() > 0
        assert seen.page.locator("#passage").get_attribute("tabindex") == "0"
        seen.ask(FACES, WHO)
        assert seen.page.locator("#passage").get_attribute("tabindex") is None
        assert not seen.page.get_by_text("in another window, not shown").is_visible()
        assert seen.errors == []


def test_heads_and_layers_are_looked_at_one_by_one(server: Server, chromium: Any) -> None:
    told = explained(server, FACES, WHO)
    with visit(chromium, server.url) as seen:
        seen.ask(FACES, WHO)
        asked = len(seen.addresses)
        for name in ("pooling", "adapter"):
            seen.page.get_by_role("radio", name=name, exact=True).check()
            assert seen.heat("start") == pytest.approx(
                [shade(p) for p in told["tasks"][name]["start"]], abs=1e-3
            )
            for row in told["layers"]["adapter"]:
                seen.page.locator("#rows label").nth(row["layer"]).click()
                assert seen.heat("end") == pytest.approx([shade(p) for p in row["end"]], abs=1e-3)
                assert seen.page.locator("#answer").inner_text() == row["answer"]["text"]
                assert seen.marked() == row["answer"]["text"]
        weights = told["tasks"]["pooling"]["layer_weights"]
        shown = (
            seen.page.locator("#weight-figures figure", has_text="pooling")
            .locator(".value")
            .all_inner_texts()
        )
        assert shown == [f"{round(100 * weight)} %" for weight in weights]
        assert len(seen.addresses) == asked, "nothing of this asks the server"
        assert seen.errors == []


def test_the_rows_play_from_the_words_to_the_head(server: Server, chromium: Any) -> None:
    with visit(chromium, server.url) as seen:
        seen.page.get_by_role("button", name="Play").click()
        for row in range(4):
            seen.page.locator(f"#rows label:nth-child({row + 1}) input:checked").wait_for(state="attached")
        seen.page.get_by_role("button", name="Play").wait_for()
        assert seen.errors == []


def test_the_threshold_decides_as_the_formula_says(server: Server, chromium: Any) -> None:
    task = explained(server, FACES, WHO)["tasks"]["adapter"]
    shift, temperature = task["shift"] or 0.0, task["temperature"] or 1.0
    doubt = 1 / (1 + math.exp(-(task["score_diff"] - shift) / temperature))
    with visit(chromium, server.url) as seen:
        seen.ask(FACES, WHO)
        first = seen.page.locator("#answer").inner_text()
        assert first == (task["prediction"]["text"] or "no answer"), (
            "where it was tuned the server has the word"
        )
        for place in (0.0, max(0.0, doubt - 0.01), min(1.0, doubt + 0.01), 1.0):
            slide(seen, place)
            none = round(1000 * place) / 1000 < doubt
            assert seen.page.locator("#answer").inner_text() == (
                "no answer" if none else task["nbest"][0]["text"]
            )
            assert (seen.marked() == "") == none
            table = seen.page.locator("#heads-table tr", has_text="adapter").inner_text()
            assert ("no answer" in table) == none
        seen.page.get_by_role("button", name="Back to the tuned one").click()
        assert seen.page.locator("#answer").inner_text() == first
        assert seen.errors == []


def test_labels_have_their_own_cards(server: Server, chromium: Any) -> None:
    with visit(chromium, server.url) as seen:
        with seen.page.expect_response("**/v1/explain"):
            seen.page.get_by_role("radio", name="One text").check()
        seen.page.get_by_label("Text", exact=True).fill("the mill is good")
        with seen.page.expect_response("**/v1/explain"):
            seen.page.keyboard.press("Enter")
        seen.settled()
        told = server.post("/v1/explain", {"text": "the mill is good"}).json()
        card = seen.page.locator("#cards article")
        assert card.locator(".answer").inner_text() == told["tasks"]["mood"]["label"]
        for row, layer in zip(
            card.locator(".text-rows .words").all_inner_texts(), told["layers"]["mood"], strict=True
        ):
            best = max(layer["probabilities"], key=layer["probabilities"].__getitem__)
            assert row == f"{best} · {round(100 * layer['probabilities'][best])} %"
        assert not seen.page.locator("#spans").is_visible()
        assert seen.errors == []


# ---- links, errors


def test_a_link_restores_the_view(server: Server, chromium: Any) -> None:
    def looks(seen: Visit) -> list[Any]:
        places = ("#says", "#answer", "#numbers", "#gauge-says")
        return [
            *(re.sub(r"\d+ ms", "", seen.page.locator(place).inner_text()) for place in places),
            seen.page.get_by_label("Passage", exact=True).input_value(),
            seen.page.get_by_label("Question", exact=True).input_value(),
            seen.page.locator("#rows input:checked").get_attribute("value"),
            seen.page.locator("#heads-table input:checked + label").inner_text(),
            seen.heat("start"),
        ]

    with visit(chromium, server.url) as seen:
        seen.ask(FACES + "\nA second line & more = 100 % #1.", WHO)
        seen.page.get_by_role("radio", name="pooling", exact=True).check()
        slide(seen, 0.85)
        seen.page.locator("#rows label").nth(1).click()
        link, before = seen.page.url, looks(seen)
    with visit(chromium, link) as seen:
        assert looks(seen) == before
        assert seen.errors == []
        seen.page.get_by_role("button", name="Copy a link to this view").click()
        seen.page.locator("#copied", has_text=re.compile("Copied|address bar")).wait_for()


def test_what_cannot_be_asked_is_said_at_its_field(server: Server, chromium: Any) -> None:
    with visit(chromium, server.url) as seen:
        asked = len(seen.addresses)
        passage = seen.page.get_by_label("Passage", exact=True)
        passage.fill(" \n")
        seen.page.get_by_role("button", name="Answer", exact=True).click()
        assert seen.page.locator("#text-wrong").inner_text() == "Write a passage first."
        assert passage.get_attribute("aria-invalid") == "true"
        assert passage.evaluate("node => node === document.activeElement")
        passage.fill("x" * 100_001)
        seen.page.get_by_role("button", name="Answer", exact=True).click()
        assert "longer than the 100,000 characters" in seen.page.locator("#text-wrong").inner_text()
        assert len(seen.addresses) == asked
        seen.ask("Ada came.", "Who came?")
        assert not seen.page.locator("#text-wrong").is_visible()
        assert passage.get_attribute("aria-invalid") is None
        assert seen.errors == []


def test_a_key_is_asked_for_and_a_server_that_is_gone_is_told(
    package: Path, tmp_path: Path, chromium: Any
) -> None:
    (tmp_path / "key").write_text("correct-horse\n", encoding="utf-8")
    with (
        serving(package, "--api-key-file", str(tmp_path / "key"), "--max-text", "200") as own,
        visit(chromium, own.url, wait=False) as seen,
    ):
        alert = seen.page.get_by_role("alert")
        alert.get_by_label("Key").fill("wrong")
        seen.page.keyboard.press("Enter")
        alert.get_by_text("needs its key").wait_for()
        alert.get_by_label("Key").fill("correct-horse")
        alert.get_by_role("button", name="Use it").click()
        seen.page.locator("#text-wrong", has_text="longer than the 200 characters").wait_for()
        seen.ask("Ada came.", "Who came?")
        assert seen.page.locator("#answer").inner_text()
        assert {text.split(":")[0] for text in seen.errors} <= {"error"}, seen.errors
        assert all("401" in text for text in seen.errors), "the browser's own word for a refusal, and no more"
        own.stop()
        seen.page.get_by_role("button", name="Answer", exact=True).click()
        alert.get_by_text("The server does not answer. Is it still running?").wait_for()
        assert seen.page.get_by_role("button", name="Try again").is_visible()
        assert seen.page.locator("#answer").is_visible(), "what was there stays"


# ---- everybody


def test_a_keyboard_is_enough(server: Server, chromium: Any) -> None:
    with visit(chromium, server.url) as seen:
        page, press = seen.page, seen.page.keyboard.press

        def go(place: str) -> None:
            for _ in range(40):
                press("Tab")
                if page.locator(f"{place}:focus").count():
                    return
            raise AssertionError(f"Tab never comes to {place}")

        go("#text")
        press("Control+a")
        page.keyboard.insert_text(FACES)
        go("#with")
        press("Control+a")
        page.keyboard.insert_text(WHO)
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
        press("ArrowDown")
        assert page.locator("#heads-table input:checked + label").inner_text() == "pooling"
        assert page.locator("#heads-table input:checked:focus").count() == 1, "the place is kept"
        press("ArrowDown")
        assert page.locator("#heads-table input:checked + label").inner_text() == "adapter"
        assert seen.errors == []


def test_every_control_has_a_name(server: Server, chromium: Any) -> None:
    with visit(chromium, server.url) as seen:
        controls = seen.page.locator("button:visible, input:visible, textarea:visible, [role=region]:visible")
        assert controls.count() > 12
        for i in range(controls.count()):
            told = controls.nth(i).aria_snapshot()
            assert re.match(r"""- '?[\w/]+ ".+\"""", told), told


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_narrow_and_dark(server: Server, chromium: Any, scheme: str) -> None:
    options = {"viewport": {"width": 390, "height": 844}, "color_scheme": scheme, "has_touch": True}
    with visit(chromium, server.url, **options) as seen:
        seen.ask(FACES * 4, WHO)
        assert seen.page.evaluate("document.documentElement.scrollWidth") == 390, "nothing is cut off"
        paper = luminance(seen.page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert (paper < 0.1) == (scheme == "dark")
        for place in (
            "#lede",
            "#numbers",
            "#answer",
            "#passage .token",
            "#go",
            "#gauge-says",
            "#rows .words",
        ):
            ink, own = seen.page.locator(place).first.evaluate(
                "n => { const c = getComputedStyle(n); return [c.color, n.id === 'go' ? c.backgroundColor : '']; }"
            )
            bright, dim = sorted((luminance(ink), luminance(own) if own else paper), reverse=True)
            assert (bright + 0.05) / (dim + 0.05) >= 4.5, f"{place} is hard to read"
        assert seen.errors == []


def test_the_picture_of_the_readme(server: Server, chromium: Any, tmp_path: Path) -> None:
    """The page as a newcomer sees it, from its top to the row of the head."""
    real = os.environ.get("BERTVISION_PAGE_PACKAGE")
    path = PICTURE if real else tmp_path / "page.png"
    if real:
        with serving(real) as own:
            picture(chromium, own.url, path)
    else:
        picture(chromium, server.url, path)
    width, height = struct.unpack(">II", path.read_bytes()[16:24])
    assert width == 1.5 * 1240
    assert 1.5 * 900 < height < 1.5 * 1600


def picture(chromium: Any, url: str, path: Path) -> None:
    with visit(chromium, url, device_scale_factor=1.5) as seen:
        seen.page.locator("#numbers").evaluate(
            "node => node.textContent = node.textContent.replace(/ · answered.*/, '')"
        )
        end = seen.page.locator("#rows").bounding_box()
        assert end is not None
        clip = {"x": 0, "y": 0, "width": 1240, "height": round(end["y"] + end["height"] + 30)}
        seen.page.screenshot(path=path, full_page=True, clip=clip)
