"""The report of a sweep against what can be counted by hand: cells, shares, order, and a page that stands alone."""

import itertools
import math
import random
import re
from typing import Any

import numpy as np
import pytest
from report_cases import Parsed

from bertvision.report.sweep import render_sweep
from bertvision.report.sweep_figures import heat_map, heat_maps, score_by_value, shares


def sweep_results(count: int = 40, mode: str = "trials", **changes: Any) -> dict[str, Any]:
    """A search in which the rate decides most, the size a little and `skip` nothing; trial 7 diverged."""
    draw = random.Random(1)
    trials = []
    for i in range(count):
        lr, size, skip = 10 ** draw.uniform(-4, -2), draw.choice([64, 128, 386]), draw.random() < 0.5
        score = 70 - 6 * (math.log10(lr) + 3) ** 2 + math.log2(size) + draw.gauss(0, 0.1)
        early = i % 4 == 3
        trial: dict[str, Any] = {"number": i, "values": {"lr": lr, "size": size, "skip": skip}}
        trial |= {"head": f"adapter:lr={lr:.4g},size={size}", "status": "pruned" if early else "done"}
        trial |= {"score": score, "scores": [score], "history": [score], "epochs": 1 if early else 3}
        trial |= {"seconds": 20.0, "parameters": 100 * size, "folder": f"trials/{i:04d}"}
        trials.append(trial)
    trials[7] = trials[7] | {"status": "diverged", "score": None, "scores": [], "history": [], "epochs": 0}
    done = [trial for trial in trials if trial["status"] == "done"]
    results: dict[str, Any] = {
        "schema": 1, "bertvision": "0", "mode": mode, "task": "span", "metric": "f1", "title": "F1", "percent": True,
        "encoder": {"name": "<tiny>", "fingerprint": "0"},
        "train": {"name": "train", "examples": 1000}, "dev": {"name": "dev", "examples": 100},
        "heads": ["adapter"],
        "space": {"lr": {"low": 1e-4, "high": 1e-2, "log": True}, "size": {"choices": [64, 128, 386]},
                  "skip": {"choices": [True, False]}},
        "fit": {"epochs": 3, "lr": 1e-3, "seeds": [0]}, "search": {"trials": count, "pruner": "median"},
        "trials": trials, "best": max(done, key=lambda trial: trial["score"])["number"],
    }  # fmt: skip
    return results | changes


def texts(svg: str | None) -> list[str]:
    assert svg is not None
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def test_a_cell_shows_its_best_score_and_how_many_trials_it_has() -> None:
    sweep = sweep_results()
    edges = np.geomspace(1e-4, 1e-2, 7)
    wanted = []
    for size in (64, 128, 386):
        for low, high in itertools.pairwise(edges.tolist()):
            scores = [
                trial["score"] for trial in sweep["trials"]
                if trial["score"] is not None and trial["values"]["size"] == size
                and low <= trial["values"]["lr"] < high
            ]  # fmt: skip
            wanted += [f"{max(scores):.1f}", str(len(scores))] if scores else []
    shown = [text for text in texts(heat_map(sweep, "lr", "size")) if re.fullmatch(r"[\d.]+", text)]
    for label in ("64", "128", "386"):
        shown.remove(label)
    assert sorted(shown) == sorted(wanted)


def test_a_grid_has_a_column_for_each_value_and_no_counts() -> None:
    trials = [
        {"number": i, "values": {"lr": lr, "size": size}, "head": "h", "status": "done", "score": 10.0 * i + 5,
         "scores": [], "history": [], "epochs": 1}
        for i, (lr, size) in enumerate([(a, b) for a in (1e-3, 1e-2) for b in (64, 386)])
    ]  # fmt: skip
    space = {"lr": {"low": 1e-3, "high": 1e-2, "points": 2}, "size": {"choices": [64, 386]}}
    sweep = sweep_results(mode="grid", trials=trials, space=space, best=3, search=None)
    shown = texts(heat_map(sweep, "lr", "size"))
    assert [text for text in shown if text.endswith(".0")] == ["5.0", "15.0", "25.0", "35.0"]
    assert {"0.001", "0.01", "64", "386"} <= set(shown)
    assert f"best of {len(trials)} heads" in render_sweep(sweep)


def test_shares_are_those_of_an_analysis_of_variance() -> None:
    sweep = sweep_results()
    kept = [trial for trial in sweep["trials"] if trial["score"] is not None]
    scores = np.array([trial["score"] for trial in kept])
    for name in ("size", "skip"):
        values = np.array([trial["values"][name] for trial in kept])
        between = sum(
            (values == v).sum() * (scores[values == v].mean() - scores.mean()) ** 2 for v in np.unique(values)
        )
        mean_within = (((scores - scores.mean()) ** 2).sum() - between) / (
            len(scores) - len(np.unique(values))
        )
        assert shares(sweep)[name] == pytest.approx(max(0, 1 - mean_within / scores.var(ddof=1)))
    assert list(shares(sweep)) == ["lr", "size", "skip"]
    assert [maps[:2] for maps in heat_maps(sweep)] == [("lr", "size"), ("lr", "skip"), ("size", "skip")]


def test_values_of_one_trial_each_explain_nothing() -> None:
    """Columns of one trial each leave no spread inside, whatever the scores: that is no finding."""
    trials = sweep_results()["trials"][:6]
    space = {"lr": {"low": 1e-4, "high": 1e-2, "log": True}}
    sweep = sweep_results(trials=trials, space=space, best=0)
    assert shares(sweep) == {"lr": None}
    page = render_sweep(sweep)
    assert "of the spread of scores" not in page.lower()
    assert "<h3>lr</h3>" in page, "its curve is still drawn"


def test_shares_of_noise_are_near_zero() -> None:
    draw = random.Random(5)
    found = []
    for _ in range(200):
        sweep = sweep_results(12, space={"size": {"choices": list(range(8))}})
        for trial in sweep["trials"]:
            trial |= {"values": {"size": draw.randrange(8)}, "score": draw.gauss(0, 1)}
        found.append(shares(sweep)["size"])
    known = [share for share in found if share is not None]
    assert min(known) == 0
    assert sum(known) / len(known) < 0.3, "unadjusted it is about a half"


def test_one_value_alone_has_a_curve_and_no_map() -> None:
    sweep = sweep_results(space={"lr": {"low": 1e-4, "high": 1e-2, "log": True}})
    assert heat_maps(sweep) == []
    assert score_by_value(sweep, "lr") is not None
    assert score_by_value(sweep, "skip") is None, "it is no number"
    assert 'id="maps"' not in render_sweep(sweep)


def test_heads_that_lack_a_value_are_left_out_of_its_maps() -> None:
    sweep = sweep_results(heads=["adapter", "learned_pooling"])
    for trial in sweep["trials"]:
        trial["values"] = {"head": "adapter", **trial["values"]}
        if trial["number"] % 2:
            trial["values"] = {"head": "learned_pooling", "lr": trial["values"]["lr"]}
    assert {across for across, _, _ in heat_maps(sweep, most=6)} >= {"lr"}
    counts = [int(t) for t in texts(heat_map(sweep, "size", "skip")) if re.fullmatch(r"\d", t)]
    assert sum(counts) == 20
    assert "learned_pooling" in render_sweep(sweep)


def test_the_page_lists_the_best_first_and_escapes_names() -> None:
    sweep = sweep_results()
    page = render_sweep(sweep)
    best = sweep["trials"][sweep["best"]]
    assert f"F1 {best['score']:.1f} on dev: {best['head']}." in page
    Parsed(page)
    body = page[page.index("<tbody>") : page.index("</tbody>")]
    rows = re.findall(
        r'<tr class="(best)?"><th scope="row"><b>(\d+)</b></th>\s*<td[^>]* data-value="([^"]*)"', body
    )
    assert len(rows) == 40
    assert [number for best, number, _ in rows if best] == [str(sweep["best"])]
    scores = [float(value) for _, _, value in rows if value]
    assert scores == sorted(scores, reverse=True)
    assert rows[-1][1:] == ("7", "")
    assert "&lt;tiny&gt;" in page
    assert "<tiny>" not in page
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", page), "nothing is fetched"
    assert render_sweep(sweep) == page, "the same bytes for the same results"


def test_a_search_that_found_nothing_has_a_page() -> None:
    trials = [sweep_results()["trials"][7]]
    assert "<svg" not in render_sweep(sweep_results(trials=trials, best=None))


def test_scores_between_0_and_1_have_three_digits() -> None:
    sweep = sweep_results(percent=False, title="accuracy")
    for trial in sweep["trials"]:
        trial["score"] = None if trial["score"] is None else trial["score"] / 100
    best = sweep["trials"][sweep["best"]]
    assert f"accuracy {best['score']:.3f} on dev" in render_sweep(sweep)
