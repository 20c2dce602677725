"""A search that processes share: no trial lost, none made twice, the same ones after a kill; the pruner's own rule."""

import functools
import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from killing import kill_when, start
from sweep_cases import EPOCHS, fit, open_search, run, seen, toy_score, work

from bertvision.errors import ArtifactError, ConfigError, OutputError
from bertvision.train import search
from bertvision.train.search import SearchConfig, Trial, check_optuna


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "WAIT", 0.2)
    monkeypatch.setattr(search, "ATTEMPTS", 3)


def tried(rows: list[dict[str, Any]]) -> list[Any]:
    return [(row["number"], row["values"], row["history"], row["status"]) for row in rows]


def test_as_many_trials_as_were_asked_for_and_more_when_asked_again(tmp_path: Path) -> None:
    rows = run(tmp_path)
    assert [row["number"] for row in rows] == list(range(12))
    for row in rows:
        expected = [toy_score(row["values"], epoch + 1) for epoch in range(len(row["history"]))]
        assert row["history"] == expected
        assert row["score"] == max(expected)
    assert tried(run(tmp_path)) == tried(rows), "a finished search makes no further trial"
    more = run(tmp_path, trials=15)
    assert tried(more)[:12] == tried(rows)
    assert len(more) == 15


def test_tpe_finds_more_than_drawing(tmp_path: Path) -> None:
    """On a score with one peak the mean of the later trials is above that of drawn ones."""
    means = []
    for sampler in ("tpe", "random"):
        rows = run(tmp_path / sampler, trials=40, startup=10, sampler=sampler, pruner="none")
        means.append(sum(row["score"] for row in rows[20:]) / 20)
    assert means[0] > means[1] + 0.05


def test_the_median_rule_ends_trials(tmp_path: Path) -> None:
    """By hand: after the startup, a trial ends where its best so far lies below the median of others at that epoch.

    Others are those trained to their end; at the last epoch nothing is left to save.
    """
    rows = run(tmp_path, trials=30)
    ended = 0
    for row in rows:
        before = [other for other in rows[: row["number"]] if other["status"] == "done"]
        stop = None
        for epoch in range(1, EPOCHS):
            known = [other["history"][epoch - 1] for other in before if len(other["history"]) >= epoch]
            if row["number"] >= 4 and max(row["history"][:epoch]) < median(known):
                stop = epoch
                break
        assert len(row["history"]) == (stop or EPOCHS), row
        assert row["status"] == ("pruned" if stop else "done")
        ended += stop is not None
    assert 0 < ended < 26


def test_without_a_pruner_all_go_on(tmp_path: Path) -> None:
    assert {len(row["history"]) for row in run(tmp_path, pruner="none")} == {EPOCHS}


def test_halving_lets_a_third_go_on(tmp_path: Path) -> None:
    rows = run(tmp_path, trials=30, pruner="halving", sampler="random")
    assert {len(row["history"]) for row in rows} <= {1, 3, EPOCHS}
    assert 5 <= sum(len(row["history"]) > 1 for row in rows) <= 20


# ---- several processes


def test_processes_share_the_trials(tmp_path: Path) -> None:
    processes = [start(functools.partial(work, tmp_path, 1.0, 3), tmp_path / f"log{i}") for i in range(3)]
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    lines = seen(tmp_path)
    assert sorted(number for number, _ in lines) == list(range(12)), "each trial once, and no more of them"
    assert len({process for _, process in lines}) > 1
    rows = open_search(tmp_path).trials()
    assert {row["status"] for row in rows} <= {"done", "pruned"}
    assert len({json.dumps(row["values"]) for row in rows}) == 12, "no two processes tried the same"


def test_a_killed_search_makes_the_trials_it_would_have_made(tmp_path: Path) -> None:
    expected = run(tmp_path / "whole")
    folder = tmp_path / "killed"
    folder.mkdir()
    for trials in (1, 4, 7):  # killed within a trial, three times
        killed = functools.partial(work, folder, 0.5)
        assert kill_when(killed, folder / "log", lambda n=trials: len(seen(folder)) >= n) == -9
    assert tried(run(folder)) == tried(expected)


def test_a_trial_that_another_process_runs_is_left_to_it(tmp_path: Path) -> None:
    process = start(functools.partial(work, tmp_path, 30.0), tmp_path / "log")
    try:
        while not seen(tmp_path):
            assert process.is_alive()
        with pytest.raises(OutputError, match="another process works in"):
            open_search(tmp_path, key={"of": "other"}, overwrite=True)
        taken: list[int] = []

        def once(trial: Trial) -> tuple[dict[str, Any], float]:
            taken.append(trial.number)
            process.kill()
            return fit(trial)

        open_search(tmp_path, trials=2).run(once)
    finally:
        process.kill()
        process.join()
    assert taken == [1, 0], "the abandoned one is continued"


def test_ctrl_c_leaves_a_trial_to_be_continued(tmp_path: Path) -> None:
    def interrupted(trial: Trial) -> tuple[dict[str, Any], float]:
        if trial.number == 2:
            trial.report(1, 0.1)
            raise KeyboardInterrupt
        return fit(trial)

    with pytest.raises(KeyboardInterrupt):
        open_search(tmp_path, trials=3).run(interrupted)
    rows = run(tmp_path, trials=3)
    assert [row["number"] for row in rows] == [0, 1, 2]
    assert rows[2]["history"][0] == 0.1


def test_a_damaged_file_is_reported(tmp_path: Path) -> None:
    run(tmp_path)
    (tmp_path / "study.db").write_bytes(b"no database " * 1000)
    with pytest.raises(ArtifactError, match=r"study.db cannot be read"):
        open_search(tmp_path)


def test_other_settings_are_refused_or_begin_anew(tmp_path: Path) -> None:
    run(tmp_path)
    (tmp_path / "trials" / "0003").mkdir(parents=True)
    with pytest.raises(OutputError, match=r"a sweep with other settings \(of\)"):
        open_search(tmp_path, key={"of": "other"})
    assert open_search(tmp_path, overwrite=True).trials(), "the same settings: nothing is replaced"
    assert open_search(tmp_path, key={"of": "other"}, overwrite=True).trials() == []
    assert not (tmp_path / "trials").exists()


def test_a_trial_without_a_score_counts_and_one_that_raised_is_continued(tmp_path: Path) -> None:
    def broken(trial: Trial) -> tuple[dict[str, Any], float | None]:
        if trial.number == 1:
            raise OutputError("the disk is full")
        return {"status": "diverged"}, None

    with pytest.raises(OutputError):
        open_search(tmp_path, trials=2).run(broken)
    assert [row["status"] for row in open_search(tmp_path).trials()] == ["diverged", "running"]
    assert [row["status"] for row in run(tmp_path, trials=2)] == ["diverged", "done"]


@pytest.mark.slow
def test_a_trial_that_always_dies_is_given_up(tmp_path: Path) -> None:
    for _ in range(3):
        count = len(seen(tmp_path))
        killed = functools.partial(work, tmp_path, 30.0, trials=1)
        assert kill_when(killed, tmp_path / "log", lambda n=count: len(seen(tmp_path)) > n) == -9
    assert {number for number, _ in seen(tmp_path)} == {0}
    assert [row["status"] for row in run(tmp_path, trials=1)] == ["killed"]


def test_settings_that_cannot_work() -> None:
    with pytest.raises(ConfigError, match="--trials must be at least 1"):
        SearchConfig(trials=0)
    with pytest.raises(ConfigError, match="--startup must not be negative"):
        SearchConfig(startup=-1)


def test_without_optuna_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"bertvision\[sweep\].*--grid"):
        check_optuna()
