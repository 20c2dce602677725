"""Which windows each step of fine-tuning reads: a pure function of the data, the settings and the step.

An epoch has as many windows as the data; with balanced sampling they are drawn so that windows with and without an
answer come equally often. A step reads `batch_size` windows, or as many as `batch_tokens` allow: then the number of
steps differs a little from epoch to epoch, and fractions of an epoch are fractions of its own steps.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from bertvision.data.windows import Windows
from bertvision.feed.plan import epoch_batches

__all__ = ["Batching"]


class Batching:
    """The steps of a run."""

    def __init__(
        self, windows: Windows, *, batch_size: int, tokens: int, balanced: bool, seed: int, epochs: float
    ) -> None:
        self.lengths, self.batch_size, self.tokens, self.seed = windows.lengths, batch_size, tokens, seed
        self.classes = (windows.labels[:, 0] != windows.null).astype(np.int64) if balanced else None
        self._planned = lru_cache(maxsize=2)(self._plan)  # the present epoch, and one looked at
        self._begins = [0]
        """Step at which each epoch begins."""
        for epoch in range(math.ceil(epochs)):
            count = len(self.epoch(epoch)) if tokens else math.ceil(len(self.lengths) / batch_size)
            self._begins.append(self._begins[-1] + count)

    def _plan(self, epoch: int) -> list[NDArray[np.int64]]:
        return epoch_batches(
            self.lengths,
            self.batch_size,
            seed=self.seed,
            epoch=epoch,
            classes=self.classes,
            tokens=self.tokens,
        )

    def epoch(self, epoch: int) -> list[NDArray[np.int64]]:
        """The batches of one epoch."""
        return self._planned(epoch)

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
        tokens = 0
        for epoch, (begin, end) in enumerate(zip(self._begins, self._begins[1:], strict=False)):
            if begin >= total:
                break
            if end <= total and self.classes is None:
                tokens += int(self.lengths.sum())
                continue
            tokens += sum(int(self.lengths[batch].sum()) for batch in self.epoch(epoch)[: total - begin])
        return tokens
