"""The page of a study: every block shown, nothing loaded, words apart, wrong blocks refused by name.

All numbers come from tests/study_page_cases.py and are made up.
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
from browsing import CHROMIUM, browse
from study_page_cases import bars, cost, crowd, made_page
from test_report import Page

from bertvision.errors import ArtifactError
from bertvision.report import drawing, study_figures
from bertvision.report.pages import headline, read_results, write_page
from bertvision.report.placing import NEAR, Placer, rings
from bertvision.report.study_page import render_study
from bertvision.report.study_scatter import pareto_front, scatter
from bertvision.report.study_schema import validate_study
from bertvision.report.study_tables import worth
from bertvision.report.words import change, interval, signed


@pytest.fixture(scope="module")
def page() -> str:
    return render_study(made_page())


def block(study: dict[str, Any], section: str, number: int = 0) -> dict[str, Any]:
    return next(s for s in study["sections"] if s["id"] == section)["blocks"][number]


# ---- what is refused


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda s: s.update(schema=2), "key schema is 2"),
        (lambda s: s.update(sections=[]), "key sections is empty"),
        (lambda s: s.pop("headline"), "headline is missing"),
        (lambda s: s["sections"][1].update(id="cost"), "section 'cost': the id occurs twice"),
        (lambda s: s["sections"][1].update(id="a b"), "section 'a b': its id should be"),
        (lambda s: s["sections"][1].pop("title"), "section 'scores': title is missing"),
        (
            lambda s: block(s, "cost").update(type="pie"),
            "section 'cost', block 1: type is 'pie'; known types are table",
        ),
        (
            lambda s: block(s, "cost")["points"][3].pop("y"),
            "section 'cost', block 1 (scatter): points[3]: y is missing",
        ),
        (
            lambda s: block(s, "cost")["points"][3].update(y=float("nan")),
            "(scatter): points[3]: y should be a number",
        ),
        (
            lambda s: block(s, "cost")["points"][3].update(x=0),
            "block 1 (scatter): x has a log axis and the value 0",
        ),
        (
            lambda s: block(s, "cost")["points"][3].update(kind="wizard"),
            "kind should be one of snapshot, control",
        ),
        (
            lambda s: block(s, "scores")["rows"][2]["cells"].pop(),
            "block 1 (table): rows[2] has 10 cells, but there are 11",
        ),
        (
            lambda s: block(s, "scores")["rows"][2]["cells"].__setitem__(0, 3.5),
            "rows[2]: cells[0] should be an object",
        ),
        (
            lambda s: block(s, "scores", 2)["series"][1]["points"].append([1]),
            "block 3 (lines): series[1]: points[11]",
        ),
        (lambda s: block(s, "kinds")["series"][0]["values"].pop(), "block 1 (bars): series[0] has 7 values"),
        (lambda s: block(s, "length")["edges"].reverse(), "block 1 (histogram): edges should grow"),
        (
            lambda s: block(s, "examples")["items"][0]["answers"][1].pop("right"),
            "answers[1]: right is missing",
        ),
    ],
)
def test_a_wrong_block_is_refused_by_section_and_number(
    tmp_path: Path, damage: Callable[[dict[str, Any]], object], named: str
) -> None:
    study = copy.deepcopy(made_page())
    damage(study)
    path = tmp_path / "results.json"
    path.write_text(json.dumps(study), encoding="utf-8")
    with pytest.raises(ArtifactError) as caught:
        read_results(tmp_path)
    message = str(caught.value)
    assert named in message
    assert message.startswith(str(path))
    assert "\n" not in message


def test_what_may_be_left_out_may_be_null_too() -> None:
    study = made_page()
    for key in ("lede", "facts", "command", "commit", "environment"):
        study[key] = None
    block(study, "cost")["points"][0].update(low=None, high=None)
    block(study, "cost").update(lines_at=None, front=None)
    study["sections"] = study["sections"][:1]
    del study["sections"][0]["about"]
    assert "Command and machine" not in render_study(study)
    assert validate_study(study)["facts"] == []


# ---- what is shown


def test_every_cell_number_and_word_is_on_the_page(page: str) -> None:
    study, parsed = made_page(), Page(page)
    told = "".join(parsed.text)
    shown = {cell.strip() for row in parsed.rows for cell in row}
    for row in block(study, "scores")["rows"]:
        texts = [
            c if isinstance(c, str) else "\n".join(filter(None, (c["text"], c.get("sub"))))
            for c in row["cells"]
        ]
        assert texts in [[cell.strip() for cell in found] for found in parsed.rows]
    for point in block(study, "cost")["points"]:
        assert {point["label"], f"{point['y']:.2f}"} <= shown
    for series in block(study, "kinds")["series"]:
        assert {f"{v:.2f}".rstrip("0") if v else "–" for v in series["values"]} <= shown
    counts = {f"{count:,}" for series in block(study, "length")["series"] for count in series["counts"]}
    assert counts <= shown
    for fact in study["facts"]:
        assert {fact["name"], fact["value"], fact["note"]} <= set(parsed.text)
    for words in (study["headline"], study["command"], "2.13.0", "0, 1, 2", "✗ wrong", "  --out OUT"):
        assert words in told
    assert "<code>bertvision study --config study</code>" in page
    assert '<mark class="gold head">1874</mark>' in page


def test_figures_and_tables_have_names(page: str) -> None:
    """What a reader of the screen hears: each drawing a label and details, each table a caption, heads with a scope."""
    drawn = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(drawn) == 3 + 1 + 2 + 4 + 1  # two drawings of the crowded figure and of the many bars
    for svg in drawn:
        root = ElementTree.fromstring(svg)
        assert root.get("role") == "img"
        assert root.get("aria-label")
        assert root.findtext("desc")
    parsed = Page(page)
    assert parsed.tags.count("caption") == parsed.tags.count("table")
    scopes = [value for tag, name, value in parsed.attributes if tag == "th" and name == "scope"]
    assert len(scopes) == parsed.tags.count("th")


def test_hostile_text_is_shown_not_run() -> None:
    hostile = "<script>alert('x')</script><img src=x onerror=alert(1)> $\\frac{ --> ]]> & \"quoted\" `<b>`"
    kept = {"schema", "kind", "type", "id", "align", "tone", "created"}

    def spoil(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: spoil(one, name) for name, one in value.items()}
        if isinstance(value, list):
            return [spoil(one, key) for one in value]
        return hostile if isinstance(value, str) and key not in kept else value

    study = made_page()
    block(study, "cost")["points"] = crowd(4)
    parsed = Page(render_study(spoil(study)))
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
    policy = [
        value for tag, name, value in parsed.attributes if tag == "meta" and value.startswith("default-src")
    ]
    assert policy == [
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    ]


def test_ids_are_unique_and_links_find_them(page: str) -> None:
    """Those inside drawings too: a drawing that is not displayed lends its parts to no other."""
    parsed = Page(page)
    ids = [value for _, name, value in parsed.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    links = [value[1:] for _, name, value in parsed.attributes if name == "href" and value.startswith("#")]
    clips = re.findall(r"url\(#([\w-]+)\)", page)
    assert len(clips) > 10
    assert {*links, *clips} <= set(ids)


# ---- figures


def test_the_front_is_what_nothing_beats() -> None:
    points = [*crowd(200, seed=5), {"x": 100.0, "y": 60.0}, {"x": 100.0, "y": 60.0}]

    spots = {(p["x"], p["y"]) for p in points}
    wanted = {p for p in spots if not any(q[0] <= p[0] and q[1] >= p[1] and q != p for q in spots)}
    front = pareto_front(points)
    assert {(points[i]["x"], points[i]["y"]) for i in front} == wanted
    assert [points[i]["x"] for i in front] == sorted(points[i]["x"] for i in front)


@pytest.mark.parametrize("count", [9, 40, 80])
def test_every_point_has_its_label_or_a_number_and_a_line_in_the_list(count: int) -> None:
    figure = cost(count)
    sketches = scatter(figure, "salt")
    assert [sketch.size for sketch in sketches] == ([""] if count < 13 else ["wide", "phone"])
    for sketch in sketches:
        texts = [element.text or "" for element in ElementTree.fromstring(sketch.svg).iter("text")]
        listed = {one.label for one in sketch.numbered}
        assert [one.number for one in sketch.numbered] == list(range(1, len(listed) + 1))
        for point in figure["points"]:
            assert (point["label"] in texts) != (point["label"] in listed)
        assert {str(one.number) for one in sketch.numbered} <= set(texts)
    assert len(sketches[-1].numbered) >= len(sketches[0].numbered)


def test_a_point_without_a_label_has_no_words_but_a_tip() -> None:
    figure = cost(9)
    figure["points"][4] |= {"label": "", "name": "the quiet one"}
    (sketch,) = scatter(figure, "salt")
    root = ElementTree.fromstring(sketch.svg)
    assert "the quiet one" not in [element.text for element in root.iter("text")]
    assert "" not in [one.label for one in sketch.numbered]
    tips = [element.text or "" for element in root.iter("title")]
    assert len(tips) == 9
    assert any(tip.startswith("the quiet one: ") for tip in tips)


def test_placed_words_are_apart() -> None:
    """Measured again from the finished texts: inside the panel, off the points, off the lines, off each other."""
    from matplotlib.text import Annotation

    draw = random.Random(4)
    with drawing.styled():
        figure = drawing.new_figure(4.0, 6.0)
        axes = figure.subplots()
        points = [(draw.gauss(0, 1), draw.gauss(0, 1)) for _ in range(60)]
        axes.plot(*zip(*points, strict=True), "o")
        axes.axhline(0)
        placer = Placer(axes, points)
        placer.avoid_line((axes.get_xlim()[0], 0), (axes.get_xlim()[1], 0))
        done = [placer.place(p, f"name {i}", [*NEAR, *rings(13, 19)]) for i, p in enumerate(points)]
        assert sum(done) > 20
        figure.draw_without_rendering()
        words = [one for one in axes.texts if isinstance(one, Annotation) and one.get_text()]
        assert len(words) == sum(done)
        boxes = [one.get_window_extent() for one in words]
        for a, b in itertools.combinations(boxes, 2):
            assert not a.overlaps(b)
        level = axes.transData.transform((0, 0))[1]
        for box in boxes:
            assert not any(box.contains(*axes.transData.transform(point)) for point in points)
            assert not box.y0 < level < box.y1
            assert axes.get_window_extent().padded(3).containsx(box.x0)


def test_words_stand_nearer_to_their_own_point_than_to_another() -> None:
    from matplotlib.text import Annotation

    draw = random.Random(7)
    with drawing.styled():
        figure = drawing.new_figure(4.0, 6.0)
        axes = figure.subplots()
        points = [(draw.gauss(0, 1), draw.gauss(0, 1)) for _ in range(60)]
        axes.plot(*zip(*points, strict=True), "o")
        placer = Placer(axes, points)
        for i, point in enumerate(points):
            placer.place(point, str(i))  # next to it: no line leads back
        figure.draw_without_rendering()
        pixels = [tuple(axes.transData.transform(point)) for point in points]
        words = [one for one in axes.texts if isinstance(one, Annotation) and one.get_text()]
        assert len(words) > 15
        for one in words:
            box = one.get_window_extent()
            away = [
                math.dist((x, y), (min(max(x, box.x0), box.x1), min(max(y, box.y0), box.y1)))
                for x, y in pixels
            ]
            assert away.index(min(away)) == int(one.get_text())


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([1e8, 2e8], ["100 M", "200 M"]),
        ([1.102e8, 1.104e8, 1.106e8], ["110.2 M", "110.4 M", "110.6 M"]),
        ([0.5, 20.0, 2000.0], ["0.5", "20", "2,000"]),
    ],
)
def test_numbers_at_an_axis_are_told_apart(values: list[float], told: list[str]) -> None:
    assert study_figures.ticks(values) == told


def test_numbers_below_a_narrow_range_do_not_touch() -> None:
    figure = cost(9)
    for i, point in enumerate(figure["points"]):
        point["x"] = 1.095e8 + 5e5 * i
    figure["x"]["log"] = True
    (sketch,) = scatter(figure, "salt")
    texts = [element.text or "" for element in ElementTree.fromstring(sketch.svg).iter("text")]
    numbers = [text for text in texts if re.fullmatch(r"[\d.]+ M", text)]
    assert 2 <= len(numbers) == len(set(numbers))
    assert sum(len(text) + 2 for text in numbers) * study_figures._LETTER <= drawing.WIDTH * 72


@pytest.mark.parametrize("digits", [1, 2, 3])
def test_what_is_printed_as_zero_has_no_sign(digits: int) -> None:
    assert signed(-0.0004, digits=digits) == signed(0.0, digits=digits) == f"{0:.{digits}f}"
    assert (change(-0.0004), change(-0.004), interval(-0.0002, 0.4)) == ("0.0", "−0.004", "0.0 … +0.4")


def test_long_names_of_differences_are_written_out_on_a_page() -> None:
    name = "best seed head of all snapshots: decayed-3@3/adapter-386-unshared-skip"
    rows = [{"label": label, "difference": 0.1, "low": -0.1, "high": 0.2} for label in (name, "short")]
    drawn = {"type": "intervals", "title": "t", "caption": "c", "unit": "points F1", "rows": rows}
    wide, phone = study_figures.intervals(drawn, "a")
    assert (wide.size, phone.size) == ("wide", "phone")
    assert name in wide.svg
    (small,) = study_figures.intervals(drawn | {"rows": rows[1:]}, "b")
    assert small.size == ""


def test_bars_are_drawn_to_scale_and_gaps_stay_empty() -> None:
    figure = bars(["a", "b", "c"], ["head"])
    figure["series"][0]["values"] = [1.0, None, 4.0]
    (sketch,) = study_figures.bars(figure, "salt")
    heights = []
    for path in ElementTree.fromstring(sketch.svg).iter("path"):
        if "fill: var(--fig-head" in path.get("style", ""):
            ys = [float(y) for y in re.findall(r"[ML] [\d.]+ ([\d.]+)", path.get("d", ""))]
            heights.append(max(ys) - min(ys))
    assert len(heights) == 2
    assert heights[1] / heights[0] == pytest.approx(4, rel=1e-3)


@pytest.mark.parametrize(
    ("text", "value"),
    [("71.3", 71.3), ("−0.4", -0.4), ("+1.2", 1.2), ("414,952", 414952), ("21.6 M", 21.6e6), ("830 k", 830e3),
     ("3 min 20 s", 200), ("2 h 5 min", 7500), ("9.5 ms", 0.0095), ("8.3 s", 8.3), ("38 %", 38), ("1.5e-4", 1.5e-4),
     ("< 0.001", 0.001), ("–", None), ("none", None), ("3 seeds", 3)],
)  # fmt: skip
def test_cells_are_sorted_by_what_they_say(text: str, value: float | None) -> None:
    assert worth(text) == (value if value is None else pytest.approx(value))


# ---- the way to it


def test_the_verb_writes_it_beside_the_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], page: str
) -> None:
    from bertvision.cli.report import ARGS, main

    (tmp_path / "results.json").write_text(json.dumps(made_page()), encoding="utf-8")
    main(ARGS(run_dir=tmp_path, json=True))
    told = json.loads(capsys.readouterr().out)
    assert told == {"report": str(tmp_path / "report.html"), "headline": made_page()["headline"]}
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page
    assert headline(made_page()) == made_page()["headline"]
    with pytest.raises(ArtifactError):
        write_page(made_page() | {"sections": []}, tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page


# ---- in a browser

PROBE = """<!doctype html><body style="margin:0">
<iframe id="f" style="border:0;width:WIDTHpx;height:800px"></iframe>
<script>
const frame = document.getElementById("f");
frame.srcdoc = PAGE;
frame.onload = () => {
  const page = frame.contentDocument, root = page.documentElement;
  const box = (e) => { const b = e.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; };
  const shown = (e) => e.getClientRects().length > 0;
  const button = [...page.querySelectorAll("#scores th button")].find((b) => b.textContent === "time");
  button.click();
  const result = {
    over: root.scrollWidth - root.clientWidth,
    wide: [...page.querySelectorAll("svg")].filter((s) => s.getBoundingClientRect().right > WIDTH).length,
    labels: [...page.querySelectorAll("#cost svg")].filter(shown).map(
      (s) => [...s.querySelectorAll("text")].filter((t) => t.textContent).map(box)),
    sketches: [...page.querySelectorAll(".sketch")].filter(shown).map((s) => s.className),
    nav: shown(page.querySelector("nav")), details: shown(page.querySelector("details")),
    times: [...page.querySelectorAll("#scores section > .scroll tbody tr, #scores > .scroll tbody tr")].map(
      (r) => Number(r.lastElementChild.dataset.value)),
    tables: [...page.querySelectorAll("section > .scroll")].map((s) => s.scrollWidth > s.clientWidth + 1),
  };
  document.body.textContent = JSON.stringify(result);
};
</script>"""


def probe(page: str, width: int, folder: Path) -> dict[str, Any]:
    """What a browser makes of the page in a frame of that width; a window cannot be made so narrow."""
    quoted = json.dumps(page).replace("</", "<\\/").replace("<!--", "<\\!--")
    dom, noise = browse(PROBE.replace("WIDTH", str(width)).replace("PAGE", quoted, 1), folder)
    assert noise == []
    return json.loads(html.unescape(re.search(r"\{.*\}", dom)[0]))  # type: ignore[index]


def overlapping(boxes: list[list[float]]) -> list[tuple[int, int]]:
    found = []
    for (i, a), (j, b) in itertools.combinations(enumerate(boxes), 2):
        across = min(a[2], b[2]) - max(a[0], b[0])
        along = min(a[3], b[3]) - max(a[1], b[1])
        # A line of text is taller than its letters, so boxes may touch by a little.
        if across > 1 and along > 0.3 * min(a[3] - a[1], b[3] - b[1]):
            found.append((i, j))
    return found


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium executable")
def test_browser_shows_it_on_a_page_and_on_a_phone(page: str, tmp_path: Path) -> None:
    _, noise = browse(page, tmp_path / "plain")
    assert noise == []
    desk, phone = probe(page, 1300, tmp_path / "desk"), probe(page, 390, tmp_path / "phone")
    for found, unseen in ((desk, "sketch phone"), (phone, "sketch wide")):
        assert (found["over"], found["wide"]) == (0, 0)
        assert unseen not in found["sketches"]
        assert found["nav"]
        assert found["details"]
        assert found["times"] == sorted(found["times"], reverse=True)
        assert len(set(found["times"])) > 20
        assert len(found["labels"]) == 3
        for boxes in found["labels"]:
            assert len(boxes) > 15
            assert overlapping(boxes) == []
    assert len(desk["sketches"]) == len(phone["sketches"])
    assert any(phone["tables"])  # a table too wide for a phone scrolls in its own region


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium executable")
def test_print_has_all_of_it_and_nothing_to_click(page: str, tmp_path: Path) -> None:
    """The rules for print, held to a screen as wide as the text of an A4 page."""
    assert page.count("@media print") == 2
    printed = probe(page.replace("@media print", "@media all"), 695, tmp_path / "print")
    assert printed["over"] == 0
    assert not printed["nav"]
    assert not printed["details"]
    assert "sketch phone" not in printed["sketches"]
    assert not any(printed["tables"])  # nothing is cut off: paper does not scroll
