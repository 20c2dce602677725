"""Which windows each step of fine-tuning reads: a pure function of the data, the settings and the step.

An epoch has as many examples as the data; with balanced sampling they are drawn so that classes (of spans: windows
with and without an answer) come equally often. A step reads `batch_size` windows, or as many as `batch_tokens` allow:
then the number of steps differs a little from epoch to epoch, and fractions of an epoch are fractions of its own
steps. With several tasks a step reads windows of one of them (train/mixing.py).
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from bertvision.train.config import MixOrder
from bertvision.train.job import Job
from bertvision.train.mixing import mix_epoch

__all__ = ["Batch", "Batching"]

Batch = tuple[int, NDArray[np.int64]]
"""Number of the task, and its windows."""


class Batching:
    """The steps of a run."""

    def __init__(
        self,
        jobs: Sequence[Job],
        *,
        batch_size: int,
        tokens: int,
        seed: int,
        epochs: float,
        order: MixOrder = "sequential",
        temperature: float = 1.0,
    ) -> None:
        self.jobs, self.seed = jobs, seed
        self.order: MixOrder = order
        self.temperature = temperature
        self.plans = [job.plan(batch_size, tokens) for job in jobs]
        self.lengths = [job.train.windows.lengths for job in jobs]
        self._planned = lru_cache(maxsize=2)(self._plan)  # the present epoch, and one looked at
        self._begins = [0]
        """Step at which each epoch begins."""
        varies = any(plan.tokens for plan in self.plans)
        steady = sum(math.ceil(plan.units / plan.batch_size) for plan in self.plans)
        for epoch in range(math.ceil(epochs)):
            count = len(self.batches(epoch)) if varies else steady
            self._begins.append(self._begins[-1] + count)

    def _plan(self, epoch: int) -> list[Batch]:
        mixed = mix_epoch(
            self.plans, order=self.order, temperature=self.temperature, seed=self.seed, epoch=epoch
        )
        return [(number, self.jobs[number].rows(units)) for number, units in mixed]

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
