"""A search that processes share: no trial lost, none made twice, the same ones after a kill; the pruner's own rule."""

import functools
import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from killing import finish, kill_when, start
from sweep_cases import EPOCHS, open_study, search, seen, toy_score, work

from bertvision.errors import ArtifactError, ConfigError, OutputError
from bertvision.train import sweep_study
from bertvision.train.sweep_study import SearchConfig, check_optuna, holds_study, remove_study


def tried(rows: list[dict[str, Any]]) -> list[Any]:
    return [(row["number"], row["values"], row["history"], row["status"]) for row in rows]


def test_as_many_trials_as_were_asked_for_and_more_when_asked_again(tmp_path: Path) -> None:
    rows = search(tmp_path)
    assert [row["number"] for row in rows] == list(range(12))
    for row in rows:
        expected = [toy_score(row["values"], epoch + 1) for epoch in range(row["epochs"])]
        assert row["history"] == expected
        assert row["score"] == max(expected)
    assert tried(search(tmp_path)) == tried(rows), "a finished search makes no further trial"
    more = search(tmp_path, trials=15)
    assert tried(more)[:12] == tried(rows)
    assert len(more) == 15


def test_tpe_finds_more_than_drawing(tmp_path: Path) -> None:
    """On a score with one peak the mean of the later trials is above that of drawn ones."""
    means = []
    for sampler in ("tpe", "random"):
        rows = search(tmp_path / sampler, trials=40, startup=10, sampler=sampler, pruner="none")
        means.append(sum(row["score"] for row in rows[20:]) / 20)
    assert means[0] > means[1] + 0.05


def test_the_median_rule_ends_trials(tmp_path: Path) -> None:
    """By hand: after the startup, a trial ends where its best so far lies below the median of others at that epoch.

    Others are those trained to their end; at the last epoch nothing is left to save.
    """
    rows = search(tmp_path, trials=30)
    ended = 0
    for row in rows:
        before = [other for other in rows[: row["number"]] if other["status"] == "done"]
        stop = None
        for epoch in range(1, EPOCHS):
            known = [other["history"][epoch - 1] for other in before if other["epochs"] >= epoch]
            if row["number"] >= 4 and max(row["history"][:epoch]) < median(known):
                stop = epoch
                break
        assert row["epochs"] == (stop or EPOCHS), row
        assert row["status"] == ("pruned" if stop else "done")
        ended += stop is not None
    assert 0 < ended < 26


def test_without_a_pruner_all_go_on(tmp_path: Path) -> None:
    assert {row["epochs"] for row in search(tmp_path, pruner="none")} == {EPOCHS}


def test_halving_lets_a_third_go_on(tmp_path: Path) -> None:
    rows = search(tmp_path, trials=30, pruner="halving", sampler="random")
    assert {row["epochs"] for row in rows} <= {1, 3, EPOCHS}
    assert 5 <= sum(row["epochs"] > 1 for row in rows) <= 20


# ---- several processes


def test_processes_share_the_trials_out(tmp_path: Path) -> None:
    processes = [start(functools.partial(work, tmp_path, 0.15, 3), tmp_path / f"log{i}") for i in range(3)]
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    lines = seen(tmp_path)
    assert sorted(number for number, _ in lines) == list(range(12)), "each trial once, and no more of them"
    assert len({process for _, process in lines}) > 1
    rows = open_study(tmp_path).trials()
    assert {row["status"] for row in rows} <= {"done", "pruned"}
    assert len({json.dumps(row["values"]) for row in rows}) == 12, "no two processes tried the same"


def test_a_killed_search_makes_the_trials_it_would_have_made(tmp_path: Path) -> None:
    expected = search(tmp_path / "whole")
    folder = tmp_path / "killed"
    folder.mkdir()
    for trials in (1, 4, 7):  # killed within a trial, three times
        code = kill_when(
            functools.partial(work, folder, 0.2), folder / "log", lambda n=trials: len(seen(folder)) >= n
        )
        assert code == -9
    rows = open_study(folder).trials()
    assert [row["status"] for row in rows].count("running") == 1
    assert finish(functools.partial(work, folder, 0.0), folder / "log") == 0
    assert tried(open_study(folder).trials()) == tried(expected)


def test_a_trial_somebody_is_at_is_left_to_them(tmp_path: Path) -> None:
    process = start(functools.partial(work, tmp_path, 5.0), tmp_path / "log")
    try:
        while not seen(tmp_path):
            assert process.is_alive()
        with open_study(tmp_path).take() as trial:
            assert trial is not None
            assert trial.number == 1
            with pytest.raises(OutputError, match="another process works in"):
                open_study(tmp_path, key={"of": "other"}, overwrite=True)
        with pytest.raises(OutputError, match="another process works in"):
            remove_study(tmp_path)
        assert holds_study(tmp_path)
    finally:
        process.kill()
        process.join()
    with open_study(tmp_path).take() as trial:
        assert trial is not None
        assert trial.number == 0, "left behind by the killed one"
    remove_study(tmp_path)
    assert not holds_study(tmp_path)


def test_half_a_line_is_cut_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = search(tmp_path)
    journal = tmp_path / "study.journal"
    with journal.open("ab") as file:
        file.write(b'{"op_code":5,"work')
    more = search(tmp_path, trials=13)
    assert "half a line" in caplog.text
    assert tried(more)[:12] == tried(rows)
    assert len(more) == 13


def test_a_damaged_journal_is_told(tmp_path: Path) -> None:
    search(tmp_path)
    journal = tmp_path / "study.journal"
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[3] = b"{broken\n"
    journal.write_bytes(b"".join(lines))
    with pytest.raises(ArtifactError, match=r"study.journal cannot be read"):
        open_study(tmp_path)


def test_other_settings_are_refused_or_begin_anew(tmp_path: Path) -> None:
    search(tmp_path)
    (tmp_path / "trials" / "0003").mkdir(parents=True)
    with pytest.raises(OutputError, match=r"a sweep with other settings \(of\)"):
        open_study(tmp_path, key={"of": "other"})
    assert open_study(tmp_path, overwrite=True).trials(), "the same settings: nothing is replaced"
    assert open_study(tmp_path, key={"of": "other"}, overwrite=True).trials() == []
    assert not (tmp_path / "trials").exists()


def test_a_trial_without_a_score_counts_and_a_failed_one_does_not(tmp_path: Path) -> None:
    study = open_study(tmp_path, trials=2)
    with study.take() as trial:
        assert trial is not None
        trial.end({"status": "diverged"}, score=None)
    with study.take() as trial:
        assert trial is not None
        trial.fail()
    with study.take() as trial:
        assert trial is not None
        assert trial.number == 2
        trial.end({"status": "done"}, score=0.5)
    with study.take() as trial:
        assert trial is None
    assert [row["status"] for row in study.trials()] == ["diverged", "failed", "done"]


def test_a_trial_that_always_dies_is_given_up(tmp_path: Path) -> None:
    """Taken and left, as by a process that the system ends for its memory; a new epoch gives it new tries."""
    taken = []
    for attempt in range(20):
        with open_study(tmp_path, trials=2).take() as trial:
            assert trial is not None
            taken.append(trial.number)
            if attempt == 3:
                trial.report(1, 0.5)
            if trial.number:
                break
    assert taken == [0] * 9 + [1], "at first, three times, and five times after the epoch"
    assert [row["status"] for row in open_study(tmp_path).trials()] == ["killed", "running"]


def test_settings_that_cannot_work() -> None:
    with pytest.raises(ConfigError, match="--trials must be at least 1"):
        SearchConfig(trials=0)
    with pytest.raises(ConfigError, match="--startup must not be negative"):
        SearchConfig(startup=-1)


def test_without_optuna_the_way_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_study.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"bertvision\[sweep\].*--grid"):
        check_optuna()
