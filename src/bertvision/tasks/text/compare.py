"""Is one system better than another on the same examples, by whatever the task is judged by?

The difference is the mean metric of our members (seeds) less the mean of theirs; its interval comes from resampling
examples, the same ones for all members. No metric but accuracy is a mean over examples, so every resample is scored
anew, from sums weighted by how often each example was drawn:

    labels   examples with the same label and the same predictions of all members are one cell; a resample is counts of
             cells, and hits, predictions and examples of each class are products of these with 0/1 matrices
    pearson  sums of x, y, x^2, y^2, xy are products likewise
    spearman values are sorted once; the rank of a value in a resample is the number drawn before it in that order

The draws are those of tasks/span/compare.py: by accuracy the interval is that of `paired_bootstrap`, divided by 100.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertvision.errors import DataError
from bertvision.tasks.span.compare import Difference, mcnemar
from bertvision.tasks.text import metrics
from bertvision.tasks.text.score import metric
from bertvision.tasks.text.task import TextTask

__all__ = ["Difference", "mcnemar", "paired_difference"]

_CELLS = 1 << 17  # example numbers drawn at a time: 1 MB stays in a core's own memory
Counts = NDArray[np.float64]
Scorer = Callable[[Counts], NDArray[np.float64]]
"""From (D, K) how often each cell was drawn to (D,) differences of the metric."""


def paired_difference(
    task: TextTask,
    right: NDArray[Any],
    ours: Sequence[NDArray[Any]],
    theirs: Sequence[NDArray[Any]],
    *,
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Difference:
    """Mean metric of `ours` less that of `theirs` and its percentile interval, in units of the metric.

    Args:
        task: Names the metric.
        right: (E,) class numbers or scores (`score.truth`).
        ours: Predictions (E,) of each member (`TextAnswers.values`).
        theirs: Predictions of each member of the system to compare with.
    """
    members = [*ours, *theirs]
    if not ours or not theirs or not len(right) or any(values.shape != right.shape for values in members):
        sizes = ", ".join(str(len(values)) for values in members) or "none"
        raise DataError(
            f"two systems must be compared on the same examples: there are {len(right)} labels and {sizes} predictions"
        )
    share = np.repeat([1 / len(ours), -1 / len(theirs)], [len(ours), len(theirs)])
    whole = float(share @ [metric(task, right, values) for values in members])
    columns = np.stack([right, *members], axis=1)
    distinct, cell = np.unique(columns, axis=0, return_inverse=True)
    scorer = _scorer(task, distinct, share)
    drawn = _resample(cell.reshape(-1), len(distinct), scorer, resamples, seed)
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    # Sums of thirds leave 1e-17 where nothing differs: zero should be told as zero.
    return Difference(*(round(float(value), 12) + 0.0 for value in (whole, low, high)))


def _resample(
    cell: NDArray[np.int64], cells: int, scorer: Scorer, resamples: int, seed: int
) -> NDArray[np.float64]:
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


def _scorer(task: TextTask, distinct: NDArray[Any], share: NDArray[np.float64]) -> Scorer:
    right, members = distinct[:, 0], list(distinct[:, 1:].T)
    if task.metric == "spearman":
        return _spearman(right, members, share)
    if task.metric == "pearson":
        return _pearson(right, members, share)
    return _labels(task, right, members, share)


def _labels(
    task: TextTask, right: NDArray[Any], members: list[NDArray[Any]], share: NDArray[np.float64]
) -> Scorer:
    names = np.arange(len(task.classes))
    is_class = (right[:, None] == names).astype(np.float64)  # (K, C)
    said = [(values[:, None] == names).astype(np.float64) for values in members]

    def score(counts: Counts) -> NDArray[np.float64]:
        true, total = counts @ is_class, np.zeros(len(counts))
        for weight, chosen in zip(share, said, strict=True):
            hits, predicted = counts @ (is_class * chosen), counts @ chosen  # (D, C)
            if task.metric == "accuracy":
                total += weight * metrics.accuracy(hits, true)
            elif task.metric == "f1":
                total += weight * metrics.f1(hits, predicted, true, task.positive)
            else:
                total += weight * metrics.mcc(hits, predicted, true)
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
            total += weight * metrics.pearson_of_sums(n, sum_x, sum_y, sum_xx, sum_yy, sum_xy)
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
            total += weight * metrics.pearson_of_sums(n, zero, zero, sum_xx, sum_yy, sum_xy)
        return total

    return score


class _Ranking:
    """Values sorted once, whose ranks in any resample follow from counts."""

    def __init__(self, values: NDArray[Any]) -> None:
        self.order = np.argsort(values, kind="stable")
        ordered = values[self.order]
        self.begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
        self.group = np.unique(values, return_inverse=True)[1].reshape(-1)

    def ranks(self, counts: Counts) -> Counts:
        """(D, K) mean rank of each cell's value less the mean of all ranks; (D, K) `counts` of the cells."""
        sizes = counts.take(self.order, axis=1)
        if len(self.begins) < len(self.order):
            sizes = np.add.reduceat(sizes, self.begins, axis=1)  # (D, distinct values)
        behind = np.cumsum(sizes, axis=1)
        rank = behind - sizes / 2 - behind[:, -1:] / 2
        return rank.take(self.group, axis=1)
