"""Sweeps with real fits: the grid is a fit, a trial is a fit, both ways agree; killed, continued, shared, reported."""

import json
from pathlib import Path
from typing import Any

import pytest
from cli_runner import Outcome, bertvision, tree
from killing import finish, kill_when, start

from bertvision.cli.flags import parse
from bertvision.train import sweep as sweep_module
from bertvision.train.trained import read_trained

SMALL = ("--max-seq-length", "64", "--max-query-length", "16", "--doc-stride", "24", "--batch-size", "8")
VARY = ("--heads", "adapter", "--vary", "size=2,4", "lr=1e-3,3e-2")


@pytest.fixture
def words(tiny_bert: Path, toy_squad: Path) -> tuple[str, ...]:
    data = ("--train", str(toy_squad), "--dev", str(toy_squad))
    return ("sweep", str(tiny_bert), *data, *SMALL, "--epochs", "2")


def answered(*words: str | Path) -> Outcome:
    outcome = bertvision(*words)
    assert outcome.code == 0, outcome.err
    return outcome


def swept(*words: str | Path) -> dict[str, Any]:
    return json.loads(answered(*words, "--json").out)


def told(results: dict[str, Any]) -> list[Any]:
    """What does not depend on how long things took."""
    return [
        (t["number"], t["head"], t["values"], t["status"], t["score"], t["history"])
        for t in results["trials"]
    ]


# ---- the grid


def test_a_grid_is_a_fit_of_every_combination(
    words: tuple[str, ...], tmp_path: Path, tiny_bert: Path, toy_squad: Path
) -> None:
    grid = swept(*words, "--out", tmp_path / "grid", *VARY, "--grid", "--seeds", "0,1")
    heads = [f"adapter:size={size},lr={lr}" for size in (2, 4) for lr in ("0.001", "0.03")]
    assert [trial["head"] for trial in grid["trials"]] == heads
    fit = json.loads(
        answered(
            "fit", tiny_bert, "--train", toy_squad, "--dev", toy_squad, *SMALL, "--epochs", "2", "--seeds", "0,1",
            "--keep", "best", "--heads", *heads, "--out", tmp_path / "fit", "--json",
        ).out
    )  # fmt: skip
    reached = {row["head"]: row["scores"]["tuned_f1"] for row in fit["heads"]}
    for trial, size, lr in zip(grid["trials"], (2, 2, 4, 4), ("0.001", "0.03") * 2, strict=True):
        scores = [reached[f"adapter-{size}-lr={lr}.seed{seed}"] for seed in (0, 1)]
        assert trial["scores"] == pytest.approx(scores)
        assert trial["score"] == pytest.approx(sum(scores) / 2)
    best = max(grid["trials"], key=lambda trial: trial["score"])
    assert grid["best"] == best["number"]
    assert (tmp_path / "grid" / "report.html").read_text().count("<svg") >= 2


def test_a_grid_needs_no_optuna_and_says_so_where_it_is_needed(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    answered(*words, "--out", tmp_path, "--heads", "last_state", "--vary", "lr=1e-3,1e-2", "--grid")


def test_a_diverged_head_is_a_row_of_the_table(words: tuple[str, ...], tmp_path: Path) -> None:
    vary = ("--heads", "adapter:size=4", "--vary", "lr=1e-3,1e30")
    for grid in (["--grid"], ["--trials", "6", "--sampler", "random"]):
        found = swept(*words, "--out", tmp_path / f"{len(grid)}", *vary, *grid)
        status = {trial["values"]["lr"]: (trial["status"], trial["score"]) for trial in found["trials"]}
        assert status[1e30] == ("diverged", None)
        assert status[1e-3][0] == "done"
        assert found["trials"][found["best"]]["values"]["lr"] == 1e-3


# ---- trials


def test_trials_score_what_the_grid_scores(words: tuple[str, ...], tmp_path: Path) -> None:
    """The same head, rate and seed: alone in a trial as among others in one pass."""
    grid = swept(*words, "--out", tmp_path / "grid", *VARY, "--grid", "--states.source", "live")
    scores = {trial["head"]: trial["history"] for trial in grid["trials"]}
    search = ("--trials", "6", "--pruner", "none", "--states.source", "live")
    trials = swept(*words, "--out", tmp_path / "trials", *VARY, *search)
    for trial in trials["trials"]:
        assert trial["history"] == pytest.approx(scores[trial["head"]], abs=1e-4)
        assert trial["status"] == "done"
    assert len(trials["trials"]) == 6
    kept = [path.name for path in (tmp_path / "trials" / "trials").glob("*/*.seed0")]
    best = trials["trials"][trials["best"]]
    assert len(kept) == 1, "heads of the best alone"
    head = next((tmp_path / "trials" / best["folder"]).glob("*.seed0"))
    assert read_trained(head).heads[0].num_parameters == best["parameters"]


def test_a_pruned_trial_ends_its_fit(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_module.Trial, "report", _ends_odd_trials)
    found = swept(*words, "--out", tmp_path, *VARY, "--trials", "4", "--keep-heads", "--pruner", "none")
    assert [trial["status"] for trial in found["trials"]] == ["done", "pruned", "done", "pruned"]
    assert [trial["epochs"] for trial in found["trials"]] == [2, 1, 2, 1]
    assert found["best"] in (0, 2)
    assert len(list((tmp_path / "trials").glob("*/*.seed0"))) == 4, "--keep-heads keeps all"


def _ends_odd_trials(self: Any, epoch: int, score: float) -> bool:
    self._trial.report(score, epoch)
    self.pruned = self.number % 2 == 1
    return self.pruned


@pytest.mark.slow
def test_killed_and_continued_gives_the_same_trials(words: tuple[str, ...], tmp_path: Path) -> None:
    command = [
        *words,
        *VARY,
        "--trials",
        "5",
        "--startup",
        "2",
        "--checkpoint-seconds",
        "0",
        "--states.source",
        "live",
    ]
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert finish([*command, "--out", str(whole)], tmp_path / "log") == 0
    expected = json.loads((whole / "sweep.json").read_text())
    moments = [
        lambda: (out / "trials" / "0001" / "checkpoint.safetensors").exists(),
        lambda: (out / "trials" / "0003" / "stage.json").exists(),
    ]
    for ready in moments:
        assert kill_when([*command, "--out", str(out)], tmp_path / "killed", ready) == -9
    assert not (out / "sweep.json").exists()
    assert finish([*command, "--out", str(out)], tmp_path / "again") == 0
    assert "waiting" in (tmp_path / "again").read_text()
    assert told(json.loads((out / "sweep.json").read_text())) == told(expected)
    before = tree(out)
    assert finish([*command, "--out", str(out)], tmp_path / "again") == 0
    assert {name: content for name, content in tree(out).items() if content != before[name]} == {}


def test_two_commands_share_a_study(words: tuple[str, ...], tmp_path: Path) -> None:
    command = [*words, *VARY, "--trials", "6", "--out", str(tmp_path / "out")]
    processes = [start(command, tmp_path / f"log{i}") for i in range(2)]
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0], (tmp_path / "log0").read_text()
    found = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert len(found["trials"]) == 6
    assert "running" not in {trial["status"] for trial in swept(*command)["trials"]}


def test_labels_are_searched_by_their_own_metric(tiny_bert: Path, tmp_path: Path) -> None:
    """Single texts of two classes: label heads, on [CLS] states alone, scored between 0 and 1."""
    table = tmp_path / "texts.csv"
    rows = [f"the {thing} was {'cold' if i % 2 else 'long'},{'bad' if i % 2 else 'good'}" for i, thing in
            enumerate(["mill", "bridge", "tower", "barn", "chapel", "harbour", "school", "market"] * 3)]  # fmt: skip
    table.write_text("text,label\n" + "\n".join(rows) + "\n")
    command = (
        "sweep",
        tiny_bert,
        "--train",
        table,
        "--dev",
        table,
        "--max-seq-length",
        "32",
        "--epochs",
        "2",
    )
    vary = ("--heads", "cls_linear", "tenney_small", "--vary", "lr=1e-3..1e-1:log")
    found = swept(*command, *vary, "--out", tmp_path / "out", "--trials", "4")
    assert (found["task"], found["metric"], found["percent"]) == ("label", "accuracy", False)
    assert all(0 <= trial["score"] <= 1 for trial in found["trials"])
    assert {trial["values"]["head"] for trial in found["trials"]} <= {"cls_linear", "tenney_small"}


# ---- the command line


def test_what_is_printed(words: tuple[str, ...], tmp_path: Path) -> None:
    out = answered(*words, "--out", tmp_path, *VARY, "--grid").out.splitlines()
    assert out[0].split()[:4] == ["head", "trial", "dev", "tuned"]
    assert out[-2].startswith("4 heads: 4 done; ")
    assert out[-1].startswith("best: --heads adapter:size=")


def test_a_recipe_has_a_space(words: tuple[str, ...], tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "space:\n  lr: {low: 1e-3, high: 1e-2, points: 2}\nfit: {heads: [last_state], epochs: 1}\n"
    )
    from bertvision.cli import sweep

    args = parse(sweep, ["--config", str(recipe), "--vary", "clip=0,1"], prog="bertvision sweep")
    assert args.space == {"lr": {"low": "1e-3", "high": "1e-2", "points": 2}}
    found = swept(*words, "--config", recipe, "--out", tmp_path / "out", "--vary", "clip=0,1", "--grid")
    assert len(found["trials"]) == 4
    assert {trial["values"]["lr"] for trial in found["trials"]} == {1e-3, 1e-2}


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ((), "nothing is varied"),
        (("--vary", "sise=1,2"), "no head of the sweep has an option 'sise'"),
        (("--vary", "lr=1e-4..1e-2:log", "--grid"), "--grid cannot take every lr"),
        (("--vary", "lr=1e-3,1e-2", "--trials", "0"), "--trials must be at least 1"),
        (("--vary", "lr=1e-3,1e-2", "--dev", ""), "--dev is missing"),
        (("--vary", "warmup=0.1,1"), "warmup is a part of all steps"),
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


def test_other_settings_are_refused(words: tuple[str, ...], tmp_path: Path) -> None:
    for mode in (["--grid"], ["--trials", "1"]):
        out = tmp_path / mode[0]
        answered(*words, "--out", out, "--heads", "last_state", "--vary", "lr=1e-3,1e-2", *mode)
        outcome = bertvision(*words, "--out", out, "--heads", "last_state", "--vary", "lr=1e-3,1e-1", *mode)
        assert outcome.code == 2
        assert "other settings" in outcome.err


@pytest.mark.parametrize("grid_first", [True, False])
def test_a_folder_holds_trials_or_a_grid(words: tuple[str, ...], tmp_path: Path, grid_first: bool) -> None:
    command = (*words, "--out", tmp_path, "--heads", "last_state", "--vary", "lr=1e-3,1e-2")
    modes = [["--grid"], ["--trials", "1"]]
    first, second = modes if grid_first else modes[::-1]
    answered(*command, *first)
    before = tree(tmp_path)
    outcome = bertvision(*command, *second)
    assert outcome.code == 2
    assert "choose another --out, or use --overwrite" in outcome.err
    assert outcome.err.count("\n") == 1, outcome.err
    assert tree(tmp_path) == before, "nothing was touched"
    answered(*command, *second, "--overwrite")
    results = json.loads((tmp_path / "sweep.json").read_text())
    assert results["mode"] == ("trials" if grid_first else "grid")
    assert (tmp_path / "grid").exists() == (not grid_first)
    assert (tmp_path / "study.db").exists() == (tmp_path / "trials").exists() == grid_first
    answered(*command, *second)
