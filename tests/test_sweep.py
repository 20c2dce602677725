"""Sweeps with real fits: the grid is a fit, a trial is a fit, both ways agree; killed, continued, shared, reported.

Below: what a sweep varies, and what it adds to the report against what can be counted by hand.
"""

import functools
import itertools
import json
import math
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runner import answered, bertvision, tree
from killing import finish, kill_when, start
from report_cases import Parsed, make_results

from bertvision.cli import find_command, main
from bertvision.cli.flags import parse
from bertvision.errors import ConfigError
from bertvision.heads import parse_head
from bertvision.model.trained import read_trained
from bertvision.report.page import render_run
from bertvision.report.results import View, check
from bertvision.report.space import heat_maps, score_by_value, shares
from bertvision.train import search
from bertvision.train.search import Trial
from bertvision.train.space import Range, read_space

SMALL = ("--max-seq-length", "64", "--max-query-length", "16", "--doc-stride", "24", "--batch-size", "8")
VARY = ("--heads", "adapter", "--vary", "size=2,4", "lr=1e-3,3e-2")


@pytest.fixture
def words(tiny_bert: Path, toy_squad: Path) -> tuple[str, ...]:
    data = ("--train", str(toy_squad), "--dev", str(toy_squad))
    return ("sweep", str(tiny_bert), *data, *SMALL, "--epochs", "2")


def swept(*words: str | Path) -> list[dict[str, Any]]:
    return rows_of(json.loads(answered(*words, "--json").out))


def read(folder: Path) -> list[dict[str, Any]]:
    return rows_of(json.loads((folder / "results.json").read_text()))


def rows_of(results: dict[str, Any]) -> list[dict[str, Any]]:
    """The candidates without what depends on how long things took."""
    rows = []
    for system in results["systems"]:
        (score,) = system["scores"]["dev"].values()
        kept = ("name", "label", "values", "status", "history", "epochs", "folder", "parameters", "best")
        rows.append({key: system[key] for key in kept} | {"score": score["mean"], "seeds": score["per_seed"]})
    return rows


def best_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    (best,) = [row for row in rows if row["best"]]
    return best


# ---- the grid


def test_a_grid_is_a_fit_of_every_combination(
    words: tuple[str, ...], tmp_path: Path, tiny_bert: Path, toy_squad: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    grid = swept(*words, "--out", tmp_path / "grid", *VARY, "--grid", "--seeds", "0,1")
    heads = [f"adapter:size={size},lr={lr}" for size in (2, 4) for lr in ("0.001", "0.03")]
    assert [row["label"] for row in grid] == heads
    fit = json.loads(
        answered(
            "fit", tiny_bert, "--train", toy_squad, "--dev", toy_squad, *SMALL, "--epochs", "2", "--seeds", "0,1",
            "--keep", "best", "--heads", *heads, "--out", tmp_path / "fit", "--json",
        ).out
    )  # fmt: skip
    reached = {row["head"]: row["scores"]["tuned_f1"] for row in fit["heads"]}
    for row, size, lr in zip(grid, (2, 2, 4, 4), ("0.001", "0.03") * 2, strict=True):
        scores = [reached[f"adapter-{size}-lr={lr}.seed{seed}"] for seed in (0, 1)]
        assert list(row["seeds"].values()) == pytest.approx(scores)
        assert row["score"] == pytest.approx(sum(scores) / 2)
    assert best_of(grid) == max(grid, key=lambda row: row["score"])
    assert read_trained(tmp_path / "grid" / best_of(grid)["folder"]).heads
    page = (tmp_path / "grid" / "report.html").read_text()
    assert page.count("<svg") >= 2
    answered("report", tmp_path / "grid")
    assert (tmp_path / "grid" / "report.html").read_text() == page


def test_a_diverged_head_is_a_row_of_the_table(words: tuple[str, ...], tmp_path: Path) -> None:
    vary = ("--heads", "adapter:size=4", "--vary", "lr=1e-3,1e30")
    for grid in (["--grid"], ["--trials", "6", "--startup", "6"]):
        found = swept(*words, "--out", tmp_path / f"{len(grid)}", *vary, *grid)
        status = {row["values"]["lr"]: (row["status"], row["score"]) for row in found}
        assert status[1e30] == ("diverged", None)
        assert status[1e-3][0] == "done"
        assert best_of(found)["values"]["lr"] == 1e-3


# ---- trials


def test_trials_score_what_the_grid_scores(words: tuple[str, ...], tmp_path: Path) -> None:
    """The same head, rate and seed: alone in a trial as among others in one pass."""
    grid = swept(*words, "--out", tmp_path / "grid", *VARY, "--grid", "--states.source", "live")
    scores = {row["label"]: row["history"] for row in grid}
    search = ("--trials", "6", "--pruner", "none", "--states.source", "live")
    trials = swept(*words, "--out", tmp_path / "trials", *VARY, *search)
    assert len(trials) == 6
    for row in trials:
        assert row["history"] == pytest.approx(scores[row["label"]], abs=1e-4)
        assert row["status"] == "done"
    (kept,) = (tmp_path / "trials" / "trials").glob("*/*.seed0")
    assert kept.parent == tmp_path / "trials" / best_of(trials)["folder"], "heads of the best alone"
    assert read_trained(kept).heads[0].num_parameters == best_of(trials)["parameters"]


def test_a_pruned_trial_ends_its_fit(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends_odd_trials(self: Trial, epoch: int, score: float) -> bool:
        self._stored.report(score, epoch)
        self.pruned = self.number % 2 == 1
        return self.pruned

    monkeypatch.setattr(Trial, "report", ends_odd_trials)
    found = swept(*words, "--out", tmp_path, *VARY, "--trials", "4", "--keep-heads", "--pruner", "none")
    assert [row["status"] for row in found] == ["done", "pruned", "done", "pruned"]
    assert [row["epochs"] for row in found] == [2, 1, 2, 1]
    assert best_of(found)["name"] in ("0000", "0002")
    assert len(list((tmp_path / "trials").glob("*/*.seed0"))) == 4, "--keep-heads keeps all"


def quick_command(words: list[str]) -> None:
    """The command with a short wait for trials that were left behind."""
    search.HEARTBEAT, search.GRACE = 1, 2
    main(words)


@pytest.mark.slow
def test_killed_and_continued_gives_the_same_trials(words: tuple[str, ...], tmp_path: Path) -> None:
    flags = "--trials 5 --startup 2 --checkpoint-seconds 0 --states.source live"
    whole, out = tmp_path / "whole", tmp_path / "out"
    command = [*words, *VARY, *flags.split()]
    assert finish([*command, "--out", str(whole)], tmp_path / "log") == 0
    again = functools.partial(quick_command, [*command, "--out", str(out)])
    moments = [
        lambda: (out / "trials" / "0001" / "checkpoint.safetensors").exists(),
        lambda: (out / "trials" / "0003" / "stage.json").exists(),
    ]
    for ready in moments:
        assert kill_when(again, tmp_path / "killed", ready) == -9
    assert not (out / "results.json").exists()
    assert finish(again, tmp_path / "again") == 0
    assert read(out) == read(whole)
    before = tree(out / "trials")
    assert finish(again, tmp_path / "again") == 0
    assert tree(out / "trials") == before


def test_two_commands_share_a_study(words: tuple[str, ...], tmp_path: Path) -> None:
    command = [*words, *VARY, "--trials", "6", "--out", str(tmp_path / "out")]
    processes = [start(command, tmp_path / f"log{i}") for i in range(2)]
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0], (tmp_path / "log0").read_text()
    found = swept(*command)
    assert len(found) == 6
    assert {row["status"] for row in found} <= {"done", "pruned"}


def test_labels_are_searched_by_their_own_metric(tiny_bert: Path, tmp_path: Path) -> None:
    """Single texts of two classes: label heads, on [CLS] states alone, scored between 0 and 1."""
    table = tmp_path / "texts.csv"
    things = ["mill", "bridge", "tower", "barn", "chapel", "harbour", "school", "market"] * 3
    rows = [f"the {t} was {'cold,bad' if i % 2 else 'long,good'}" for i, t in enumerate(things)]
    table.write_text("text,label\n" + "\n".join(rows) + "\n")
    flags = ("--max-seq-length", "32", "--epochs", "2")
    command = ("sweep", tiny_bert, "--train", table, "--dev", table, *flags)
    vary = ("--heads", "cls_linear", "tenney_small", "--vary", "lr=1e-3..1e-1:log")
    found = swept(*command, *vary, "--out", tmp_path / "out", "--trials", "4")
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert list(results["metrics"]) == ["accuracy"]
    assert all(0 <= row["score"] <= 1 for row in found)
    assert {row["values"]["head"] for row in found} <= {"cls_linear", "tenney_small"}


# ---- the command line


def test_a_recipe_has_a_space_and_the_best_is_printed(words: tuple[str, ...], tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("space:\n  lr: [1e-3, 1e-2]\nfit: {heads: [last_state], epochs: 1}\n")
    args, _ = parse(*find_command(["sweep", "--config", str(recipe), "--vary", "clip=0,1"]))
    assert args.space == {"lr": ["1e-3", "1e-2"]}
    command = (*words, "--config", recipe, "--out", tmp_path / "out", "--vary", "clip=0,1", "--grid")
    out = answered(*command).out.splitlines()
    assert out[0].split()[:4] == ["head", "trial", "dev", "tuned"]
    assert out[-2].startswith("4 heads: 4 done; ")
    assert out[-1].startswith("best: --heads last_state:lr=")
    assert {row["values"]["lr"] for row in read(tmp_path / "out")} == {1e-3, 1e-2}


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ((), "nothing is varied"),
        (("--vary", "lr=1e-4..1e-2:log", "--grid"), "space lr: a grid cannot take every number"),
        (("--vary", "lr=1e-3,1e-2", "--dev", ""), "--dev is missing"),
        (("--vary", "batch_size=8,16", "--grid"), "leave batch_size out of the space"),
    ],
)
def test_mistakes_end_in_one_sentence_and_leave_nothing(
    words: tuple[str, ...], tmp_path: Path, flags: tuple[str, ...], sentence: str
) -> None:
    outcome = bertvision(*words, "--heads", "last_state", "--out", tmp_path / "out", *flags)
    assert outcome.code == 2
    assert sentence in outcome.err
    assert outcome.err.count("\n") == 1, outcome.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("modes", [(["--grid"], ["--trials", "1"]), (["--trials", "1"], ["--grid"])])
def test_a_folder_holds_one_sweep(
    words: tuple[str, ...], tmp_path: Path, modes: tuple[list[str], ...]
) -> None:
    command = (*words, "--out", tmp_path, "--heads", "last_state", "--vary")
    first, second = modes
    answered(*command, "lr=1e-3,1e-2", *first)
    before = tree(tmp_path)
    for rates, mode, why in (("lr=1e-3,1e-1", first, "other settings"), ("lr=1e-3,1e-2", second, "a sweep")):
        outcome = bertvision(*command, rates, *mode)
        assert outcome.code == 2
        assert why in outcome.err
        assert "--overwrite" in outcome.err
        assert tree(tmp_path) == before, "nothing was touched"
    answered(*command, "lr=1e-3,1e-2", *second, "--overwrite")
    assert (tmp_path / "grid").exists() == ("--grid" in second)
    assert (tmp_path / "study.db").exists() == (tmp_path / "trials").exists() == ("--trials" in second)
    answered(*command, "lr=1e-3,1e-2", *second)


def test_a_flag_says_what_a_recipe_says_and_overrides_it() -> None:
    recipe: dict[str, Any] = {
        "lr": {"low": "1e-4", "high": 1e-2, "log": True},  # YAML reads 1e-4 as a text
        "dropout": {"low": 0, "high": 0.3},
        "size": {"choices": [64, 386]},
        "skip": [True, False],
        "patience": {"low": 1, "high": 4},
    }
    flags = ["lr=1e-4..1e-2:log", "dropout=0..0.3", "size=64,386", "skip=true,false", "patience=1..4"]
    space = read_space(["adapter"], recipe)
    assert space == read_space(["adapter"], {}, flags) == read_space(["adapter"], space.to_mapping())
    ranges = [d for d in space.dimensions.values() if isinstance(d, Range)]
    assert [one.whole for one in ranges] == [False, False, True]
    space = read_space(["adapter"], {"size": [1, 2], "lr": [1e-3, 1e-2]}, ["size=8,16"])
    assert [candidate.head for candidate in space.grid()] == [
        f"adapter:size={size},lr={lr}" for size, lr in itertools.product((8, 16), (0.001, 0.01))
    ]


def test_a_grid_is_every_combination_of_what_each_head_knows() -> None:
    varied: dict[str, Any] = {"size": [4, 8], "lr": [1e-4, 1e-3, 1e-2]}
    found = read_space(["adapter:skip", "learned_pooling"], varied).grid()
    rates = ("0.0001", "0.001", "0.01")
    assert [candidate.head for candidate in found] == [
        *(f"adapter:skip,size={size},lr={lr}" for size, lr in itertools.product((4, 8), rates)),
        *(f"learned_pooling:lr={lr}" for lr in rates),
    ]
    first = parse_head(found[0].head)
    assert (first.config.size, first.config.skip, first.train.lr) == (4, True, 1e-4)
    assert found[0].values == {"head": "adapter:skip", "size": 4, "lr": 1e-4}


def test_values_are_rounded_inside_their_range_and_the_batch_size_belongs_to_the_fit() -> None:
    # Four digits of the last would leave the range.
    drawn = [(Range(4, 64), 12.0), (Range(0.0, 64), 12.34567), (Range(0.12346, 0.12349), 0.123461)]
    rounded = [one.rounded(value) for one, value in drawn]
    assert rounded == [12, 12.35, 0.123461]
    assert list(map(type, rounded)) == [int, float, float]
    space = read_space(["adapter"], {"batch_size": [8, 16], "size": [4]})
    candidate = space.candidate("adapter", {"batch_size": 8, "size": 4})
    assert (candidate.head, candidate.batch_size) == ("adapter:size=4", 8)


@pytest.mark.parametrize(
    ("heads", "flags", "sentence"),
    [
        ("adapter", ["sise=1,2"], "no head of the sweep has an option 'sise': did you mean size"),
        ("adapter", ["size=0.5..64"], "space size: .*whole number"),
        ("adapter", ["lr=1e-2..1e-4"], "space lr: low 0.01 must be a number below high"),
        ("adapter", ["lr=0..1:log"], "log needs a low above 0"),
        ("adapter", ["size=4,4"], "space size names a choice twice"),
        ("adapter", ["size=0,4"], "size of adapter"),
        ("cls_linear", ["lr=1e-3,1e-2"], "use one of"),
    ],
)
def test_mistakes_are_reported_before_any_trial(heads: str, flags: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        read_space([heads], {}, flags)


# ---- the report: cells, shares, order, against what can be counted by hand

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
