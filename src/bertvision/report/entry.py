"""What a row of a report is made from, whatever its task."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from bertvision.heads.base import Head

__all__ = ["SystemEntry", "mark_best", "snapshot_of"]

S = TypeVar("S")


@dataclass
class SystemEntry(ABC, Generic[S]):
    """A system of the report: a snapshot, a head (with its seeds) or an ensemble."""

    snapshot: str
    label: str
    kind: Literal["snapshot", "control", "head", "ensemble"]
    head: Head | None
    folders: list[Path]
    infos: list[dict[str, Any]]
    """What the fit told of each seed: label, seed, seconds, history."""
    scores: dict[str, S]
    """By part of the data; dev is always there, heads are chosen on it."""
    members: list[str] | None = None
    best: bool = False

    @property
    @abstractmethod
    def dev_score(self) -> float:
        """What systems are chosen by, higher is better."""

    @property
    @abstractmethod
    def shipped(self) -> int:
        """The member to ship and to look at closely: the seed that scored highest on dev."""

    @property
    def folder(self) -> Path:
        return self.folders[self.shipped]

    @property
    def name(self) -> str:
        return self.label if self.kind == "snapshot" else f"{self.snapshot}/{self.label}"

    @property
    def by_seed(self) -> dict[int, Path]:
        """Folders of fitted heads by seed; empty for a snapshot."""
        return {info["seed"]: folder for info, folder in zip(self.infos, self.folders, strict=False)}

    @property
    def seeds(self) -> list[int] | None:
        return [info["seed"] for info in self.infos] or None


E = TypeVar("E", bound=SystemEntry[Any])


def snapshot_of(entry: E, entries: Sequence[E]) -> E | None:
    """The snapshot whose states it reads; a snapshot is its own."""
    return next((e for e in entries if e.kind == "snapshot" and e.snapshot == entry.snapshot), None)


def mark_best(entries: Sequence[SystemEntry[Any]]) -> None:
    """The best head on each snapshot; of controls, where there are no others."""
    for snapshot in {entry.snapshot for entry in entries}:
        own = [e for e in entries if e.snapshot == snapshot]
        heads = [e for e in own if e.kind == "head"] or [e for e in own if e.kind == "control"]
        if heads:
            max(heads, key=lambda e: e.dev_score).best = True
