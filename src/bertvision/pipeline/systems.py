"""The systems of a run: snapshots, fitted heads with all their seeds, and ensembles of them, with what they answer."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bertvision.heads.base import Head
from bertvision.model.record import Record
from bertvision.tasks.base import Task
from bertvision.train.run_folder import RunFolder

__all__ = ["System", "by_label", "kind_of", "mark_best", "pairs_to_join", "snapshot_of"]


@dataclass
class System:
    """One row of the results."""

    snapshot: str
    label: str
    kind: Literal["snapshot", "control", "head", "ensemble"]
    head: Head | None
    folders: list[Path]
    infos: list[dict[str, Any]]
    """What the fit reports of each seed: label, seed, seconds, history."""
    records: list[Record]
    """What each member (a seed) answers and scores."""
    members: list[str] | None = None
    best: bool = False

    @property
    def task(self) -> Task:
        return self.records[0].task

    @property
    def splits(self) -> list[str]:
        return list(self.records[0].scores)

    def values(self, split: str, metric: str) -> list[float]:
        """A metric of each member."""
        return [record.scores[split][metric] for record in self.records]

    @property
    def dev_score(self) -> float:
        """What systems are chosen by, higher is better."""
        mean = float(np.mean(self.values("dev", self.task.metric)))
        return mean if self.task.metrics[self.task.metric].higher else -mean

    @property
    def shipped(self) -> int:
        """The member to ship and to look at closely: the one that scored highest on dev."""
        scores = self.values("dev", self.task.metric)
        return int(np.argmax(scores) if self.task.metrics[self.task.metric].higher else np.argmin(scores))

    def members_on(self, split: str) -> list[tuple[Any, Any]]:
        """What `Task.compare` takes."""
        return [record.member(split) for record in self.records]

    @property
    def folder(self) -> Path:
        return self.folders[self.shipped]

    @property
    def name(self) -> str:
        return self.label if self.kind == "snapshot" else f"{self.snapshot}/{self.label}"

    @property
    def by_seed(self) -> dict[int, int]:
        """Which member belongs to each seed; empty for a snapshot."""
        return {info["seed"]: i for i, info in enumerate(self.infos)}

    @property
    def seeds(self) -> list[int] | None:
        return [info["seed"] for info in self.infos] or None


def kind_of(head: Head, infos: Sequence[Any]) -> Literal["snapshot", "control", "head"]:
    """A control reads the last state alone, as a fine-tuned encoder's own output layer does."""
    if not infos:
        return "snapshot"
    return "control" if head.last_only else "head"


def by_label(name: str, folders: Iterable[Path], stage: RunFolder) -> dict[str, list[Path]]:
    """The folders of each system: a fitted head with all its seeds, or the snapshot's own head under its name."""
    groups: dict[str, list[Path]] = {}
    for folder in folders:
        info = stage.results["heads"].get(folder.name)
        groups.setdefault(info["label"] if info else name, []).append(folder)
    return groups


def snapshot_of(system: System, systems: Sequence[System]) -> System | None:
    """The snapshot whose states it reads; a snapshot is its own."""
    return next((e for e in systems if e.kind == "snapshot" and e.snapshot == system.snapshot), None)


def mark_best(systems: Sequence[System]) -> None:
    """The best head on each snapshot; of controls, where there are no others."""
    for snapshot in {system.snapshot for system in systems}:
        own = [e for e in systems if e.snapshot == snapshot]
        heads = [e for e in own if e.kind == "head"] or [e for e in own if e.kind == "control"]
        if heads:
            max(heads, key=lambda e: e.dev_score).best = True


def pairs_to_join(
    systems: Sequence[System],
) -> Iterator[tuple[System, System, list[int], list[tuple[Path, Path]]]]:
    """Best head with its snapshot, and the two best heads, with the folders that go together seed by seed.

    Chosen on dev; two heads that share no seed that did not diverge are left out.
    """
    heads = sorted((e for e in systems if e.kind == "head"), key=lambda e: -e.dev_score)
    own = [e for e in systems if e.kind == "snapshot"]
    pairs = [(own[0], heads[0])] if own and heads else []
    pairs += [(heads[0], heads[1])] if len(heads) > 1 else []
    for first, second in pairs:
        seeds = [seed for seed in second.by_seed if first.kind == "snapshot" or seed in first.by_seed]
        if seeds:
            folders = [
                (first.folders[first.by_seed.get(seed, 0)], second.folders[second.by_seed[seed]])
                for seed in seeds
            ]
            yield first, second, seeds, folders
