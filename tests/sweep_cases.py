"""What the tests of sweeps share: a search without any fit, and results of a sweep for its report."""

import math
import os
import time
from pathlib import Path
from typing import Any

from bertvision.train.sweep_space import Space, read_space
from bertvision.train.sweep_study import SearchConfig, SharedStudy, Trial

EPOCHS = 4


def toy_space() -> Space:
    return read_space(["adapter"], {"lr": {"low": 1e-4, "high": 1e-2, "log": True}, "size": [4, 8, 16]})


def open_study(
    folder: Path, *, key: dict[str, Any] | None = None, overwrite: bool = False, **values: Any
) -> SharedStudy:
    folder.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {"trials": 12, "startup": 4} | values
    search = SearchConfig(**settings)
    return SharedStudy(
        folder, toy_space(), search, key=key or {"of": "toy"}, seed=3, epochs=EPOCHS, overwrite=overwrite
    )


def toy_score(values: dict[str, Any], epoch: int) -> float:
    """Best at lr 1e-3 and size 8, and rising with the epochs."""
    away = abs(math.log10(values["lr"]) + 3) + abs(math.log2(values["size"]) - 3) / 4
    return 1 - away / 2 - 0.1 / epoch


def run_trial(trial: Trial) -> int:
    """Tell the toy's scores; returns how many epochs there were."""
    score, epoch = 0.0, 0
    for epoch in range(1, EPOCHS + 1):
        score = toy_score(trial.candidate.values, epoch)
        if trial.report(epoch, score):
            break
    status = "pruned" if trial.pruned else "done"
    trial.end({"status": status, "head": trial.candidate.head, "values": trial.candidate.values}, score=score)
    return epoch


def search(folder: Path, **values: Any) -> list[dict[str, Any]]:
    """A whole search in this process."""
    study = open_study(folder, **values)
    while True:
        with study.take() as trial:
            if trial is None:
                return study.trials()
            run_trial(trial)


class SlowStudy(SharedStudy):
    """Takes its time between counting trials and beginning one: without turns, processes would collide."""

    def _sampler(self, number: int) -> Any:
        time.sleep(0.05)
        return super()._sampler(number)


def work(folder: Path, seconds: float, ready: int = 0) -> None:
    """A process of a search: a line in trials.txt for each of its trials, which take `seconds`.

    It begins when `ready` processes have come, so that they are all at it together.
    """
    (folder / f"{os.getpid()}.here").touch()
    until = time.monotonic() + 60
    while len(list(folder.glob("*.here"))) < ready and time.monotonic() < until:
        time.sleep(0.01)
    study = SlowStudy(
        folder, toy_space(), SearchConfig(12, startup=4), key={"of": "toy"}, seed=3, epochs=EPOCHS
    )
    while True:
        with study.take() as trial:
            if trial is None:
                return
            with (folder / "trials.txt").open("a") as file:
                file.write(f"{trial.number} {os.getpid()}\n")
            time.sleep(seconds)
            run_trial(trial)


def seen(folder: Path) -> list[list[int]]:
    """(trial, process) of every line that processes wrote."""
    path = folder / "trials.txt"
    return (
        [[int(word) for word in line.split()] for line in path.read_text().splitlines()]
        if path.exists()
        else []
    )
