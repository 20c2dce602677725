"""A search that processes share: no trial lost, none made twice, the same ones after a kill; the pruner's own rule."""

import functools
import json
import math
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from killing import kill_when, start

from bertvision.errors import ArtifactError, OutputError
from bertvision.train import search
from bertvision.train.config import SearchConfig
from bertvision.train.search import Search, Trial
from bertvision.train.space import read_space

EPOCHS = 4
Rows = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"HEARTBEAT": 1, "GRACE": 2, "ATTEMPTS": 3}.items():
        monkeypatch.setattr(search, name, value)


# ---- a search without any fit


def open_search(
    folder: Path, *, key: dict[str, Any] | None = None, overwrite: bool = False, **values: Any
) -> Search:
    folder.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {"trials": 12, "startup": 4} | values
    config = SearchConfig(**settings)
    varied: dict[str, Any] = {"lr": {"low": 1e-4, "high": 1e-2, "log": True}, "size": [4, 8, 16]}
    more: dict[str, Any] = {"key": key or {"of": "toy"}, "seed": 3, "epochs": EPOCHS, "overwrite": overwrite}
    return Search(folder, read_space(["adapter"], varied), config, **more)


def toy_score(values: dict[str, Any], epoch: int) -> float:
    """Best at lr 1e-3 and size 8, and rising with the epochs."""
    away = abs(math.log10(values["lr"]) + 3) + abs(math.log2(values["size"]) - 3) / 4
    return 1 - away / 2 - 0.1 / epoch


def fit(trial: Trial) -> tuple[dict[str, Any], float]:
    """Report the toy's scores."""
    score = 0.0
    for epoch in range(1, EPOCHS + 1):
        score = toy_score(trial.candidate.values, epoch)
        if trial.report(epoch, score):
            break
    status = "pruned" if trial.pruned else "done"
    return {"status": status, "head": trial.candidate.head, "values": trial.candidate.values}, score


def run(folder: Path, **values: Any) -> Rows:
    """A whole search in this process."""
    opened = open_search(folder, **values)
    opened.run(fit)
    return opened.trials()


def work(folder: Path, seconds: float, ready: int = 0, **values: Any) -> None:
    """A process of a search: a line in trials.txt for each of its trials, which take `seconds`.

    It begins when `ready` processes are there, so that all of them work at once.
    """
    search.HEARTBEAT, search.GRACE, search.ATTEMPTS = 1, 2, 3
    opened = open_search(folder, **values)
    (folder / f"{os.getpid()}.here").touch()
    until = time.monotonic() + 60
    while len(list(folder.glob("*.here"))) < ready and time.monotonic() < until:
        time.sleep(0.01)

    def slow(trial: Trial) -> tuple[dict[str, Any], float]:
        with (folder / "trials.txt").open("a") as file:
            file.write(f"{trial.number} {os.getpid()}\n")
        time.sleep(seconds)
        return fit(trial)

    opened.run(slow)


def seen(folder: Path) -> list[list[int]]:
    """(trial, process) of every line that processes wrote."""
    path = folder / "trials.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return [[int(word) for word in line.split()] for line in lines]


def tried(rows: Rows) -> list[Any]:
    return [(row["values"], row["history"], row["status"]) for row in rows]


# ---- which trials


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


def test_the_search_finds_more_than_drawing(tmp_path: Path) -> None:
    """On a score with one peak the mean of the later trials is above that of drawn ones."""
    means = []
    for startup in (10, 40):
        rows = run(tmp_path / str(startup), trials=40, startup=startup, pruner="none")
        assert {len(row["history"]) for row in rows} == {EPOCHS}, "without a pruner all go on"
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


def test_halving_lets_a_third_go_on(tmp_path: Path) -> None:
    rows = run(tmp_path, trials=30, pruner="halving", startup=30)
    assert {len(row["history"]) for row in rows} <= {1, 3, EPOCHS}
    assert 5 <= sum(len(row["history"]) > 1 for row in rows) <= 20


# ---- several processes, and processes that end


def test_processes_share_the_trials(tmp_path: Path) -> None:
    processes = [start(functools.partial(work, tmp_path, 0.5, 3), tmp_path / f"log{i}") for i in range(3)]
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
    for trials in (1, 4):  # killed within a trial, twice
        killed = functools.partial(work, folder, 0.5)
        assert kill_when(killed, folder / "log", lambda n=trials: len(seen(folder)) >= n, delay=0.2) == -9
    assert tried(run(folder)) == tried(expected)


def test_a_trial_that_always_dies_is_given_up(tmp_path: Path) -> None:
    for _ in range(3):
        count = len(seen(tmp_path))
        killed = functools.partial(work, tmp_path, 30.0, trials=1)
        ready = lambda n=count: len(seen(tmp_path)) > n  # noqa: E731
        assert kill_when(killed, tmp_path / "log", ready, delay=0.2) == -9
    assert {number for number, _ in seen(tmp_path)} == {0}
    assert [row["status"] for row in run(tmp_path, trials=1)] == ["killed"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OutputError])
def test_a_trial_whose_fit_raises_is_continued(tmp_path: Path, error: type[BaseException]) -> None:
    def interrupted(trial: Trial) -> tuple[dict[str, Any], float | None]:
        if trial.number == 0:
            return {"status": "diverged"}, None  # without a score it counts
        trial.report(1, 0.1)
        raise error

    with pytest.raises(error):
        open_search(tmp_path, trials=3).run(interrupted)
    rows = run(tmp_path, trials=3)
    assert [row["status"] for row in rows] == ["diverged", "done", "done"]
    assert rows[1]["history"][0] == 0.1


# ---- what is refused


def test_a_damaged_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "study.db").write_bytes(b"no database " * 1000)
    with pytest.raises(ArtifactError, match=r"study.db cannot be read"):
        open_search(tmp_path)
