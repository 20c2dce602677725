"""The systems of a run: snapshots, fitted heads with all their seeds, and ensembles of two."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bertvision.heads.base import Head
from bertvision.model.record import Record
from bertvision.tasks.base import Task

Kind = Literal["snapshot", "control", "head", "ensemble"]


@dataclass
class System:
    """One row of the results. Its members are the seeds of a head; a snapshot has one member and no seed."""

    snapshot: str
    label: str
    head: Head | None
    """None for an ensemble."""
    records: list[Record]
    """Answers and scores of each member."""
    folders: list[Path] = field(default_factory=list)
    infos: list[dict[str, Any]] = field(default_factory=list)
    """What the fit reports of each member: label, seed, seconds, history."""
    members: list[str] | None = None
    """Labels of the systems that an ensemble joins."""
    best: bool = False

    @property
    def kind(self) -> Kind:
        """A control reads the last state alone, as a fine-tuned encoder's own output layer does."""
        if self.head is None:
            return "ensemble"
        if not self.infos:
            return "snapshot"
        return "control" if self.head.last_only else "head"

    @property
    def name(self) -> str:
        return self.label if self.kind == "snapshot" else f"{self.snapshot}/{self.label}"

    @property
    def task(self) -> Task:
        return self.records[0].task

    @property
    def seeds(self) -> list[int] | None:
        return [info["seed"] for info in self.infos] or None

    @property
    def folder(self) -> Path | None:
        return self.folders[self.shipped] if self.folders else None

    def values(self, split: str, metric: str) -> list[float]:
        """A metric of each member."""
        return [record.scores[split][metric] for record in self.records]

    def members_on(self, split: str) -> list[tuple[Any, Any]]:
        """The argument of `Task.compare`."""
        return [record.member(split) for record in self.records]

    @property
    def dev_score(self) -> float:
        """Systems are chosen by it, higher is better."""
        return float(np.mean(self._ranked))

    @property
    def shipped(self) -> int:
        """The member that scored best on dev."""
        return int(np.argmax(self._ranked))

    @property
    def _ranked(self) -> list[float]:
        sign = 1 if self.task.metrics[self.task.metric].higher else -1
        return [sign * value for value in self.values("dev", self.task.metric)]


@dataclass(frozen=True)
class Pair:
    """Two systems to join, seed by seed."""

    first: System
    second: System
    seeds: list[int]

    @property
    def folders(self) -> list[tuple[Path, Path]]:
        return [(_of_seed(self.first, seed), _of_seed(self.second, seed)) for seed in self.seeds]

    @property
    def infos(self) -> list[dict[str, Any]]:
        return [info for info in self.second.infos if info["seed"] in self.seeds]


def _of_seed(system: System, seed: int) -> Path:
    return system.folders[system.seeds.index(seed) if system.seeds else 0]


def pairs(systems: Sequence[System]) -> Iterator[Pair]:
    """The best head on dev with its snapshot, and the two best heads; with the seeds that both have."""
    heads = sorted((s for s in systems if s.kind == "head"), key=lambda s: -s.dev_score)
    own = [s for s in systems if s.kind == "snapshot"]
    for first, second in [*zip(own[:1], heads[:1], strict=False), *pairwise(heads[:2])]:
        seeds = [seed for seed in second.seeds or () if first.seeds is None or seed in first.seeds]
        if seeds:  # a seed that diverged is missing
            yield Pair(first, second, seeds)


def snapshot_of(system: System, systems: Sequence[System]) -> System | None:
    """The snapshot whose states it reads; a snapshot is its own."""
    return next((s for s in systems if s.kind == "snapshot" and s.snapshot == system.snapshot), None)


def mark_best(systems: Sequence[System]) -> None:
    """Mark the best head on each snapshot; the best control where there are no other heads."""
    for snapshot in {system.snapshot for system in systems}:
        own = [s for s in systems if s.snapshot == snapshot]
        heads = [s for s in own if s.kind == "head"] or [s for s in own if s.kind == "control"]
        if heads:
            max(heads, key=lambda s: s.dev_score).best = True
