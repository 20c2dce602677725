"""Several tasks over one encoder: whose examples each step reads, a pure function of data, settings and epoch.

A task's units (examples: one window, or as many as belong together) are drawn and put into batches of similar length;
the batches of all tasks then come in one of three orders:

    sequential    task after task, as they are given
    mixed         all batches of all tasks, shuffled
    temperature   as many batches as mixed; each one's task is drawn with p_i ~ n_i ** (1 / temperature), n_i the units
                  of task i in an epoch: 1 is in proportion, infinity treats all tasks alike. A task that runs out
                  starts again, a large one does not come to its end.

Drawing: `natural` takes every unit once; `balanced` every class equally often, a rare class going round (see
states/plan.py); `weighted` draws with replacement, each unit with weight 1 / count(its class). With `subset` an epoch
has so many units of the task, drawn anew every epoch. A single natural or balanced task sees the batches of
`epoch_batches`, which are those of plain fine-tuning.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertvision.errors import ConfigError
from bertvision.states.plan import balanced_order, epoch_batches
from bertvision.train.config import MixOrder, Sampling

__all__ = ["TaskPlan", "mix_epoch"]

_DRAW, _ORDER = 1 << 32, 0
"""Streams of random numbers beside [seed, epoch], that of `epoch_batches`. numpy ignores trailing zeros, so
[seed, epoch, 0] would be the same stream: a draw and the order of its batches would follow from the same numbers."""


@dataclass(frozen=True, eq=False)
class TaskPlan:
    """How one task is drawn from."""

    lengths: NDArray[np.int64]
    """(U,) padded tokens of each unit: of several windows their number times the longest."""
    batch_size: int
    """Units in a batch."""
    tokens: int = 0
    """Padded tokens of a batch instead; 0 = `batch_size` units."""
    classes: NDArray[np.int64] | None = None
    """(U,) class of each unit, for sampling that looks at it."""
    sampling: Sampling = "natural"
    subset: int = 0
    """Units of an epoch; 0, or more than there are = all."""

    def __post_init__(self) -> None:
        if len(self.lengths) == 0:
            raise ConfigError("a task has no examples to train on: check its training set")
        if self.batch_size < 1:
            raise ConfigError(f"--batch-size must be at least 1, not {self.batch_size}")
        if self.tokens < 0 or self.subset < 0:
            raise ConfigError(
                f"--batch-tokens and --subset must not be negative, not {self.tokens} and {self.subset}: "
                "0 leaves them out"
            )
        if self.sampling == "natural":
            return
        if self.classes is None:
            raise ConfigError(f"--sampling {self.sampling} needs the classes of the examples: use natural")
        if len(self.classes) != len(self.lengths):
            raise ConfigError(
                f"--sampling {self.sampling} got {len(self.classes)} classes for {len(self.lengths)} examples"
            )

    @property
    def units(self) -> int:
        """Units of one epoch."""
        return min(self.subset or len(self.lengths), len(self.lengths))


def mix_epoch(
    plans: Sequence[TaskPlan], *, order: MixOrder, temperature: float = 1.0, seed: int, epoch: int
) -> list[tuple[int, NDArray[np.int64]]]:
    """(number of the task, its units) batch after batch, for one epoch."""
    if not temperature > 0:
        raise ConfigError(f"--temperature must be above 0, not {temperature}")
    if not plans:
        return []
    batches = [_batches(plan, seed, number, epoch) for number, plan in enumerate(plans)]
    told = [(number, batch) for number, own in enumerate(batches) for batch in own]
    if order == "sequential":
        return told
    rng = np.random.default_rng([seed, epoch, _ORDER + len(plans)])
    if order == "mixed":
        return [told[i] for i in rng.permutation(len(told))]
    sizes = np.log([plan.units for plan in plans]) / temperature  # as logarithms: no power runs over
    shares = np.exp(sizes - sizes.max())
    tasks = rng.choice(len(plans), size=len(told), p=shares / shares.sum()).tolist()
    endless = [
        _again(plan, own, seed, i, epoch) for i, (plan, own) in enumerate(zip(plans, batches, strict=True))
    ]
    return [(task, next(endless[task])) for task in tasks]


def _batches(plan: TaskPlan, seed: int, number: int, epoch: int, turn: int = 0) -> list[NDArray[np.int64]]:
    """The batches of one task, on its `turn`-th way through an epoch."""
    if number or turn:  # the first turn of the first task has the batches a task alone has
        seed = int(np.random.SeedSequence([seed, number, turn]).generate_state(1, np.uint64)[0])
    units, classes = _drawn(plan, np.random.default_rng([seed, epoch, _DRAW]))
    found = epoch_batches(
        plan.lengths[units], plan.batch_size, seed=seed, epoch=epoch, classes=classes, tokens=plan.tokens
    )
    return [units[batch] for batch in found]


def _drawn(plan: TaskPlan, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """The units of an epoch, and their classes where they are still to be balanced."""
    total, count = len(plan.lengths), plan.units
    if plan.classes is None or plan.sampling == "natural":
        return np.arange(total) if count == total else np.sort(rng.permutation(total)[:count]), None
    if plan.sampling == "weighted":
        _, own, counts = np.unique(plan.classes, return_inverse=True, return_counts=True)
        weights = 1 / counts[own]
        return rng.choice(total, size=count, p=weights / weights.sum()), None
    if count == total:
        return np.arange(total), plan.classes
    order = balanced_order(plan.classes, rng)
    return order[np.argsort(_rank(plan.classes[order]), kind="stable")[:count]], None


def _rank(classes: NDArray[np.int64]) -> NDArray[np.int64]:
    """(U,) the how-manieth of its class each one is: sorted by it, classes take turns."""
    rank = np.zeros(len(classes), np.int64)
    for one in np.unique(classes):
        members = np.flatnonzero(classes == one)
        rank[members] = np.arange(len(members))
    return rank


def _again(
    plan: TaskPlan, batches: list[NDArray[np.int64]], seed: int, number: int, epoch: int
) -> Iterator[NDArray[np.int64]]:
    """The batches of one task without an end, drawn anew each time they are used up."""
    turn = 0
    while True:
        yield from batches
        turn += 1
        batches = _batches(plan, seed, number, epoch, turn)
