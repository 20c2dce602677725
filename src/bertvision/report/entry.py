"""What a row of a report is made from, whatever its task."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from bertvision.heads.base import Head

__all__ = ["SystemEntry"]

S = TypeVar("S")


@dataclass
class SystemEntry(Generic[S]):
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
    def name(self) -> str:
        return self.label if self.kind == "snapshot" else f"{self.snapshot}/{self.label}"

    @property
    def by_seed(self) -> dict[int, Path]:
        """Folders of fitted heads by seed; empty for a snapshot."""
        return {info["seed"]: folder for info, folder in zip(self.infos, self.folders, strict=False)}

    @property
    def seeds(self) -> list[int] | None:
        return [info["seed"] for info in self.infos] or None
