"""The report of a run: honest choices, every number as results.json has it, nothing loaded, gaps survived.

All results are made up (report_cases.py); one set of tests covers spans, labels and scores.
"""

import copy
import html
import itertools
import json
import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from page_cases import CHROMIUM, browser
from report_cases import KINDS, Parsed, make_results, system

from bertvision import words
from bertvision.cli import main
from bertvision.errors import ArtifactError, OutputError
from bertvision.report import figures
from bertvision.report.page import headline, marked, render_run, write_page
from bertvision.report.results import View, check, read_results

Results = dict[str, Any]
HEAD = "s/adapter-386"


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return {kind: render_run(make_results(kind)) for kind in KINDS}


@pytest.fixture(scope="module")
def pages(texts: dict[str, str]) -> dict[str, Parsed]:
    return {kind: Parsed(text) for kind, text in texts.items()}


def view_of(results: Results) -> View:
    return View(check(results))


# ---- reading results.json


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda r: r.pop("schema"), "schema is None"),
        (lambda r: r["metrics"].pop("tuned_f1"), "metrics.tuned_f1"),
        (lambda r: r.update(curves=[1]), "key curves"),
        (lambda r: r["systems"][2]["scores"]["dev"].pop("tuned_f1"), "systems[2].scores.dev.tuned_f1"),
        (lambda r: r["systems"][3].update(kind="wizard"), "systems[3].kind is 'wizard'"),
    ],
)
def test_damaged_results_are_refused_in_one_sentence(
    tmp_path: Path, damage: Callable[[Results], object], named: str
) -> None:
    results, path = make_results(), tmp_path / "results.json"
    damage(results)
    path.write_text(json.dumps(results), encoding="utf-8")
    with pytest.raises(ArtifactError) as caught:
        read_results(tmp_path)
    message = str(caught.value)
    assert (named in message, str(path) in message, "\n" in message) == (True, True, False), message


def test_missing_and_truncated_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="gone"):
        read_results(tmp_path / "gone")
    (tmp_path / "results.json").write_text(json.dumps(make_results())[:500], encoding="utf-8")
    with pytest.raises(ArtifactError, match="JSON"):
        read_results(tmp_path)


# ---- numbers as text


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (words.number(71.26, percent=True), "71.3"),
        (words.number(0.8719, percent=False), "0.872"),
        (words.number(math.nan, percent=True), "–"),
        (words.change(-0.03, percent=True), "−0.03"),
        (words.change(0.0002, percent=False), "+0.0002"),
        (words.interval(-0.0002, 0.02, percent=False), "−0.0002 … +0.0200"),
        (words.compact(999_600), "1.00 M"),
        (words.percent(0.12381), "0.124 %"),
        (words.duration(9.96), "10 s"),
        (words.duration(7500), "2 h 5 min"),
        (words.p_value(0.0004), "< 0.001"),
        (words.plain(0.00015), "1.5e-4"),
        (words.plain([True, 8.0, 0.1, "x"]), "yes, 8, 0.1, x"),
    ],
)
def test_numbers_are_written_as_people_read_them(text: str, wanted: str) -> None:
    assert text == wanted


# ---- who is compared with whom


@pytest.mark.parametrize(
    ("numbers", "verdict"),
    [((2.13, 0.41, 3.84), "beats"), ((-2.13, -3.84, -0.41), "falls behind"), ((0.62, -0.7, 1.9), "level"),
     ((0.9, 0.0, 1.8), "level"), ((0.9, 0.02, 1.8), "beats"), ((math.nan, 0.1, 1.8), "without a paired interval")],
)  # fmt: skip
def test_the_headline_claims_what_the_interval_allows(
    numbers: tuple[float, float, float], verdict: str
) -> None:
    results = make_results()
    parts = system(results, HEAD)["versus"]["metrics"]
    parts["tuned_f1"] = dict(zip(("difference", "low", "high"), numbers, strict=True))
    assert verdict in headline(results)


def test_where_lower_is_better_a_negative_difference_is_a_gain() -> None:
    results = make_results("score")
    results["task"]["metric"] = "mse"
    for one in results["systems"]:
        if one["versus"]:
            one["versus"]["metrics"]["mse"] = {"difference": -0.2, "low": -0.3, "high": -0.1}
    view = view_of(results)
    assert "beats" in headline(results)
    means = [view.mean(one) for one in view.of_kind("head")]
    assert means == sorted(means, key=lambda mean: mean or 0.0)


def test_heads_are_chosen_on_dev_even_where_test_says_otherwise() -> None:
    results = make_results()
    for one in results["systems"]:
        one["best"] = False
    system(results, "s/adapter-64")["scores"]["dev"]["tuned_f1"]["mean"] = 99.0
    system(results, "s/mean")["scores"]["test"]["tuned_f1"]["mean"] = 99.0
    lucky: Results = copy.deepcopy(system(results, "s/last")) | {"name": "lucky"}
    lucky["scores"]["dev"]["tuned_f1"]["mean"], lucky["scores"]["test"]["tuned_f1"]["mean"] = 1.0, 99.0
    results["systems"].append(lucky)
    view = view_of(results)
    chosen = (view.head, view.best_on_dev("control"))
    assert [one and one["name"] for one in chosen] == ["s/adapter-64", "s/last"]


# ---- the page


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_of_results_is_in_the_tables(kind: str, pages: dict[str, Parsed]) -> None:
    results = make_results(kind)
    percent = kind == "span"
    for one in results["systems"]:
        rows = [row for row in pages[kind].rows if row and row[0].startswith(one["label"] + "\n")]
        cells = {line for row in rows for cell in row for line in cell.splitlines()}
        scores = one["scores"]["test"]
        for metric in results["metrics"]:
            assert words.number(scores[metric]["mean"], percent=percent) in cells, (one["label"], metric)
        first = scores[results["task"]["metric"]]
        for seed in (first["per_seed"] or {}).values():
            assert words.number(seed, percent=percent) in cells
        assert " … ".join(words.number(end, percent=percent) for end in first["interval"]) in cells
        for part in (one["versus"] or {"metrics": {}})["metrics"].values():
            assert words.change(part["difference"], percent=percent) in cells
            assert words.interval(part["low"], part["high"], percent=percent) in cells
        if one["parameters"]:
            assert {words.count(one["parameters"]), words.percent(one["percent"])} <= cells
        if one["total"] != one["parameters"]:  # numbers that are kept and not trained
            assert f"{words.count(one['total'])} in all" in cells


def test_rows_are_ordered_by_kind_and_best_first(pages: dict[str, Parsed]) -> None:
    labels = [row[0].splitlines()[0] for row in pages["span"].rows[1:8]]
    assert labels == ["snapshot-1.0", "linear on the last state", "adapter 386 + skip", "adapter 64",
                      "average pooling", "mean of two", "always the same"]  # fmt: skip


def test_what_is_drawn_follows_from_the_details(pages: dict[str, Parsed]) -> None:
    drawn = {
        kind: [v for t, n, v in pages[kind].attributes if (t, n) == ("svg", "aria-label")] for kind in KINDS
    }
    for kind, name, count in (
        *(("span", "Confusion", 0), ("span", "errors", 0), ("label", "Confusion", 2)),
        *(("label", "probability", 1), ("score", "true scores", 2), ("score", "errors", 1)),
    ):
        assert sum(name in one for one in drawn[kind]) == count, (kind, name)
    assert "threshold" in pages["span"].text  # what is no figure is listed


@pytest.mark.parametrize("kind", ["span", "label"])
def test_hostile_text_is_shown_not_run(kind: str) -> None:
    hostile = "<script>alert('x')</script><img src=x onerror=alert(1)> $\\frac{ --> ]]> & \"quoted\""
    results = make_results(kind)
    results["examples"][0] |= {"texts": [hostile], "context": hostile + " Ebbe", "head": hostile}
    results["command"] = results["encoder"]["name"] = results["data"]["dev"]["name"] = hostile
    results["task"]["title"] = hostile
    for metric in results["metrics"].values():
        metric["title"] += hostile
    for one in results["systems"]:
        one["label"] = hostile + one["name"]
    if kind == "label":
        results["task"]["classes"][0] = hostile
        results["data"]["dev"]["counts"][hostile] = 1
    page = Parsed(render_run(results))
    assert page.tags.count("script") == 1
    assert "img" not in page.tags
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert hostile in page.text


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_loads_nothing_and_its_links_lead_somewhere(
    kind: str, texts: dict[str, str], pages: dict[str, Parsed]
) -> None:
    page, text = pages[kind], texts[kind]
    for tag, name, value in page.attributes:
        if name in ("src", "href", "xlink:href", "srcset", "data", "action", "poster"):
            assert value.startswith(("#", "data:")), (tag, name, value)
        assert "://" not in value, (tag, name, value)
    assert not re.search(r"@import|url\((?!#)|fetch\(|XMLHttpRequest", text)
    assert not {"iframe", "object", "embed", "base"} & set(page.tags)
    ids = [value for tag, name, value in page.attributes if name == "id" and tag == "section"]
    assert [value[1:] for tag, name, value in page.attributes if tag == "a" and name == "href"] == ids
    assert len(ids) == len(set(ids))


def unknown_numbers(results: Results) -> None:
    """NaN for every score and None for every cost; curves and weights with holes."""
    unknown = {"mean": math.nan, "sd": math.nan, "per_seed": {"0": math.nan}, "interval": None}
    for one in results["systems"]:
        one["scores"] = {split: dict.fromkeys(scores, unknown) for split, scores in one["scores"].items()}
        one |= dict.fromkeys(("parameters", "total", "percent", "flops_per_token", "seconds", "seeds"))
        if one["versus"]:
            one["versus"]["metrics"] = {results["task"]["metric"]: {"difference": None}}
            one["versus"]["mcnemar_p"] = math.nan
    results["curves"]["fit"][HEAD][0]["loss"] = math.nan
    results["curves"]["finetune"][3] = {}
    results["layer_weights"][HEAD][0] = math.nan
    results["data"]["dev"] = {}
    results["examples"][0] = {"texts": ["x"]}


def drop(*keys: str) -> Callable[[Results], object]:
    return lambda results: [results.pop(key) for key in keys]


def keep(*kinds: str) -> Callable[[Results], object]:
    return lambda results: results.update(systems=[s for s in results["systems"] if s["kind"] in kinds])


def one_price(results: Results) -> None:
    """A log axis has nothing to scale itself by; warnings are errors here."""
    for one in results["systems"]:
        one |= dict.fromkeys(figures.COSTS, 1538.0 if one["kind"] in ("head", "control") else None)


GAPS = ("finetune", "fit", "curves", "layer_weights", "details", "examples")


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        *((kind, change) for kind in KINDS for change in (drop(*GAPS), unknown_numbers)),
        ("span", drop("environment", "settings", "command", "created", "commit", "bertvision", "seconds")),
        ("span", one_price),
        ("span", lambda r: r["curves"].update(finetune=r["curves"]["finetune"][:1])),
        ("label", keep("snapshot")),
        ("score", keep("head")),
        ("span", keep("baseline")),
        ("span", lambda r: r.update(data={}, details={HEAD: {"other": {"key": [1, 2]}, "nothing": None}})),
        ("label", lambda r: r.update(details={HEAD: {"confusion": [], "calibration": []}})),
        ("label", lambda r: r.update(details={HEAD: {"confusion": [[1] * 150] * 150}})),
        ("score", lambda r: r.update(details={HEAD: {"points": [[1, 1]], "errors": {}}})),
    ],
)
def test_a_report_with_gaps_still_renders(kind: str, change: Callable[[Results], object]) -> None:
    results = make_results(kind, test=kind != "label")
    change(results)
    before = copy.deepcopy(results)
    page = Parsed(render_run(results))
    assert repr(results) == repr(before), "the input is left alone"
    assert headline(results) in page.text
    assert not re.search(r"\b(nan|None|NaN)\b", page.text)


# ---- examples


def test_answers_are_marked_in_the_context(pages: dict[str, Parsed]) -> None:
    context = make_results()["examples"][0]["context"]
    marks = [("the river Ebbe", "truth"), ("Ebbe", "truth"), ("Sull", "snapshot"), ("Ebbe", "head")]
    pieces = marked(context, marks)
    assert "".join(text for text, _ in pieces) == context
    assert {("the river ", "truth"), ("Ebbe", "truth head"), ("Sull", "snapshot")} <= set(pieces)
    classes = [value for tag, name, value in pages["span"].attributes if (tag, name) == ("mark", "class")]
    assert {"truth head", "truth", "snapshot"} <= set(classes)


def test_long_contexts_are_cut_around_their_marks() -> None:
    for marks in ([], [("Gold", "truth"), ("other", "head")]):
        pieces = marked("other " + "w " * 900 + "Gold end " + "v " * 900, marks)
        assert set(marks) <= set(pieces)
        assert sum(len(text) for text, _ in pieces) < 800


# ---- files


def test_writing_replaces_the_file_whole(tmp_path: Path) -> None:
    path, results = tmp_path / "deep" / "report.html", make_results()
    write_page(results, path)
    first = path.read_text(encoding="utf-8")
    with pytest.raises(ArtifactError):
        write_page(results | {"schema": 0}, path)
    assert path.read_text(encoding="utf-8") == first
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]
    with pytest.raises(OutputError, match=r"report\.html"):
        write_page(results, path / "report.html")


def test_the_verb_writes_beside_the_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "results.json").write_text(json.dumps(make_results("label")), encoding="utf-8")
    main(["report", str(tmp_path), "--json"])
    written = json.loads(capsys.readouterr().out)
    assert written["report"] == str(tmp_path / "report.html")
    assert written["headline"] in html.unescape((tmp_path / "report.html").read_text(encoding="utf-8"))
    main(["report", str(tmp_path / "results.json"), "--out", str(tmp_path / "other.html")])
    assert (tmp_path / "other.html").read_bytes() == (tmp_path / "report.html").read_bytes()


# ---- figures


@pytest.mark.parametrize("kind", KINDS)
def test_figures_stand_alone_in_the_colours_of_the_page(kind: str, texts: dict[str, str]) -> None:
    drawn = re.findall(r"<svg.*?</svg>", texts[kind], re.DOTALL)
    assert len(drawn) >= 6
    for svg in drawn:
        root = ElementTree.fromstring(svg)
        assert root.get("aria-label")
        assert root.find(".//style") is None, "it would apply to the whole page"
        used = set(re.findall(r'(?:url\(|href=")#([\w-]+)', svg))
        assert used <= {element.get("id") for element in root.iter()}
        bare = re.sub(r"var\([^)]*\)", "", svg)
        assert not [colour for colour in figures.PALETTE.values() if colour in bare]


def test_the_matrix_of_few_classes_shows_its_counts() -> None:
    results = make_results("label")
    results["task"]["classes"] = ["red", "green"]
    results["details"] = {HEAD: {"confusion": [[123, 21], [14, 101]]}}
    (svg,) = (one.svg for one in figures.details(view_of(results)))
    assert {"123", "21", "14", "101", "red", "green"} <= set(
        "".join(ElementTree.fromstring(svg).itertext()).split()
    )


def test_layer_weights_are_drawn_to_scale() -> None:
    results = make_results()
    results["layer_weights"][HEAD] = [0.1, 0.2, 0.7]
    svg = figures.layer_weights(view_of(results))[0].svg
    heights = []
    for path in ElementTree.fromstring(svg).iter("path"):
        if "--fig-head" in path.get("style", ""):
            ys = [float(y) for y in re.findall(r"[ML] [\d.]+ ([\d.]+)", path.get("d", ""))]
            heights.append(max(ys) - min(ys))
    assert [height / heights[0] for height in heights] == pytest.approx([1, 2, 7], rel=1e-3)


@pytest.mark.parametrize(
    ("weights", "layers", "names"),
    [
        ([0.5, *[0.5 / 7] * 7], [], ["pool", "input", "6"]),
        ([0.5, 0.5], [0, -1], ["input", "6"]),
    ],
)
def test_layer_weights_are_named(weights: list[float], layers: list[int], names: list[str]) -> None:
    results = make_results()
    results["layer_weights"] = {HEAD: weights}
    results["settings"]["states"]["layers"] = layers
    svg = figures.layer_weights(view_of(results))[0].svg
    texts = [element.text for element in ElementTree.fromstring(svg).iter("text")]
    assert texts[: len(names) - 1] == names[:-1]
    assert (names[-1] in texts, "7" in texts) == (True, False)


def test_labels_in_a_crowded_figure_cover_nothing() -> None:
    draw = random.Random(4)
    points = [(draw.gauss(0, 1), draw.gauss(0, 1)) for _ in range(60)]
    with figures.canvas(4.0, 6.0) as (figure, axes):
        axes.plot(*zip(*points, strict=True), "o")
        figures.place_labels(axes, [(x, y, str(i)) for i, (x, y) in enumerate(points)])
        figure.draw_without_rendering()
        boxes = {text.get_text(): text.get_window_extent() for text in axes.texts}
        assert len(boxes) > 15
        assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes.values(), 2))
        for label, box in boxes.items():
            assert not any(box.contains(*axes.transData.transform(point)) for point in points)
            x, y = axes.transData.transform(points[int(label)])
            assert box.padded(20).contains(x, y), "beside its own point"


# ---- in a browser

PROBE = """() => {
  const over = (node) => node.scrollWidth - node.clientWidth;
  [...document.querySelectorAll("th button")].find((b) => b.textContent === "parameters").click();
  const names = [...document.querySelectorAll("#scores tbody th b")].map((b) => b.textContent);
  const widest = Math.max(...[...document.querySelectorAll("svg")].map((s) => s.getBoundingClientRect().width));
  return {page: over(document.documentElement), table: over(document.querySelector("#scores .scroll")), names, widest};
}"""


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium executable")
def test_a_browser_shows_it_without_errors(tmp_path: Path) -> None:
    pytest.importorskip("playwright.sync_api")
    results, path = make_results("label"), tmp_path / "report.html"
    for one in results["systems"]:
        one |= {"total": 219_897_192, "flops_per_token": 829_904, "seconds": 3599.0}
    write_page(results, path)
    with browser() as chromium:
        for width in (390, 1200):
            page, errors = chromium.new_page(viewport={"width": width, "height": 800}), []
            page.on("console", lambda message, errors=errors: errors.append(message.text))
            page.on("pageerror", lambda error, errors=errors: errors.append(str(error)))
            page.goto(path.as_uri())
            found = page.evaluate(PROBE)
            assert errors == []
            assert found["page"] == 0, "nothing wider than the window"
            assert (found["table"] > 0) == (width == 390), "the table fits a desk and scrolls on a phone"
            assert found["widest"] <= width
            assert set(found["names"][:2]) == {"adapter 386 + skip", "mean of two"}, "most parameters first"
            page.add_script_tag(content="missing()")  # a fault is heard, or silence above would mean nothing
            assert any("missing is not defined" in text for text in errors)
