"""What a sweep adds to the report, against what can be counted by hand: cells, shares, order."""

import itertools
import math
import random
import re
from typing import Any

import numpy as np
import pytest
from report_cases import Parsed, make_results

from bertvision.report.page import render_run
from bertvision.report.results import View, check
from bertvision.report.space import heat_maps, score_by_value, shares

Rows = list[tuple[dict[str, Any], float | None]]
SPACE: dict[str, Any] = {
    "lr": {"low": 1e-4, "high": 1e-2, "log": True},
    "size": {"choices": [64, 128, 386]},
    "skip": {"choices": [True, False]},
}


def drawn(count: int = 40) -> Rows:
    """A search in which the rate decides most, the size a little and `skip` nothing; trial 7 diverged."""
    draw, rows = random.Random(1), Rows()
    for i in range(count):
        values: dict[str, Any] = {"lr": 10 ** draw.uniform(-4, -2), "size": draw.choice([64, 128, 386])}
        values["skip"] = draw.random() < 0.5
        score = 70 - 6 * (math.log10(values["lr"]) + 3) ** 2 + math.log2(values["size"]) + draw.gauss(0, 0.1)
        rows.append((values, None if i == 7 else score))
    return rows


def sweep_of(
    rows: Rows, space: dict[str, Any] = SPACE, mode: str = "trials", heads: Any = ("adapter",)
) -> View:
    """Every fourth was ended early; those without a score diverged."""
    results = make_results("span", test=False)
    metric = results["task"]["metric"]
    results["systems"] = [
        {
            "name": f"{i:04d}", "kind": "head", "label": f"adapter:<{i}>", "values": values,
            "epochs": 1 if i % 4 == 3 else 3,
            "status": "diverged" if score is None else "pruned" if i % 4 == 3 else "done",
            "scores": {"dev": {metric: {"mean": score}}}, "parameters": 100, "seconds": 20.0, "best": False,
        }
        for i, (values, score) in enumerate(rows)
    ]  # fmt: skip
    if done := [one for one in results["systems"] if one["status"] == "done"]:
        max(done, key=lambda one: one["scores"]["dev"][metric]["mean"])["best"] = True
    results["sweep"] = {"mode": mode, "heads": list(heads), "space": space, "search": {"trials": len(rows)}}
    return View(check(results))


def texts(view: View, title: str) -> list[str]:
    """What is written in the map with this title."""
    (svg,) = (one.svg for one in heat_maps(view) if one.title == title)
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def test_a_cell_shows_its_best_score_and_how_many_trials_it_has() -> None:
    rows, wanted = drawn(), []
    for size in (64, 128, 386):
        for low, high in itertools.pairwise(np.geomspace(1e-4, 1e-2, 7).tolist()):
            own = [s for v, s in rows if s is not None and v["size"] == size and low <= v["lr"] < high]
            wanted += [f"{max(own):.1f}", str(len(own))] if own else []
    shown = [text for text in texts(sweep_of(rows), "lr and size") if re.fullmatch(r"[\d.]+", text)]
    for label in ("64", "128", "386"):
        shown.remove(label)
    assert sorted(shown) == sorted(wanted)


def test_a_grid_has_a_column_for_each_value_and_no_counts() -> None:
    values = [{"lr": lr, "size": size} for lr in (1e-3, 1e-2) for size in (64, 386)]
    space = {"lr": {"choices": [1e-3, 1e-2]}, "size": {"choices": [64, 386]}}
    view = sweep_of([(v, 10.0 * i + 5) for i, v in enumerate(values)], space, "grid")
    shown = texts(view, "lr and size")
    assert sorted(text for text in shown if text.endswith(".0")) == ["15.0", "25.0", "35.0", "5.0"]
    assert {"0.001", "0.01", "64", "386"} <= set(shown)
    assert "best of 4 heads" in render_run(view.results)


def test_shares_are_those_of_an_analysis_of_variance() -> None:
    rows = drawn()
    found = shares(sweep_of(rows))
    scores = np.array([score for _, score in rows if score is not None])
    for name in ("size", "skip"):
        values = np.array([v[name] for v, score in rows if score is not None])
        groups = [scores[values == value] for value in np.unique(values)]
        between = sum(len(group) * (group.mean() - scores.mean()) ** 2 for group in groups)
        mean_within = (((scores - scores.mean()) ** 2).sum() - between) / (len(scores) - len(groups))
        assert found[name] == pytest.approx(max(0, 1 - mean_within / scores.var(ddof=1)))
    assert list(found) == ["lr", "size", "skip"]
    titles = [one.title for one in heat_maps(sweep_of(rows))]
    assert titles == ["lr and size", "lr and skip", "size and skip"]


def test_shares_of_noise_are_near_zero_and_of_single_trials_unknown() -> None:
    """Columns of one trial each leave no spread inside, whatever the scores: that is no finding."""
    single = sweep_of(drawn(6), {"lr": SPACE["lr"]})
    assert shares(single) == {"lr": None}
    assert "of the spread of scores" not in render_run(single.results).lower()
    draw, found, space = random.Random(5), [], {"size": {"choices": list(range(8))}}
    for _ in range(100):
        noise: Rows = [({"size": draw.randrange(8)}, draw.gauss(0, 1)) for _ in range(12)]
        found.append(shares(sweep_of(noise, space))["size"])
    known = [share for share in found if share is not None]
    assert min(known) == 0
    assert sum(known) / len(known) < 0.3, "unadjusted it is about a half"


def test_one_value_alone_has_a_curve_and_no_map() -> None:
    view = sweep_of(drawn(), {"lr": SPACE["lr"]})
    assert heat_maps(view) == []
    assert len(score_by_value(view, "lr")) == 1
    assert score_by_value(view, "skip") == [], "it is no number"
    assert 'id="maps"' not in render_run(view.results)
    nothing = sweep_of([(drawn(1)[0][0], None)])
    assert "None of 1 trials" in render_run(nothing.results)
    assert heat_maps(nothing) == []


def test_heads_that_lack_a_value_are_left_out_of_its_maps() -> None:
    rows: Rows = [
        ({"head": "learned_pooling", "lr": v["lr"]} if i % 2 else {"head": "adapter", **v}, score)
        for i, (v, score) in enumerate(drawn())
    ]
    view = sweep_of(rows, heads=("adapter", "learned_pooling"))
    assert any("lr" in one.title for one in heat_maps(view))
    counts = [int(t) for t in texts(view, "size and skip") if re.fullmatch(r"\d", t)]
    assert sum(counts) == 20
    assert "learned_pooling" in render_run(view.results)


def test_the_page_lists_the_best_first_with_what_was_varied() -> None:
    rows, view = drawn(), sweep_of(drawn())
    page = render_run(view.results)
    best = view.head
    assert best is not None
    assert f"{view.mean_text(best)} on dev: adapter:&lt;{int(best['name'])}&gt;." in page
    (titles, *found) = [row for row in Parsed(page).rows if len(row) > 6][: len(rows) + 1]
    titles = [title.strip() for title in titles]
    assert (titles[2:5], titles[-2:]) == (["lr", "size", "skip"], ["epochs", "status"])
    assert len(found) == 40
    scores = [float(row[1]) for row in found[:-1]]
    assert scores == sorted(scores, reverse=True)
    assert found[-1][0].splitlines()[0] == "adapter:<7>"
    assert found[-1][-1].strip() == "diverged"
    assert not any("snapshot" in title for title in titles), "columns without a number are left out"
