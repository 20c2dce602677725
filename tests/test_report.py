"""The report: honest words, every number of the table, escaped text, nothing loaded, gaps survived.

All numbers come from tests/data/report_fixture.json and are made up.
"""

import copy
import html
import json
import math
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from browsing import CHROMIUM, browse

from bertvision.errors import ArtifactError, OutputError
from bertvision.heads import Geometry, parse_head
from bertvision.pipeline.results import _layer_weights as layer_weights
from bertvision.report import figures, rows, words
from bertvision.report.card import card
from bertvision.report.html import render, summary, write_report
from bertvision.report.pages import read_results
from bertvision.report.schema import validate

FIXTURE = Path(__file__).parent / "data" / "report_fixture.json"


@pytest.fixture
def results() -> dict[str, Any]:
    return json.loads(FIXTURE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def page() -> str:
    return render(json.loads(FIXTURE.read_text(encoding="utf-8")))


class Page(HTMLParser):
    """What a browser would make of the page: cells of tables, text, loads, event handlers, scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.text: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self._cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._cell = False

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if self._cell:
            self.rows[-1][-1] += data + "\n"


def system(results: dict[str, Any], name: str) -> dict[str, Any]:
    return next(s for s in results["systems"] if s["name"] == name)


# ---------------------------------------------------------------------------------------------- schema


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda r: r.update(schema=3), "key schema is 3"),
        (lambda r: r.pop("schema"), "key schema is None"),
        (lambda r: r.pop("systems"), "key systems is missing"),
        (lambda r: r.update(systems=[]), "key systems is empty"),
        (lambda r: r.update(data=[]), "key data should be an object"),
        (lambda r: r.update(curves=[1]), "key curves should be an object"),
        (lambda r: r["systems"][1].pop("scores"), "systems[1].scores is missing"),
        (lambda r: r["systems"][2]["scores"]["dev"].pop("tuned"), "systems[2].scores.dev.tuned is missing"),
        (lambda r: r["systems"][2]["scores"]["test"]["zero"].pop("f1"), "systems[2].scores.test.zero.f1"),
        (lambda r: r["systems"][3].update(kind="wizard"), "systems[3].kind is 'wizard'"),
        (lambda r: r["systems"][3].update(name="linear-last"), "'linear-last' occurs twice"),
    ],
)
def test_damaged_results_are_refused_in_one_sentence(
    results: dict[str, Any], tmp_path: Path, damage: Callable[[dict[str, Any]], object], named: str
) -> None:
    damage(results)
    path = tmp_path / "results.json"
    path.write_text(json.dumps(results), encoding="utf-8")
    with pytest.raises(ArtifactError) as caught:
        read_results(tmp_path)
    message = str(caught.value)
    assert named in message
    assert str(path) in message
    assert "\n" not in message


def test_missing_and_truncated_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"results\.json"):
        read_results(tmp_path)
    (tmp_path / "results.json").write_text(FIXTURE.read_text(encoding="utf-8")[:500], encoding="utf-8")
    with pytest.raises(ArtifactError, match="not valid JSON"):
        read_results(tmp_path)


def test_validation_leaves_the_input_alone(results: dict[str, Any]) -> None:
    before = copy.deepcopy(results)
    for key in ("finetune", "fit", "curves", "layer_weights", "examples"):
        del results[key]
    checked = validate(results)
    assert "finetune" not in results
    assert checked["curves"] == {"finetune": [], "fit": {}}
    assert checked["systems"][0]["scores"] == before["systems"][0]["scores"]


# ----------------------------------------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (words.score, 71.26, "71.3"),
        (words.score, math.nan, "–"),
        (words.score, None, "–"),
        (words.count, 414952, "414,952"),
        (words.compact, 829904, "830 k"),
        (words.compact, 999_600, "1.00 M"),
        (words.compact, 21_600_000, "21.6 M"),
        (words.compact, 512, "512"),
        (words.percent, 0.12381, "0.124 %"),
        (words.percent, 2.957, "2.96 %"),
        (words.duration, 8.34, "8.3 s"),
        (words.duration, 9.96, "10 s"),
        (words.duration, 200, "3 min 20 s"),
        (words.duration, 7500, "2 h 5 min"),
        (words.change, 2.13, "+2.1"),
        (words.change, -0.03, "−0.03"),
        (words.p_value, 0.0004, "< 0.001"),
        (words.plain, 0.00015, "1.5e-4"),
        (words.plain, 8.0, "8"),
    ],
)
def test_numbers_are_written_as_people_read_them(write: Callable[[Any], str], value: Any, text: str) -> None:
    assert write(value) == text


def with_difference(results: dict[str, Any], size: float, low: float, high: float) -> dict[str, Any]:
    chosen = system(results, "adapter-386-skip")
    chosen["versus"]["tuned"]["f1"] = {"difference": size, "low": low, "high": high}
    return results


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        ((2.13, 0.41, 3.84), "gains +2.1 F1 over its snapshot on test (95 % interval +0.4 … +3.8)."),
        ((-2.13, -3.84, -0.41), "loses 2.1 F1 against its snapshot on test (95 % interval −3.8 … −0.4)."),
        (
            (0.62, -0.7, 1.9),
            "is level with its snapshot on test: +0.6 F1, and the 95 % interval −0.7 … +1.9 contains",
        ),
        # The ends decide the verdict, so they are not rounded to a zero that hides it.
        ((0.9, 0.02, 1.8), "gains +0.9 F1 over its snapshot on test (95 % interval +0.02 … +1.80)."),
        ((0.9, 0.0, 1.8), "is level with its snapshot"),
        ((math.nan, 0.1, 1.8), "no paired interval was computed"),
    ],
)
def test_the_headline_says_what_the_interval_allows(
    results: dict[str, Any], numbers: tuple[float, float, float], sentence: str
) -> None:
    said = summary(with_difference(results, *numbers))
    assert said.startswith("adapter 386 + skip ")
    assert sentence in said


def test_the_head_is_chosen_on_dev_even_where_test_says_otherwise(results: dict[str, Any]) -> None:
    for one in results["systems"]:
        one["best"] = False
    system(results, "adapter-64")["scores"]["dev"]["tuned"]["f1"] = 99.0
    system(results, "average")["scores"]["test"]["tuned"]["f1"] = 99.0
    view = rows.overview(validate(results))
    assert view.head is not None
    assert view.head["name"] == "adapter-64"


def test_the_best_of_the_others_is_chosen_on_dev_too(results: dict[str, Any]) -> None:
    """Each is told with its score on test, though another one is better there."""
    for name, lucky in (("mlp-last", "linear-last"), ("always-null", "overlap")):
        system(results, name)["scores"]["test"]["tuned"]["f1"] = 31.4
        system(results, lucky)["scores"]["test"]["tuned"]["f1"] = 99.0
    shown = render(results)
    for opening, name in (
        ("Of the controls, which read the last state only, the best on dev", "mlp-last"),
        ("The best trivial baseline on dev", "always-null"),
    ):
        assert f"{opening} ({system(results, name)['label']}) scores 31.4 on test, 36.3 below" in shown


def test_a_snapshot_taken_midway_tells_where() -> None:
    told = words.schedule({"epochs": 2, "lr": 6e-5, "schedule": "constant"}, "0.3")
    assert told == "taken 0.3 into 2 epochs at peak learning rate 6e\u20115, constant schedule"
    assert words.schedule(None) == "the encoder as it came, not fine-tuned"


# -------------------------------------------------------------------------------------------- the page


def test_every_number_of_the_table_is_there_rounded(results: dict[str, Any], page: str) -> None:
    table = {row[0].split("\n")[0]: row for row in Page(page).rows if len(row) == 13}
    for one in results["systems"]:
        row = table[one["label"]]
        zero, tuned = one["scores"]["test"]["zero"], one["scores"]["test"]["tuned"]
        wanted = [
            zero["exact"],
            zero["f1"],
            tuned["exact"],
            tuned["f1"],
            tuned["HasAns_f1"],
            tuned["NoAns_exact"],
        ]
        assert [cell.strip() for cell in row[1:7]] == [f"{value:.1f}" for value in wanted]
        if one["versus"]:
            for cell, threshold in zip(row[7:9], ("zero", "tuned"), strict=True):
                f1 = one["versus"][threshold]["f1"]
                assert float(cell.split()[0].replace("−", "-")) == pytest.approx(f1["difference"], abs=0.051)
                assert float(cell.split()[1].replace("−", "-")) == pytest.approx(f1["low"], abs=0.051)
                assert float(cell.split()[3].replace("−", "-")) == pytest.approx(f1["high"], abs=0.051)
        if one["parameters"] is not None:
            assert row[9].strip() == f"{one['parameters']:,}"
            assert row[10].strip() == f"{one['percent']:.3f} %"


def test_rows_stand_by_kind_and_best_first(page: str) -> None:
    labels = [row[0].strip() for row in Page(page).rows if len(row) == 13][1:]
    kinds = [label.split("\n")[1].split(",")[0] for label in labels]
    order = ["snapshot", "control", "control", *["head"] * 5, "ensemble", *["trivial baseline"] * 2]
    assert kinds == order
    assert labels[3].startswith("adapter 386 + skip")
    assert "chosen on dev" in labels[3]


def test_hostile_text_is_shown_not_run(results: dict[str, Any]) -> None:
    hostile = "<script>alert('x')</script><img src=x onerror=alert(1)> $\\frac{ --> ]]> & \"quoted\""
    results["examples"][0] |= {"question": hostile, "context": hostile + " Ebbe", "head": hostile}
    results["command"] = results["encoder"]["name"] = hostile
    results["data"]["dev"]["name"] = hostile
    for one in results["systems"]:
        one["label"] = hostile + one["name"]
    parsed = Page(render(results))
    assert parsed.tags.count("script") == 1
    assert "img" not in parsed.tags
    assert not [name for _, name, _ in parsed.attributes if name.startswith("on")]
    assert hostile in "".join(parsed.text)


def test_the_page_loads_nothing(page: str) -> None:
    parsed = Page(page)
    for tag, name, value in parsed.attributes:
        if name in ("src", "href", "xlink:href", "srcset", "data", "action", "poster"):
            assert value.startswith(("#", "data:")), (tag, name, value)
        assert "://" not in value, (tag, name, value)
    assert not re.search(r"@import|url\((?!#)|fetch\(|XMLHttpRequest", page)
    assert not {"iframe", "object", "embed", "base"} & set(parsed.tags)


def test_ids_are_unique_and_links_find_them(page: str) -> None:
    parsed = Page(page)
    ids = [value for tag, name, value in parsed.attributes if name == "id" and tag in ("section", "header")]
    assert len(ids) == len(set(ids))
    links = [value[1:] for tag, name, value in parsed.attributes if tag == "a" and name == "href"]
    assert links
    assert set(links) <= set(ids)


def drop(*keys: str) -> Callable[[dict[str, Any]], None]:
    def dropped(results: dict[str, Any]) -> None:
        for key in keys:
            del results[key]

    return dropped


def without_test(results: dict[str, Any]) -> None:
    del results["data"]["test"]
    for one in results["systems"]:
        del one["scores"]["test"]
        if one["versus"]:
            one["versus"]["split"] = "dev"


def unknown_scores(results: dict[str, Any]) -> None:
    chosen = system(results, "adapter-386-skip")
    for part in ("zero", "tuned"):
        chosen["scores"]["test"][part] = dict.fromkeys(chosen["scores"]["test"][part], math.nan)
        chosen["versus"][part]["f1"] = dict.fromkeys(("difference", "low", "high"), math.nan)
    results["curves"]["fit"]["adapter-386"][0]["loss"] = math.nan
    results["layer_weights"]["learned"][0] = math.nan
    system(results, "mlp-last").update(parameters=None, percent=None, flops_per_token=None, seconds=None)


def only_a_snapshot(results: dict[str, Any]) -> None:
    results["systems"] = results["systems"][:1]


def only_heads(results: dict[str, Any]) -> None:
    results["systems"] = [one | {"versus": None} for one in results["systems"] if one["kind"] == "head"]


def two_snapshots(results: dict[str, Any]) -> None:
    earlier = copy.deepcopy([one for one in results["systems"] if one["kind"] != "baseline"])
    for one in earlier:
        one |= {"name": f"early/{one['name']}", "snapshot": "0.3"}
        if one["versus"]:
            one["versus"]["baseline"] = "early/snapshot-1.0"
    results["systems"] += earlier


@pytest.mark.parametrize(
    ("change", "there", "gone"),
    [
        (without_test, "these scores flatter", "Scores on test"),
        (drop("finetune"), "not fine-tuned", "peak learning rate"),
        (drop("layer_weights"), "Learning curves", "Which layers a head reads"),
        (drop("curves"), "Which layers a head reads", "Learning curves"),
        (drop("examples", "fit", "commit", "command"), "Scores on test", "head and snapshot disagree"),
        (unknown_scores, "no paired interval was computed", "nan"),
        (only_a_snapshot, "no head was fitted", "Is the difference real"),
        (only_heads, "there is no snapshot to compare it with", "Is the difference real"),
        (two_snapshots, "adapter 386 + skip @ 0.3", "nan"),
    ],
)
def test_a_report_with_gaps_still_renders(
    results: dict[str, Any], change: Callable[[dict[str, Any]], None], there: str, gone: str
) -> None:
    change(results)
    text = re.sub(r"<(style|script)>.*?</\1>", "", render(results), flags=re.DOTALL)
    shown = " ".join(" ".join(Page(text).text).split())
    assert there in shown
    assert not re.search(rf"\b{gone}\b", shown)


def test_examples_count_both_ways_and_mark_the_gold_answer(results: dict[str, Any], page: str) -> None:
    found = rows.examples(results)
    assert (found.total, found.head_right, found.snapshot_right) == (6, 4, 2)
    first = found.shown[0]
    assert "".join(text for text, _ in first.pieces) == results["examples"][0]["context"]
    assert ("Ebbe", "gold head") in first.pieces
    assert '<mark class="gold head">Ebbe</mark>' in page
    long = {
        "id": "1",
        "question": "?",
        "context": "w " * 900 + "Gold end",
        "gold": ["Gold"],
        "snapshot": "",
        "head": "",
    }
    (shown,) = rows.examples({"examples": [long]}).shown
    assert ("Gold", "gold") in shown.pieces
    assert sum(len(text) for text, _ in shown.pieces) < 700


def test_writing_replaces_the_file_whole(results: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "deep" / "report.html"
    write_report(results, path)
    first = path.read_text(encoding="utf-8")
    assert first.rstrip().endswith("</html>")
    with pytest.raises(ArtifactError):
        write_report(results | {"schema": 0}, path)
    assert path.read_text(encoding="utf-8") == first
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]
    with pytest.raises(OutputError, match=r"report\.html"):
        write_report(results, path / "report.html")


def test_the_verb_writes_beside_the_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from bertvision.cli.report import ARGS, main

    shutil.copy(FIXTURE, tmp_path / "results.json")
    main(ARGS(run_dir=tmp_path, json=True))
    told = json.loads(capsys.readouterr().out)
    assert told["report"] == str(tmp_path / "report.html")
    assert told["headline"] in html.unescape((tmp_path / "report.html").read_text(encoding="utf-8"))
    main(ARGS(run_dir=tmp_path, out=tmp_path / "other.html"))
    assert (tmp_path / "other.html").read_bytes() == (tmp_path / "report.html").read_bytes()


# --------------------------------------------------------------------------------------------- figures


def test_figures_are_the_same_twice_and_stand_alone(results: dict[str, Any]) -> None:
    checked = validate(results)
    draw: list[Callable[[], str | None]] = [
        lambda: figures.finetune_curve(checked),
        lambda: figures.fit_curves(checked),
        lambda: figures.layer_weights(checked, "learned"),
        lambda: figures.score_against_cost(checked),
        lambda: figures.score_against_cost(checked, "flops_per_token"),
        lambda: figures.differences(checked),
    ]
    for figure in draw:
        svg = figure()
        assert svg is not None
        assert svg == figure()
        root = ElementTree.fromstring(svg)
        assert root.tag == "svg"
        assert root.get("aria-label")
        # A style sheet inside a figure would apply to the whole page.
        assert root.find(".//style") is None
        used = set(re.findall(r'(?:url\(|href=")#([\w-]+)', svg))
        assert used <= {element.get("id") for element in root.iter()}


def test_figures_carry_the_palette_as_variables(results: dict[str, Any]) -> None:
    svg = figures.differences(validate(results)) or ""
    assert "var(--fig-head, #0072b2)" in svg
    bare = re.sub(r"var\([^)]*\)", "", svg)
    assert not [colour for colour in figures.PALETTE.values() if colour in bare]


def test_layer_weights_are_drawn_to_scale(results: dict[str, Any]) -> None:
    results["layer_weights"]["learned"] = [0.1, 0.2, 0.7]
    root = ElementTree.fromstring(figures.layer_weights(validate(results), "learned") or "")
    heights = []
    for path in root.iter("path"):
        if "--fig-head" in path.get("style", ""):
            ys = [float(y) for y in re.findall(r"[ML] [\d.]+ ([\d.]+)", path.get("d", ""))]
            heights.append(max(ys) - min(ys))
    assert [height / heights[0] for height in heights] == pytest.approx([1, 2, 7], rel=1e-3)


def test_a_head_over_channels_shows_the_pooled_vector_first(results: dict[str, Any]) -> None:
    states = results["encoder"]["states"]
    results["layer_weights"] = {"learned": [0.5, *[0.5 / states] * states]}
    texts = [e.text for e in ElementTree.fromstring(
        figures.layer_weights(validate(results), "learned") or "").iter("text")]  # fmt: skip
    assert texts[:2] == ["pooled", "1"]
    assert str(states - 1) in texts
    assert str(states) not in texts
    assert "The pooled vector first" in render(results)
    results["layer_weights"] = {"learned": [1 / states] * states}
    assert "pooled" not in (figures.layer_weights(validate(results), "learned") or "")
    assert "Input embedding first" in render(results)


def test_weights_of_channels_are_told_with_the_pooled_one_first() -> None:
    geometry = Geometry(3, 8, unit="window", pooled=True)
    for order in ("first", "last"):
        head = parse_head(f"tenney_small:order={order}").build(geometry, seed=0)
        own = head.layer_weights() or []
        assert layer_weights(head) == (own if order == "first" else [own[-1], *own[:-1]])
    assert layer_weights(parse_head("adapter:size=2").build(Geometry(3, 8), seed=0)) is None


def test_all_numbers_of_a_head_with_batch_norms_are_told(results: dict[str, Any]) -> None:
    system = next(s for s in results["systems"] if s["kind"] == "head")
    size = f"{system['parameters'] + 400:,} in all"
    assert size not in render(results)
    system["total"] = system["parameters"] + 400
    assert size in render(results)
    system["total"] = system["parameters"]
    assert f"{system['total']:,} in all" not in render(results)


# ------------------------------------------------------------------------------------------------ card


def test_card_front_matter_is_what_the_hub_reads() -> None:
    config = {
        "bertvision": "0.1.0",
        "label": "adapter 386 + skip",
        "head": {"name": "adapter.v1", "config": {"size": 386, "skip": True}},
        "encoder": {"name": "org/encoder", "fingerprint": "abc123"},
        "fit": {"lr": 1e-3, "epochs": 8},
        "parameters": 154784,
    }
    scores = {"exact": 64.66, "f1": 67.24, "tuned_exact": 65.1, "tuned_f1": 67.66}
    text = card(config, {"tuning": {"threshold": -0.3}, "scores": {"dev": scores, "test": scores}})
    front = yaml.safe_load(text.split("---\n")[1])
    assert front["library_name"] == "bertvision"
    assert front["pipeline_tag"] == "question-answering"
    assert front["base_model"] == "org/encoder"
    (model,) = front["model-index"]
    assert [result["dataset"]["split"] for result in model["results"]] == ["test", "dev"]
    metrics = {metric["name"]: metric["value"] for metric in model["results"][0]["metrics"]}
    assert metrics == {
        "EM, threshold 0": 64.66,
        "F1, threshold 0": 67.24,
        "EM, threshold tuned on dev": 65.1,
        "F1, threshold tuned on dev": 67.66,
    }
    assert 'model = bv.load("FOLDER")' in text
    assert "| test | threshold tuned on dev | 65.1 | 67.7 |" in text
    assert "lr 0.001, epochs 8" in text
    assert "size 386, skip True" in text


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"encoder": None, "head": None},
        {"label": "a | b\n---\n<script>", "encoder": {"name": "/home/me/enc"}},
    ],
)
def test_card_survives_gaps_and_leaks_no_path(config: dict[str, Any]) -> None:
    text = card(config, {"dev": {"exact": math.nan, "f1": math.nan}})
    front = yaml.safe_load(text.split("---\n")[1])
    assert "base_model" not in front
    assert "model-index" not in front
    assert "/home/me" not in text
    assert "<script>" not in text.partition("# ")[2]


# --------------------------------------------------------------------------------------------- browser

PROBE = """<!doctype html><body style="margin:0">
<iframe id="f" style="border:0;width:390px;height:800px"></iframe>
<script>
const frame = document.getElementById("f");
frame.srcdoc = PAGE;
frame.onload = () => {
  const page = frame.contentDocument, root = page.documentElement;
  const button = [...page.querySelectorAll("th button")].find((b) => b.textContent === "parameters");
  button.click();
  const names = [...page.querySelectorAll("#scores tbody th b")].map((b) => b.textContent);
  const widths = [...page.querySelectorAll("svg")].map((s) => s.getBoundingClientRect().width);
  const hidden = widths.filter((width) => width > 390).length;
  document.title = "done";
  document.body.textContent = JSON.stringify({
    over: root.scrollWidth - root.clientWidth, width: frame.clientWidth, names, hidden});
};
</script>"""


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium executable")
def test_browser_shows_it_on_a_phone_without_errors(page: str, tmp_path: Path) -> None:
    _, noise = browse(page, tmp_path / "plain")
    assert noise == []
    # The same page with a fault must be heard, or silence above would mean nothing.
    _, noise = browse(page.replace("</body>", "<script>missing()</script></body>"), tmp_path / "faulty")
    assert any("missing is not defined" in line for line in noise)

    # A frame of 390 px, because a headless window cannot be made that narrow.
    quoted = json.dumps(page).replace("</", "<\\/").replace("<!--", "<\\!--")
    dom, noise = browse(PROBE.replace("PAGE", quoted, 1), tmp_path / "phone")
    assert noise == []
    found = json.loads(html.unescape(re.search(r"\{.*\}", dom)[0]))  # type: ignore[index]
    assert (found["over"], found["width"], found["hidden"]) == (0, 390, 0)
    assert found["names"][0] == "adapter 386 + skip"  # most parameters first
    assert len(found["names"]) == 11
