"""Paired bootstraps of a whole report: questions are drawn once, and every comparison reads the same draws.

A resample is known by how often it holds each question, so that its mean is a product with these counts. The draws are
those of tasks/span/compare.py (same seed, same order), and so are the intervals but for the order of sums.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from bertvision.errors import DataError
from bertvision.tasks.span.compare import Difference

__all__ = ["paired", "paired_all"]

_RESAMPLES = 2000
_ROWS = 200
"""Resamples at a time."""


@lru_cache(maxsize=4)
def _counts(questions: int) -> NDArray[np.uint16]:
    """(R, Q) how often each question is drawn; 48 MB for SQuAD's dev."""
    random = np.random.default_rng(0)
    counts = np.empty((_RESAMPLES, questions), np.uint16)
    for begin in range(0, _RESAMPLES, _ROWS):
        for row, drawn in enumerate(random.integers(0, questions, size=(_ROWS, questions)), start=begin):
            counts[row] = np.bincount(drawn, minlength=questions)
    return counts


def paired_all(pairs: Sequence[tuple[NDArray[np.floating], NDArray[np.floating]]]) -> list[Difference]:
    """`paired` of several pairs over the same questions."""
    for first, second in pairs:
        if first.shape != second.shape or first.ndim != 1 or not first.size:
            raise DataError(
                f"two systems must be compared on the same questions: got {first.size} and {second.size}"
            )
    gaps = np.stack(
        [np.asarray(first, np.float64) - np.asarray(second, np.float64) for first, second in pairs], axis=1
    )  # (Q, P)
    gaps *= 100.0
    counts = _counts(len(gaps))
    means = np.concatenate(
        [
            counts[begin : begin + _ROWS].astype(np.float64) @ gaps / len(gaps)
            for begin in range(0, _RESAMPLES, _ROWS)
        ]
    )  # (R, P)
    low, high = np.quantile(means, [0.025, 0.975], axis=0)
    middle = gaps.mean(axis=0)
    return [Difference(*map(float, row)) for row in zip(middle, low, high, strict=True)]


def paired(first: NDArray[np.floating], second: NDArray[np.floating]) -> Difference:
    """Mean difference of two systems' (Q,) scores between 0 and 1 in points, and its 95 % interval."""
    return paired_all([(first, second)])[0]
