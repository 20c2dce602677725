"""Is one system better than another on the same examples, by whichever metric?

The difference is the mean metric of our members (seeds) minus that of theirs; its percentile interval comes from
resampling examples, the same ones for all members. Examples that no metric can tell apart are one cell, and a resample
is how often each cell was drawn:

    means    of numbers of each example (exact match, F1 of an answer): counts x values
    labels   examples with the same label and the same predictions of all members are one cell; hits, predictions and
             examples of each class are products of counts with 0/1 matrices
    pearson  sums of x, y, x^2, y^2, xy are products likewise
    spearman values are sorted once; the rank of a value in a resample is the number drawn before it in that order

Two systems that disagree unevenly are tested with McNemar's exact test.

Shapes: E examples, K cells, D resamples, C classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertvision.errors import DataError
from bertvision.tasks.metrics import Metric, counted, pearson, pearson_of_sums, spearman

__all__ = ["RESAMPLES", "Difference", "mcnemar", "mean_difference", "metric_difference"]

RESAMPLES = 2000
_CELLS = 1 << 17  # example numbers drawn at a time: 1 MB stays in a core's own memory
Counts = NDArray[np.float64]
Scorer = Callable[[Counts], NDArray[np.float64]]
"""From (D, K) how often each cell was drawn to (D,) differences of the metric."""


@dataclass(frozen=True)
class Difference:
    """First system minus second, in units of the metric, and its 95 % interval."""

    difference: float
    low: float
    high: float


def mean_difference(
    ours: Sequence[NDArray[np.floating]],
    theirs: Sequence[NDArray[np.floating]],
    *,
    resamples: int = RESAMPLES,
    level: float = 0.95,
    seed: int = 0,
) -> Difference:
    """For metrics that are means over examples: (E,) values of each member; without `theirs` the mean of ours."""
    _check(ours, theirs, len(ours[0]) if ours else 0)
    gap = np.asarray(np.mean(ours, axis=0, dtype=np.float64))
    if theirs:
        gap = gap - np.mean(theirs, axis=0, dtype=np.float64)
    values, cell = np.unique(gap, return_inverse=True)
    drawn = _resample(cell, len(values), lambda counts: counts @ values / len(gap), resamples, seed)
    return _interval(float(gap.mean()), drawn, level)


def metric_difference(
    metric: Metric,
    right: NDArray[Any],
    ours: Sequence[NDArray[Any]],
    theirs: Sequence[NDArray[Any]],
    *,
    classes: int = 0,
    positive: int = 1,
    resamples: int = RESAMPLES,
    level: float = 0.95,
    seed: int = 0,
) -> Difference:
    """For metrics of predictions and truth; without `theirs` the metric of ours.

    Args:
        right: (E,) class numbers or scores.
        ours: Predictions (E,) of each member.
        theirs: Predictions of each member of the system to compare with.
    """
    members = [*ours, *theirs]
    _check(ours, theirs, len(right))
    share = np.repeat([1 / len(ours), -1 / max(len(theirs), 1)], [len(ours), len(theirs)])
    if metric.counts is not None:
        scores = [counted(metric, right, values, classes, positive) for values in members]
    else:
        assert metric.values is not None
        scores = [metric.values(right, values) for values in members]
    distinct, cell = np.unique(np.stack([right, *members], axis=1), axis=0, return_inverse=True)
    scorer = _scorer(metric, distinct, share, classes, positive)
    drawn = _resample(cell.reshape(-1), len(distinct), scorer, resamples, seed)
    return _interval(float(share @ scores), drawn, level)


def mcnemar(first: NDArray[Any], second: NDArray[Any]) -> float:
    """Exact two-sided p of McNemar's test on whether two systems are right on each example (E,), 0 or 1."""
    _check([first], [second], len(first))
    only_first = int(((first > 0.5) & (second <= 0.5)).sum())
    only_second = int(((second > 0.5) & (first <= 0.5)).sum())
    n, k = only_first + only_second, min(only_first, only_second)
    # Integers stay exact however many examples there are; one division at the end.
    term = tail = 1
    for i in range(1, k + 1):
        term = term * (n - i + 1) // i
        tail += term
    return min(1.0, 2 * tail / (1 << n))


def _check(ours: Sequence[NDArray[Any]], theirs: Sequence[NDArray[Any]], examples: int) -> None:
    if not examples or not ours or any(values.shape != (examples,) for values in (*ours, *theirs)):
        sizes = ", ".join(str(len(values)) for values in (*ours, *theirs)) or "none"
        raise DataError(
            f"two systems must be compared on the same examples: there are {examples} examples and "
            f"predictions for {sizes}"
        )


def _interval(whole: float, drawn: NDArray[np.float64], level: float) -> Difference:
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    # Sums of thirds leave 1e-17 where nothing differs: zero should read as zero.
    return Difference(*(round(float(value), 12) + 0.0 for value in (whole, low, high)))


def _resample(
    cell: NDArray[np.int64], cells: int, scorer: Scorer, resamples: int, seed: int
) -> NDArray[np.float64]:
    """(D,) the scorer's value of every resample."""
    random = np.random.default_rng(seed)
    found = np.empty(resamples)
    # Whole resamples at a time, drawn one after the other: the chunk size does not change the numbers.
    step = max(1, _CELLS // len(cell))
    for begin in range(0, resamples, step):
        size = min(step, resamples - begin)
        drawn = cell[random.integers(0, len(cell), size=(size, len(cell)))]
        drawn += np.arange(size)[:, None] * cells
        counts = np.bincount(drawn.ravel(), minlength=size * cells).reshape(size, cells)
        found[begin : begin + size] = scorer(counts.astype(np.float64))
    return found


# ---- scorers


def _scorer(
    metric: Metric, distinct: NDArray[Any], share: NDArray[np.float64], classes: int, positive: int
) -> Scorer:
    right, members = distinct[:, 0], list(distinct[:, 1:].T)
    if metric.counts is not None:
        return _labels(metric, right, members, share, classes, positive)
    if metric.values is pearson:
        return _pearson(right, members, share)
    if metric.values is spearman:
        return _spearman(right, members, share)
    return _any(metric, right, members, share)


def _labels(
    metric: Metric,
    right: NDArray[Any],
    members: list[NDArray[Any]],
    share: NDArray[np.float64],
    classes: int,
    positive: int,
) -> Scorer:
    assert metric.counts is not None
    of_sums, names = metric.counts, np.arange(classes)
    is_class = (right[:, None] == names).astype(np.float64)  # (K, C)
    chosen = [(values[:, None] == names).astype(np.float64) for values in members]

    def score(counts: Counts) -> NDArray[np.float64]:
        true, total = counts @ is_class, np.zeros(len(counts))
        for weight, own in zip(share, chosen, strict=True):
            total += weight * of_sums(counts @ (is_class * own), counts @ own, true, positive)  # (D, C) each
        return total

    return score


def _pearson(right: NDArray[Any], members: list[NDArray[Any]], share: NDArray[np.float64]) -> Scorer:
    # Centred, so that no digits are lost in differences of large sums.
    y = right - right.mean()
    xs = [values - values.mean() for values in members]

    def score(counts: Counts) -> NDArray[np.float64]:
        n, sum_y, sum_yy = counts.sum(1), counts @ y, counts @ (y * y)
        total = np.zeros(len(counts))
        for weight, x in zip(share, xs, strict=True):
            sum_x, sum_xx, sum_xy = counts @ x, counts @ (x * x), counts @ (x * y)
            total += weight * pearson_of_sums(n, sum_x, sum_y, sum_xx, sum_yy, sum_xy)
        return total

    return score


def _spearman(right: NDArray[Any], members: list[NDArray[Any]], share: NDArray[np.float64]) -> Scorer:
    ranked = [_Ranking(values) for values in (right, *members)]

    def score(counts: Counts) -> NDArray[np.float64]:
        n, zero = counts.sum(1), np.zeros(len(counts))
        y = ranked[0].ranks(counts)  # centred: their weighted sum is 0
        sum_yy, total = np.einsum("dk,dk,dk->d", counts, y, y), np.zeros(len(counts))
        for weight, ranking in zip(share, ranked[1:], strict=True):
            x = ranking.ranks(counts)
            weighted = counts * x
            sum_xx, sum_xy = np.einsum("dk,dk->d", weighted, x), np.einsum("dk,dk->d", weighted, y)
            total += weight * pearson_of_sums(n, zero, zero, sum_xx, sum_yy, sum_xy)
        return total

    return score


def _any(
    metric: Metric, right: NDArray[Any], members: list[NDArray[Any]], share: NDArray[np.float64]
) -> Scorer:
    """For a metric without a formula of counts: score every resample anew."""
    assert metric.values is not None
    of_values = metric.values

    def score(counts: Counts) -> NDArray[np.float64]:
        rows = [np.repeat(np.arange(len(right)), row) for row in counts.astype(np.int64)]
        return np.array([share @ [of_values(right[i], values[i]) for values in members] for i in rows])

    return score


class _Ranking:
    """Values sorted once, whose ranks in any resample follow from counts."""

    def __init__(self, values: NDArray[Any]) -> None:
        self.order = np.argsort(values, kind="stable")
        ordered = values[self.order]
        self.begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
        self.group = np.unique(values, return_inverse=True)[1].reshape(-1)

    def ranks(self, counts: Counts) -> Counts:
        """(D, K) mean rank of each cell's value minus the mean of all ranks; (D, K) `counts` of the cells."""
        sizes = counts.take(self.order, axis=1)
        if len(self.begins) < len(self.order):
            sizes = np.add.reduceat(sizes, self.begins, axis=1)  # (D, distinct values)
        behind = np.cumsum(sizes, axis=1)
        rank = behind - sizes / 2 - behind[:, -1:] / 2
        return rank.take(self.group, axis=1)
