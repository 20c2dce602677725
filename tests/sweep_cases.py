"""A search without any fit, for tests of train/search.py."""

import math
import os
import time
from pathlib import Path
from typing import Any

from bertvision.train import search
from bertvision.train.search import Search, SearchConfig, Trial
from bertvision.train.space import Space, read_space

EPOCHS = 4


def toy_space() -> Space:
    return read_space(["adapter"], {"lr": {"low": 1e-4, "high": 1e-2, "log": True}, "size": [4, 8, 16]})


def open_search(
    folder: Path, *, key: dict[str, Any] | None = None, overwrite: bool = False, **values: Any
) -> Search:
    folder.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {"trials": 12, "startup": 4} | values
    config = SearchConfig(**settings)
    return Search(
        folder, toy_space(), config, key=key or {"of": "toy"}, seed=3, epochs=EPOCHS, overwrite=overwrite
    )


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


def run(folder: Path, **values: Any) -> list[dict[str, Any]]:
    """A whole search in this process."""
    opened = open_search(folder, **values)
    opened.run(fit)
    return opened.trials()


def work(folder: Path, seconds: float, ready: int = 0, **values: Any) -> None:
    """A process of a search: a line in trials.txt for each of its trials, which take `seconds`.

    It begins when `ready` processes are there, so that all of them work at once.
    """
    search.ATTEMPTS, search.WAIT = 3, 0.2
    (folder / f"{os.getpid()}.here").touch()
    until = time.monotonic() + 60
    while len(list(folder.glob("*.here"))) < ready and time.monotonic() < until:
        time.sleep(0.01)

    def slow(trial: Trial) -> tuple[dict[str, Any], float]:
        with (folder / "trials.txt").open("a") as file:
            file.write(f"{trial.number} {os.getpid()}\n")
        time.sleep(seconds)
        return fit(trial)

    open_search(folder, **values).run(slow)


def seen(folder: Path) -> list[list[int]]:
    """(trial, process) of every line that processes wrote."""
    path = folder / "trials.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return [[int(word) for word in line.split()] for line in lines]
