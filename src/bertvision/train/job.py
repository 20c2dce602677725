"""A job: one task of a fine-tuning, with its data, its head and how its examples are drawn.

Usually there is one. Several train the same encoder in turn, batch by batch (train/mixing.py): each has a head of its
own, and a batch is of one job alone.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertvision.errors import ConfigError
from bertvision.heads.base import Geometry, Head, check_unit, head_class
from bertvision.heads.spec import HeadSpec, TrainOverrides, parse_head
from bertvision.states.plan import group_rows
from bertvision.tasks.base import Task
from bertvision.train.config import Sampling
from bertvision.train.mixing import TaskPlan
from bertvision.train.splits import Split

__all__ = ["Job"]


@dataclass(frozen=True)
class Job:
    """What one task brings to a fine-tuning."""

    train: Split
    dev: Split | None = None
    name: str = ""
    """Its head's folder; empty where it is the only one."""
    head: str = ""
    """The head that trains with the encoder; empty = the usual one of the task."""
    batch_size: int = 0
    """Examples in a batch; 0 = as the fine-tuning says."""
    sampling: Sampling = "natural"
    subset: int = 0
    """Examples of an epoch, drawn anew each time; 0 = all."""
    weight: float = 1.0
    """What its loss counts for."""
    bins: int = 5
    """Classes that scores are put into where sampling looks at them."""

    def __post_init__(self) -> None:
        if not (self.weight > 0 and np.isfinite(self.weight)):
            raise ConfigError(f"weight of task {self.name} must be above 0, not {self.weight}")
        check_unit(head_class(self.spec.name), self.task.unit)
        if self.spec.train != TrainOverrides():
            raise ConfigError(f"head {self.head} trains as the encoder does: set --lr and the like instead")

    @property
    def task(self) -> Task:
        return self.train.task

    @property
    def spec(self) -> HeadSpec:
        return parse_head(self.head or self.task.head)

    @property
    def identity(self) -> dict[str, Any]:
        """What decides its part in a result."""
        drawn = (self.batch_size, self.sampling, self.subset, self.weight, self.bins)
        return {
            "name": self.name,
            "train": self.train.fingerprint,
            "head": self.spec.label,
            "drawn": list(drawn),
        } | self.train.about

    def build(self, geometry: Geometry, *, seed: int) -> Head:
        """Its head; one that reads another number of windows at once than its data has side by side is refused."""
        made = self.spec.build(geometry, seed=seed)
        if made.windows != self.task.group:
            way = "give it --apart" if made.windows == 2 else "name one that does, such as minbert:vectors=2"
            raise ConfigError(
                f"--head {self.spec.label} reads {made.windows} window{'s' * (made.windows > 1)} of an example, and "
                f"{self.train.name} has {self.task.group} side by side: {way}"
            )
        return made

    def folder(self, snapshot: Path) -> Path:
        """Where its head is kept in a snapshot."""
        return snapshot / "heads" / self.name if self.name else snapshot / "head"

    # ---- which windows it reads

    def plan(self, batch_size: int, tokens: int) -> TaskPlan:
        """How its examples are drawn: units of one window, or of those that are an example side by side."""
        group = self.task.group
        lengths = self.train.windows.lengths.reshape(-1, group).max(axis=1) * group
        classes = None
        if self.sampling != "natural":
            classes = self.task.sampling_classes(self.train.data, self.train.windows, self.bins)
        return TaskPlan(lengths, self.batch_size or batch_size, tokens, classes, self.sampling, self.subset)

    def rows(self, units: NDArray[np.int64]) -> NDArray[np.int64]:
        """The windows of units."""
        return group_rows(units, self.task.group)
