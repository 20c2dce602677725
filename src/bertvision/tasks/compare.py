"""Is one system better than another on the same examples, by whichever metric?

The difference is the mean metric of our members (seeds) minus that of theirs; its percentile interval comes from
resampling examples, the same ones for all members. Two systems that disagree unevenly are tested with McNemar's exact
test.

Shapes: E examples, D resamples.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertvision.errors import DataError
from bertvision.tasks.metrics import Metric

_RESAMPLES, _LEVEL = 2000, 0.95
_CELLS = 1 << 17  # example numbers drawn at a time: 1 MB stays in a core's own memory


@dataclass(frozen=True)
class Difference:
    """First system minus second, in units of the metric, and its 95 % interval."""

    difference: float
    low: float
    high: float


def mean_difference(
    ours: Sequence[NDArray[np.floating]], theirs: Sequence[NDArray[np.floating]] = (), **how: int
) -> Difference:
    """For metrics that are means over examples: (E,) values of each member; without `theirs` the mean of ours."""
    _check(*ours, *theirs)
    gap = np.asarray(np.mean(ours, axis=0, dtype=np.float64))
    if theirs:
        gap = gap - np.mean(theirs, axis=0, dtype=np.float64)
    return _bootstrap(lambda rows: gap[rows].mean(-1), len(gap), **how)


def metric_difference(
    metric: Metric,
    right: NDArray[Any],
    ours: Sequence[NDArray[Any]],
    theirs: Sequence[NDArray[Any]] = (),
    *,
    classes: int = 0,
    positive: int = 1,
    **how: int,
) -> Difference:
    """For metrics of predictions and truth; without `theirs` the metric of ours.

    Args:
        right: (E,) class numbers or scores.
        ours: Predictions (E,) of each member.
        theirs: Predictions of each member of the system to compare with.
    """
    _check(right, *ours, *theirs)
    function = metric.predictions
    assert function is not None
    if classes:  # small numbers are drawn and compared several times faster
        right, *members = (values.astype(np.int16) for values in (right, *ours, *theirs))
        ours, theirs = members[: len(ours)], members[len(ours) :]

    def score(rows: NDArray[np.int64]) -> NDArray[np.float64]:
        truth = right[rows]
        sides = [
            np.mean([function(truth, own[rows], classes, positive) for own in members], axis=0)
            for members in (ours, theirs)
            if members
        ]
        return sides[0] - sides[1] if theirs else sides[0]

    return _bootstrap(score, len(right), **how)


def mcnemar(first: NDArray[Any], second: NDArray[Any]) -> float:
    """Exact two-sided p of McNemar's test on whether two systems are right on each example (E,), 0 or 1."""
    _check(first, second)
    only_first = int(((first > 0.5) & (second <= 0.5)).sum())
    only_second = int(((second > 0.5) & (first <= 0.5)).sum())
    n, k = only_first + only_second, min(only_first, only_second)
    # Integers stay exact however many examples there are; one division at the end.
    term = tail = 1
    for i in range(1, k + 1):
        term = term * (n - i + 1) // i
        tail += term
    return min(1.0, 2 * tail / (1 << n))


def _check(*members: NDArray[Any]) -> None:
    sizes = [len(values) for values in members]
    if not sizes[0] or len(set(sizes)) > 1:
        raise DataError(
            f"systems must be compared on the same examples, not on {', '.join(map(str, sizes))} of them"
        )


def _bootstrap(
    score: Callable[[NDArray[np.int64]], NDArray[np.float64]],
    examples: int,
    *,
    resamples: int = _RESAMPLES,
    seed: int = 0,
) -> Difference:
    """The score of all examples and the percentiles of its resamples; `score` gives (D,) values of (D, E) numbers."""
    random = np.random.default_rng(seed)
    # Whole resamples at a time, drawn one after the other: the chunk size does not change the numbers.
    step = max(1, _CELLS // examples)
    sizes = [min(step, resamples - begin) for begin in range(0, resamples, step)]
    drawn = np.concatenate([score(random.integers(0, examples, size=(size, examples))) for size in sizes])
    low, high = np.quantile(drawn, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    whole = score(np.arange(examples)[None])[0]
    # Sums of thirds leave 1e-17 where nothing differs: zero should read as zero.
    return Difference(*(round(float(value), 12) + 0.0 for value in (whole, low, high)))
