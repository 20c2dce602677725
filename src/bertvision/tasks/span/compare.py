"""Is one system better than another, question by question?

`paired_bootstrap` resamples questions, the same ones for both systems, and gives the interval of the
difference; `mcnemar` gives the exact probability that two equally good systems disagree as unevenly.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertvision.errors import DataError

__all__ = ["Difference", "mcnemar", "paired_bootstrap"]

_CELLS = 1 << 21  # question numbers drawn at a time: 16 MB


@dataclass(frozen=True)
class Difference:
    """First system minus second, in points (percent)."""

    difference: float
    low: float
    high: float


def _check(first: NDArray[np.floating], second: NDArray[np.floating]) -> None:
    if first.shape != second.shape or first.ndim != 1 or not first.size:
        raise DataError(
            f"two systems must be compared on the same questions: got {first.size} and {second.size}"
        )


def paired_bootstrap(
    first: NDArray[np.floating],
    second: NDArray[np.floating],
    *,
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Difference:
    """Mean difference of two systems' (Q,) scores between 0 and 1 and its percentile interval."""
    _check(first, second)
    gap = 100.0 * (np.asarray(first, np.float64) - np.asarray(second, np.float64))
    random = np.random.default_rng(seed)
    means = np.empty(resamples)
    # Whole resamples at a time, drawn one after the other: the chunk size does not change the numbers.
    step = max(1, _CELLS // gap.size)
    for begin in range(0, resamples, step):
        size = min(step, resamples - begin)
        drawn = random.integers(0, gap.size, size=(size, gap.size))
        means[begin : begin + size] = gap[drawn].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Difference(float(gap.mean()), float(low), float(high))


def mcnemar(first: NDArray[np.floating], second: NDArray[np.floating]) -> float:
    """Exact two-sided p of McNemar's test on two systems' (Q,) exact matches (0 or 1)."""
    _check(first, second)
    only_first = int(((first > 0.5) & (second <= 0.5)).sum())
    only_second = int(((second > 0.5) & (first <= 0.5)).sum())
    n, k = only_first + only_second, min(only_first, only_second)
    # Integers stay exact however many questions there are; one division at the end.
    term = tail = 1
    for i in range(1, k + 1):
        term = term * (n - i + 1) // i
        tail += term
    return min(1.0, 2 * tail / (1 << n))
