"""The report of labels and scores: what is collected, what the page says, that nothing is loaded or let through."""

import copy
import html
import json
import math
import random
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import CHROMIUM, browse
from text_cases import make_texts
from text_report_cases import made_up_answers, make_entry, make_run, make_split

from bertvision import console
from bertvision.cli import run as cli_run
from bertvision.errors import ArtifactError
from bertvision.report import text_figures, text_rows, text_words
from bertvision.report.drawing import COSTS
from bertvision.report.text_details import details, disagreements
from bertvision.report.text_html import render_texts, summary_texts, write_text_report
from bertvision.report.text_results import compare_texts, score_members
from bertvision.report.text_schema import validate_texts
from bertvision.tasks.text import paired_difference, score_texts, task_of, truth

RUNS = {"two": 2, "five": 5, "score": 0}


@pytest.fixture(scope="module")
def runs() -> dict[str, dict[str, Any]]:
    """As results.json gives them back; strict JSON knows no NaN."""
    made = {name: make_run(classes=classes, examples=150) for name, classes in RUNS.items()}
    return {name: json.loads(json.dumps(results, allow_nan=False)) for name, results in made.items()}


@pytest.fixture(scope="module")
def pages(runs: dict[str, dict[str, Any]]) -> dict[str, "Page"]:
    return {name: Page(render_texts(results)) for name, results in runs.items()}


class Page(HTMLParser):
    """Rows of tables, text, and everything that could load or run something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.source, self.rows, self.text = text, [], ""
        self.attributes: list[tuple[str, str, str]] = []
        self.tags: list[str] = []
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
        self._cell = self._cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._cell:
            self.rows[-1][-1] += data + "\n"


# ------------------------------------------------------------------------------------------ collecting


def test_means_spread_and_seeds() -> None:
    splits = {name: make_split(make_texts(i, examples=80)) for i, name in enumerate(("train", "dev"))}
    entry = make_entry("head", "head", splits, skill=0.8, seeds=3)
    told = entry.scores["dev"].as_dict(entry.seeds)
    each = [score_texts(answers, splits["dev"].texts) for answers in entry.scores["dev"].answers]
    for key, mean in told["mean"].items():
        values = [member[key] for member in each]
        assert mean == pytest.approx(sum(values) / 3)
        spread = math.sqrt(sum((v - mean) ** 2 for v in values) / 2)
        assert told["spread"][key] == pytest.approx(spread)
    assert [row["seed"] for row in told["per_seed"]] == [0, 1, 2]
    assert told["per_seed"][1]["mcc"] == each[1]["mcc"]
    accuracies = [member["accuracy"] for member in each]
    assert entry.shipped == accuracies.index(max(accuracies))


def test_a_comparison_is_paired_over_all_members() -> None:
    data = make_texts(1, examples=200)
    task = task_of(data)
    ours = score_members([made_up_answers(i, data, task, skill=0.9) for i in range(3)], data)
    theirs = score_members([made_up_answers(9, data, task, skill=0.5)], data)
    told = compare_texts(ours, theirs, data)
    found = paired_difference(
        task, truth(data), [a.values for a in ours.answers], [a.values for a in theirs.answers]
    )
    assert (told["difference"], told["low"], told["high"]) == (found.difference, found.low, found.high)
    assert found.low > 0
    assert isinstance(told["mcnemar_p"], float)
    assert told["mcnemar_p"] < 0.05


def test_baselines_are_what_the_training_set_alone_can_say(runs: dict[str, dict[str, Any]]) -> None:
    for name, classes in RUNS.items():
        trivial = runs[name]["systems"][-1]
        assert trivial["kind"] == "baseline"
        train, test = (make_texts(i, examples=150, classes=classes) for i in (0, 2))
        right, scores = truth(test), trivial["scores"]["test"]["mean"]
        if classes:
            often = int(np.bincount(truth(train)).argmax())
            assert scores["accuracy"] == pytest.approx((right == often).mean())
            assert scores["mcc"] == 0
        else:
            assert scores["pearson"] == 0
            assert scores["mse"] == pytest.approx(((right - truth(train).mean()) ** 2).mean())


def test_the_head_is_chosen_on_dev_and_judged_on_test(runs: dict[str, dict[str, Any]]) -> None:
    results = runs["five"]
    heads = [s for s in results["systems"] if s["kind"] == "head"]
    best = max(heads, key=lambda s: s["scores"]["dev"]["mean"]["accuracy"])
    assert [s["best"] for s in heads] == [s is best for s in heads]
    view = text_rows.overview(validate_texts(results))
    assert view.split == "test"
    assert view.head is not None
    assert view.head["name"] == best["name"]
    assert best["versus"]["split"] == "test"
    assert sorted(results["details"]) == sorted([best["name"], "snapshot-1.0"])


def test_the_best_control_is_chosen_on_dev(runs: dict[str, dict[str, Any]]) -> None:
    results = copy.deepcopy(runs["five"])
    control = next(s for s in results["systems"] if s["kind"] == "control")
    lucky = copy.deepcopy(control) | {"name": "lucky", "label": "lucky"}
    results["systems"].append(lucky)
    for one, dev, test in ((control, 0.5, 0.25), (lucky, 0.4, 0.99)):
        one["scores"]["dev"]["mean"]["accuracy"], one["scores"]["test"]["mean"]["accuracy"] = dev, test
    assert "The best control on dev (cls linear) reaches 0.250 on test, " in render_texts(results)


def test_details_add_up() -> None:
    data = make_texts(3, examples=90)
    answers = made_up_answers(3, data, task_of(data), skill=0.6)
    told = details(answers, data, 7)
    assert np.trace(told["confusion"]) == (answers.values == truth(data)).sum()
    assert sum(part["count"] for part in told["calibration"]) == 90
    scores = make_texts(3, examples=2000, classes=0)
    guessed = made_up_answers(3, scores, task_of(scores), skill=0.6)
    told = details(guessed, scores, None)
    assert sum(told["errors"]["counts"]) == 2000
    assert len(told["points"]) == 1500
    pairs = set(zip(truth(scores).tolist(), np.round(guessed.values, 4).tolist(), strict=True))
    assert all(tuple(point) in pairs for point in told["points"])


@pytest.mark.parametrize("classes", [3, 0])
def test_disagreements_are_drawn_whoever_is_right(classes: int) -> None:
    data = make_texts(5, examples=300, classes=classes)
    task = task_of(data)
    ours, theirs = (made_up_answers(i, data, task, skill=0.6) for i in (1, 2))
    shown = disagreements(ours, theirs, data, random.Random(0))
    assert len(shown) == 12
    by_id = {e.id: i for i, e in enumerate(data.examples)}
    gaps = np.abs(ours.values - theirs.values)
    for row in shown:
        i = by_id[row["id"]]
        assert row["head"] != row["snapshot"]
        if classes:
            assert row["truth"] == data.classes[int(truth(data)[i])]
            assert row["head"] == ours.predictions[row["id"]]
        else:
            assert gaps[i] >= np.sort(gaps)[-30]
    assert disagreements(ours, ours, data, random.Random(0)) == []


# --------------------------------------------------------------------------------------------- the page


@pytest.mark.parametrize("name", RUNS)
def test_every_system_stands_in_the_table(
    name: str, runs: dict[str, dict[str, Any]], pages: dict[str, Page]
) -> None:
    results, metric = runs[name], runs[name]["task"]["metric"]
    for system in results["systems"]:
        row = next(r for r in pages[name].rows if r and r[0].startswith(system["label"] + "\n"))
        assert f"{system['scores']['test']['mean'][metric]:.3f}" in row[1]
        if system["versus"] is not None:
            change = text_words.change(system["versus"]["difference"])
            assert any(change in cell.splitlines() for cell in row)


@pytest.mark.parametrize("name", RUNS)
def test_nothing_is_loaded_and_no_text_becomes_markup(name: str, runs: dict[str, dict[str, Any]]) -> None:
    attack = "<img src=x onerror=alert(1)>"
    results = json.loads(json.dumps(runs[name]))
    results["examples"][0]["first"] = attack
    results["command"] = results["encoder"]["name"] = attack
    for system in results["systems"]:
        system["label"] += attack
    if results["task"]["classes"]:
        results["task"]["classes"][0] = attack
    page = Page(render_texts(results))
    assert "img" not in page.tags
    assert attack in page.text
    loads = [(t, n, v) for t, n, v in page.attributes if n in ("src", "href", "xlink:href") and v[:1] != "#"]
    assert loads == [("link", "href", "data:,")]
    assert not [n for _, n, _ in page.attributes if n.startswith("on")]


def test_what_belongs_to_labels_and_what_to_scores(pages: dict[str, Page]) -> None:
    for name in ("two", "five"):
        assert "Confusions of" in pages[name].text
        assert "Calibration" in pages[name].text
        assert "Prediction errors" not in pages[name].text
    assert "Predictions of" in pages["score"].text
    assert "Prediction errors" in pages["score"].text
    assert "Confusions" not in pages["score"].text
    assert "F1 is that of the class “green”" in pages["two"].text
    assert "F1 is the mean over the classes" in pages["five"].text


def test_the_matrix_shows_its_counts(runs: dict[str, dict[str, Any]]) -> None:
    results = validate_texts(runs["five"])
    head = text_rows.overview(results).head
    assert head is not None
    drawn = text_figures.confusion(results, head)
    assert drawn is not None
    said = [text.strip() for text in Page(drawn).text.splitlines()]
    for row in results["details"][head["name"]]["confusion"]:
        assert {f"{count:,}" for count in row} <= set(said)


def test_the_same_results_give_the_same_page(
    runs: dict[str, dict[str, Any]], pages: dict[str, Page], tmp_path: Path
) -> None:
    write_text_report(runs["two"], tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == pages["two"].source


GAPS = ["details", "examples", "curves", "layer_weights", "fit", "finetune", "command"]


@pytest.mark.parametrize("name", RUNS)
def test_gaps_are_survived(name: str, runs: dict[str, dict[str, Any]]) -> None:
    page = Page(render_texts({key: value for key, value in runs[name].items() if key not in GAPS}))
    assert page.source.rstrip().endswith("</html>")
    assert "figure" in page.tags  # the comparison is drawn from the systems alone
    assert "Confusions of" not in page.text


@pytest.mark.parametrize("cost", COSTS)
def test_heads_of_one_price_are_drawn_without_a_warning(runs: dict[str, dict[str, Any]], cost: str) -> None:
    """A log axis has nothing to scale itself by; warnings are errors here."""
    results = copy.deepcopy(runs["two"])
    for system in results["systems"]:
        system[cost] = 1538.0 if system["kind"] in ("head", "control") else None
    drawn = text_figures.score_against_cost(results, cost)
    assert drawn is not None
    assert "tenney small" in drawn


def test_without_a_snapshot_nothing_is_claimed_against_one() -> None:
    results = make_run(classes=3, examples=60, test=False, snapshot=False)
    assert all(system["versus"] is None for system in results["systems"])
    assert "no snapshot to compare it with" in summary_texts(results)
    assert "chosen on this same part" in render_texts(results)


def test_a_sweep_brings_its_heat_map(runs: dict[str, dict[str, Any]], pages: dict[str, Page]) -> None:
    trials = [
        {"number": i, "values": {"lr": lr, "size": size}, "score": 0.5 + i / 100, "status": "done"}
        for i, (lr, size) in enumerate((lr, size) for lr in (1e-3, 1e-2) for size in (64, 386))
    ]
    space = {"lr": {"choices": [1e-3, 1e-2]}, "size": {"choices": [64, 386]}}
    sweep = {
        "metric": "accuracy",
        "percent": False,
        "mode": "grid",
        "heads": ["adapter_pooler"],
        "space": space,
        "trials": trials,
    }
    page = Page(render_texts(runs["two"] | {"sweep": sweep}))
    assert "What was tried" in page.text
    assert "0.530" in page.text
    assert page.tags.count("svg") == pages["two"].tags.count("svg") + 1
    assert "What was tried" not in pages["two"].text


def test_the_terminal_tells_snapshots_apart(
    runs: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(console, "table", lambda _title, _columns, rows: told.extend(row[0] for row in rows))
    results = copy.deepcopy(runs["two"])
    early = [copy.deepcopy(s) for s in results["systems"] if s["kind"] == "head"]
    results["systems"] += [s | {"name": f"early/{s['name']}", "snapshot": "0.5"} for s in early]
    cli_run._tell_texts(results, "test")
    assert {"adapter pooler @ 0.5", "adapter pooler @ 1.0"} <= set(told)


def test_names_of_rows_stand_on_a_ground_of_their_own(runs: dict[str, dict[str, Any]]) -> None:
    """Before each name a patch in the colour of the paper: no line is seen through it."""
    svg = text_figures.differences(validate_texts(runs["two"]))
    assert svg is not None
    for name in ("cls linear", "tenney small", "adapter pooler"):
        before = svg[: svg.index(f">{name}</text>")]
        assert "var(--fig-paper" in before[before.rindex("<path") :]


FRAMES = """<!doctype html><body><iframe id="f" style="height: 900px; border: 0"></iframe><script>
const frame = document.getElementById("f");
frame.style.width = "WIDTHpx";
frame.srcdoc = PAGE;
frame.onload = () => {
  const page = frame.contentDocument, over = (e) => e.scrollWidth - e.clientWidth;
  document.body.textContent = JSON.stringify(
    {page: over(page.documentElement), table: over(page.querySelector("#scores .scroll"))});
};
</script>"""


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium executable")
@pytest.mark.parametrize("width", [1200, 400])
def test_the_table_fits_a_desk_and_scrolls_on_a_phone(
    runs: dict[str, dict[str, Any]], tmp_path: Path, width: int
) -> None:
    results = copy.deepcopy(runs["two"])
    for system in results["systems"]:
        system |= {
            "parameters": 109_482_240,
            "total": 219_897_192,
            "flops_per_token": 829_904,
            "seconds": 3599.0,
        }
    quoted = json.dumps(render_texts(results)).replace("</", "<\\/").replace("<!--", "<\\!--")
    dom, _ = browse(FRAMES.replace("WIDTH", str(width)).replace("PAGE", quoted, 1), tmp_path / "page")
    found = json.loads(re.search(r"\{.*\}", html.unescape(dom))[0])  # type: ignore[index]
    assert found["page"] == 0
    assert (found["table"] > 0) == (width == 400)


def test_very_many_classes_have_no_matrix(runs: dict[str, dict[str, Any]]) -> None:
    results = json.loads(json.dumps(runs["five"]))
    results["task"]["classes"] = [f"class {i}" for i in range(150)]
    for told in results["details"].values():
        told["confusion"] = np.eye(150, dtype=int).tolist()
    page = render_texts(results)
    assert "Confusions of" not in page
    assert "Calibration" in page


def test_what_is_missing_is_named(runs: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    broken = json.loads(json.dumps(runs["two"]))
    del broken["systems"][1]["scores"]["test"]["mean"]["accuracy"]
    with pytest.raises(ArtifactError, match=r"systems\[1\]\.scores\.test\.mean\.accuracy is missing"):
        validate_texts(broken)
    with pytest.raises(ArtifactError, match="key task is missing"):
        validate_texts({key: value for key, value in runs["two"].items() if key != "task"})
    with pytest.raises(ArtifactError, match="key schema is 2"):
        validate_texts(runs["two"] | {"schema": 2})
    with pytest.raises(ArtifactError, match=r"key systems\[0\] should be an object"):
        validate_texts(runs["two"] | {"systems": [3]})
    with pytest.raises(ArtifactError, match="key systems is missing"):
        write_text_report({k: v for k, v in runs["two"].items() if k != "systems"}, tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------------------------------- words


def versus(difference: float, low: float, high: float) -> dict[str, Any]:
    scores = {"test": {"mean": {"mcc": 0.5}}}
    told = {"split": "test", "difference": difference, "low": low, "high": high}
    return {"label": "head", "scores": scores, "versus": told}


def test_headlines() -> None:
    def said(*numbers: float) -> str:
        return text_words.headline(versus(*numbers), {"label": "s"}, split="test", metric="mcc")

    assert said(0.02, 0.01, 0.03).startswith("head gains +0.020 MCC over its snapshot on test")
    assert said(-0.02, -0.03, -0.01).startswith("head loses 0.020 MCC against its snapshot")
    assert "contains zero" in said(0.002, -0.01, 0.02)
    assert "+0.0002 … +0.0200" in said(0.01, 0.0002, 0.02)  # an end near zero keeps its sign
    assert text_words.number(float("nan")) == "–"
    assert text_words.number(12345.678) == "12345.7"
