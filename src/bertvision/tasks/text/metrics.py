"""Metrics as functions of few sums, so that one formula serves a data set and every resample of it.

    accuracy   hits / n
    f1         2 hits / (predicted + true) of the positive class with two classes, else the mean over the classes that
               occur among labels or predictions
    mcc        (n sum_k hits_k - sum_k predicted_k true_k) /
               sqrt((n^2 - sum_k predicted_k^2) (n^2 - sum_k true_k^2)), for any number of classes
    pearson    covariance / sqrt(variance x variance)
    spearman   pearson of the ranks, ties sharing their mean rank

What is not defined (no example of the class, a constant prediction) is 0. Arrays may have any leading axes.
"""

import numpy as np
from numpy.typing import NDArray

__all__ = ["accuracy", "f1", "mcc", "pearson", "pearson_of_sums", "ranks", "spearman"]

Array = NDArray[np.float64]


def _ratio(above: Array, below: Array) -> Array:
    """above / below, 0 where below is 0."""
    return np.divide(above, below, out=np.zeros(np.broadcast(above, below).shape), where=below > 0)


def accuracy(hits: Array, true: Array) -> Array:
    """From (..., C) right predictions of each class and its examples."""
    return _ratio(hits.sum(-1), true.sum(-1))


def f1(hits: Array, predicted: Array, true: Array, positive: int) -> Array:
    """From (..., C) right predictions, predictions and examples of each class."""
    each = _ratio(2 * hits, predicted + true)
    if each.shape[-1] == 2:
        return each[..., positive]
    return _ratio(each.sum(-1), np.asarray((predicted + true > 0).sum(-1), np.float64))


def mcc(hits: Array, predicted: Array, true: Array) -> Array:
    """From (..., C) right predictions, predictions and examples of each class."""
    total = true.sum(-1)
    covariance = total * hits.sum(-1) - (predicted * true).sum(-1)
    spread = (total**2 - (predicted**2).sum(-1)) * (total**2 - (true**2).sum(-1))
    return _ratio(covariance, np.sqrt(np.maximum(spread, 0.0)))


def pearson_of_sums(n: Array, x: Array, y: Array, xx: Array, yy: Array, xy: Array) -> Array:
    """From the sums of 1, x, y, x^2, y^2 and xy; x and y should be centred before, or digits are lost."""
    covariance, first, second = n * xy - x * y, n * xx - x * x, n * yy - y * y
    # What rounding leaves of a constant is no variance.
    first = np.where(first > 1e-12 * n * xx, first, 0.0)
    second = np.where(second > 1e-12 * n * yy, second, 0.0)
    return np.clip(_ratio(covariance, np.sqrt(first * second)), -1.0, 1.0)


def pearson(first: Array, second: Array) -> float:
    """Correlation of two (E,) arrays."""
    if not len(first):
        return 0.0
    x, y = (np.asarray(v, np.float64) - np.mean(v, dtype=np.float64) for v in (first, second))
    # A mean of equal numbers may differ from them in the last digit.
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    return float(np.clip((x @ y) / (np.linalg.norm(x) * np.linalg.norm(y)), -1.0, 1.0))


def ranks(values: Array) -> Array:
    """(E,) ranks from 1 on; equal values share the mean of theirs."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    before = np.cumsum(counts) - counts
    return (before + (counts + 1) / 2)[group]


def spearman(first: Array, second: Array) -> float:
    """Rank correlation of two (E,) arrays."""
    return pearson(ranks(first), ranks(second))
