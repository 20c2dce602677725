"""Which windows each step of fine-tuning reads: a pure function of data, settings and step.

A task's units (examples: one window, or as many as belong together) are drawn and put into batches of similar length:

    natural     every unit once
    balanced    every class equally often, a rare class going round (states/plan.py)
    weighted    with replacement, each unit with weight 1 / count(its class)

With `subset` an epoch has so many units of the task, drawn anew every epoch. Batches of several tasks come in one of
three orders:

    sequential    task after task, as they are given
    mixed         all batches of all tasks, shuffled
    temperature   as many batches as mixed; each one's task is drawn with p_i ~ n_i ** (1 / temperature), n_i the units
                  of task i in an epoch: 1 is in proportion, infinity treats all tasks alike. A task that runs out
                  starts again, a large one does not come to its end.

A single natural or balanced task has the batches of `epoch_batches`. With batches by tokens the number of steps differs
a little from epoch to epoch, and fractions of an epoch are fractions of its own steps.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from bertvision.errors import ConfigError
from bertvision.states.plan import balanced_order, epoch_batches, group_rows
from bertvision.train.config import MixOrder, Sampling

Batch = tuple[int, NDArray[np.int64]]
"""Number of the task, and its windows (of `mix_epoch`: its units)."""

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
    """(U,) class of each unit; None with natural sampling."""
    sampling: Sampling = "natural"
    subset: int = 0
    """Units of an epoch; 0, or more than there are = all."""
    group: int = 1
    """Windows of a unit, which are neighbours."""

    def __post_init__(self) -> None:
        if len(self.lengths) == 0:
            raise ConfigError("a task has no examples to train on: check its training set")

    @property
    def units(self) -> int:
        """Units of one epoch."""
        return min(self.subset or len(self.lengths), len(self.lengths))


class Batching:
    """The steps of a run over one task or several."""

    def __init__(
        self,
        plans: Sequence[TaskPlan],
        *,
        seed: int,
        epochs: float,
        order: MixOrder = "sequential",
        temperature: float = 1.0,
    ) -> None:
        self.plans = plans

        def batches(epoch: int) -> list[Batch]:
            mixed = mix_epoch(plans, order=order, temperature=temperature, seed=seed, epoch=epoch)
            return [(number, group_rows(units, plans[number].group)) for number, units in mixed]

        self.batches = lru_cache(maxsize=2)(batches)  # the present epoch, and the next
        """The batches of one epoch."""
        steady = sum(math.ceil(plan.units / plan.batch_size) for plan in plans)
        varies = any(plan.tokens for plan in plans)
        counts = [len(batches(epoch)) if varies else steady for epoch in range(math.ceil(epochs))]
        self._begins = np.cumsum([0, *counts]).tolist()
        """Step at which each epoch begins."""

    def step_of(self, fraction: float) -> int:
        """Steps done when so many epochs are; at least one."""
        whole = min(int(fraction), len(self._begins) - 2)
        begin, end = self._begins[whole], self._begins[whole + 1]
        return max(1, round(begin + (fraction - whole) * (end - begin)))

    def place(self, step: int) -> tuple[int, int]:
        """The epoch a step belongs to and its number in it."""
        epoch = int(np.searchsorted(self._begins, step, side="right")) - 1
        return epoch, step - self._begins[epoch]

    def epochs_done(self, step: int) -> float:
        """The opposite of `step_of`."""
        epoch, number = self.place(step)
        if number == 0:
            return float(epoch)
        return epoch + number / (self._begins[epoch + 1] - self._begins[epoch])

    def steps(self, begin: int, end: int) -> Iterator[Batch]:
        """The batches of the steps from `begin` to before `end`."""
        while begin < end:
            epoch, number = self.place(begin)
            own = self.batches(epoch)[number : number + end - begin]
            yield from own
            begin += len(own)


def mix_epoch(
    plans: Sequence[TaskPlan], *, order: MixOrder, temperature: float = 1.0, seed: int, epoch: int
) -> list[Batch]:
    """(number of the task, its units) batch after batch, for one epoch."""
    batches = [_batches(plan, seed, number, epoch) for number, plan in enumerate(plans)]
    listed = [(number, batch) for number, own in enumerate(batches) for batch in own]
    if order == "sequential":
        return listed
    rng = np.random.default_rng([seed, epoch, _ORDER + len(plans)])
    if order == "mixed":
        return [listed[i] for i in rng.permutation(len(listed))]
    sizes = np.log([plan.units for plan in plans]) / temperature  # as logarithms: no power runs over
    shares = np.exp(sizes - sizes.max())
    tasks = rng.choice(len(plans), size=len(listed), p=shares / shares.sum()).tolist()
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
    """(U,) rank of each unit within its class (0, 1, 2, ...): sorted by it, classes take turns."""
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
