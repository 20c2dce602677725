"""The data of the experiments: training questions, some articles held out to tune thresholds on, and random parts.

Articles are held out, not questions: questions of one article share words and answers. Parts of the data are drawn by
question; the smaller one of the same seed lies inside the larger.
"""

import json
import os
import random
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from papers.plan import PlanError

_HELD_OUT = 0.05
_NULLS = 0.5
"""Unanswerable questions for every answerable one in SQuAD 2.0's own training set."""


def questions(squad: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every question with its context."""
    for article in squad["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                yield paragraph["context"], question


class Data:
    """Files made of one training set in SQuAD's JSON, kept in `folder`."""

    def __init__(self, train: Path, folder: Path) -> None:
        self.source, self.folder = train, folder

    @cached_property
    def _split(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """(the rest, what is held out)."""
        squad = json.loads(self.source.read_text(encoding="utf-8"))
        order = list(range(len(squad["data"])))
        random.Random(0).shuffle(order)
        sizes = [sum(1 for _ in questions({"data": [article]})) for article in squad["data"]]
        aside: set[int] = set()
        for i in order[:-1]:
            if aside and sum(sizes[j] for j in aside) >= _HELD_OUT * sum(sizes):
                break
            aside.add(i)
        if not aside:
            raise PlanError(f"{self.source} has one article alone, and some are held out: name more data")
        parts = [[a for i, a in enumerate(squad["data"]) if (i in aside) is held] for held in (False, True)]
        return {**squad, "data": parts[0]}, {**squad, "data": parts[1]}

    def train(self) -> Path:
        return self._kept("train.json", lambda: self._split[0])

    def tune(self) -> Path:
        return self._kept("tune.json", lambda: self._split[1])

    def part(self, share: float, seed: int) -> Path:
        """A random share of the training questions."""
        return self._kept(f"train-{share:g}-{seed}.json", lambda: self._drawn(share, seed))

    def _drawn(self, share: float, seed: int) -> dict[str, Any]:
        whole = self._split[0]
        ids = [question["id"] for _, question in questions(whole)]
        random.Random(seed).shuffle(ids)
        kept = set(ids[: max(1, round(share * len(ids)))])
        data = []
        for article in whole["data"]:
            paragraphs = [
                {**paragraph, "qas": [question for question in paragraph["qas"] if question["id"] in kept]}
                for paragraph in article["paragraphs"]
            ]
            paragraphs = [paragraph for paragraph in paragraphs if paragraph["qas"]]
            if paragraphs:
                data.append({**article, "paragraphs": paragraphs})
        return {**whole, "data": data}

    def null_weight(self) -> str:
        """What a window without an answer counts, so that they weigh as much as in SQuAD 2.0's own training set."""
        path = self._kept("null-weight.json", self._null_weight)
        return str(json.loads(path.read_text(encoding="utf-8")))

    def _null_weight(self) -> float:
        nulls = [not question["answers"] for _, question in questions(self._split[0])]
        return round(_NULLS * nulls.count(False) / max(1, nulls.count(True)), 2)

    def _kept(self, name: str, make: Callable[[], Any]) -> Path:
        path = self.folder / name
        if not path.exists():
            write_json(path, make())
        return path


def write_json(path: Path, value: Any) -> None:
    """Write a file in one step: it is whole or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(value, indent=1, ensure_ascii=False), encoding="utf-8")
    os.replace(part, path)
