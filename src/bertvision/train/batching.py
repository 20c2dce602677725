"""Which windows each step of fine-tuning reads: a pure function of the data, the settings and the step.

An epoch has as many examples as the data; with balanced sampling they are drawn so that classes (of spans: windows
with and without an answer) come equally often. A step reads `batch_size` windows, or as many as `batch_tokens` allow:
then the number of steps differs a little from epoch to epoch, and fractions of an epoch are fractions of its own
steps. With several tasks a step reads windows of one of them (train/mixing.py).
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from bertvision.data.windows import Windows
from bertvision.train.config import MixOrder
from bertvision.train.job import Job
from bertvision.train.mixing import TaskPlan, mix_epoch

__all__ = ["Batch", "Batching"]

Batch = tuple[int, NDArray[np.int64]]
"""Number of the task, and its windows."""


class Batching:
    """The steps of a run."""

    def __init__(
        self, windows: Windows, *, batch_size: int, tokens: int, balanced: bool, seed: int, epochs: float
    ) -> None:
        classes = (windows.labels[:, 0] != windows.null).astype(np.int64) if balanced else None
        plan = TaskPlan(windows.lengths, batch_size, tokens, classes, "balanced" if balanced else "natural")
        self._begin(
            [plan], [windows.lengths], lambda _, units: units, order="sequential", temperature=1.0, seed=seed,
            epochs=epochs,
        )  # fmt: skip

    @classmethod
    def of(
        cls,
        jobs: Sequence[Job],
        *,
        batch_size: int,
        tokens: int,
        seed: int,
        epochs: float,
        order: MixOrder = "sequential",
        temperature: float = 1.0,
    ) -> "Batching":
        """The steps of one task or several."""
        made = cls.__new__(cls)
        made._begin(
            [job.plan(batch_size, tokens) for job in jobs],
            [job.train.windows.lengths for job in jobs],
            lambda number, units: jobs[number].rows(units),
            order=order,
            temperature=temperature,
            seed=seed,
            epochs=epochs,
        )
        return made

    def _begin(
        self,
        plans: list[TaskPlan],
        lengths: list[NDArray[np.int64]],
        rows: Callable[[int, NDArray[np.int64]], NDArray[np.int64]],
        *,
        order: MixOrder,
        temperature: float,
        seed: int,
        epochs: float,
    ) -> None:
        self.plans, self.lengths, self._rows, self.seed = plans, lengths, rows, seed
        self.order: MixOrder = order
        self.temperature = temperature
        self._planned = lru_cache(maxsize=2)(self._plan)  # the present epoch, and one looked at
        self._begins = [0]
        """Step at which each epoch begins."""
        varies = any(plan.tokens for plan in plans)
        steady = sum(math.ceil(plan.units / plan.batch_size) for plan in plans)
        for epoch in range(math.ceil(epochs)):
            count = len(self.batches(epoch)) if varies else steady
            self._begins.append(self._begins[-1] + count)

    def _plan(self, epoch: int) -> list[Batch]:
        mixed = mix_epoch(
            self.plans, order=self.order, temperature=self.temperature, seed=self.seed, epoch=epoch
        )
        return [(number, self._rows(number, units)) for number, units in mixed]

    def batches(self, epoch: int) -> list[Batch]:
        """The batches of one epoch, each with the number of its task."""
        return self._planned(epoch)

    def epoch(self, epoch: int) -> list[NDArray[np.int64]]:
        """The same without the numbers, for one task."""
        return [windows for _, windows in self.batches(epoch)]

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

    def tokens_of(self, total: int) -> int:
        """Real tokens of the first `total` steps."""
        once = len(self.plans) == 1 and self.plans[0].sampling == "natural" and not self.plans[0].subset
        tokens = 0
        for epoch, (begin, end) in enumerate(zip(self._begins, self._begins[1:], strict=False)):
            if begin >= total:
                break
            if end <= total and once:
                tokens += int(self.lengths[0].sum())
                continue
            done = self.batches(epoch)[: total - begin]
            tokens += sum(int(self.lengths[number][windows].sum()) for number, windows in done)
        return tokens
