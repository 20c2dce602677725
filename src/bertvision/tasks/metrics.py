"""Every metric, by kind of task: its title, its name on the Hub, its unit, its direction and its function.

To add a metric of labels, write a function of sums and an entry in `LABEL`; training, sweeps, comparisons,
metrics.json, the report and the cards read these tables and nothing else.

    accuracy   hits / n
    f1         2 hits / (predicted + true) of the positive class with two classes, else the mean over the classes that
               occur among labels or predictions
    mcc        (n sum_k hits_k - sum_k predicted_k true_k) /
               sqrt((n^2 - sum_k predicted_k^2) (n^2 - sum_k true_k^2)), for any number of classes
    log_loss   mean of -log p(label)
    pearson    covariance / sqrt(variance x variance)
    spearman   pearson of the ranks; ties share their mean rank

Metrics of labels are functions of few sums, so that one formula serves a dataset and every resample of it: (..., C)
correct predictions, predictions and examples of each class. An undefined value (no example of the class, a constant
prediction) is 0. Metrics of spans are percentages, all others are fractions or in the unit of the scores.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertvision.tasks.calibrate import calibration_error

__all__ = [
    "LABEL",
    "SCORE",
    "SPAN",
    "TRIPLET",
    "Metric",
    "accuracy",
    "counted",
    "f1",
    "mcc",
    "pearson",
    "pearson_of_sums",
    "ranks",
    "spearman",
]

Array = NDArray[np.float64]
_LEAST = float(np.finfo(np.float64).eps)  # a class that was ruled out but is correct costs 36, not infinity


@dataclass(frozen=True)
class Metric:
    """One metric of one kind of task."""

    title: str
    counts: Callable[[Array, Array, Array, int], Array] | None = None
    """Labels: from (..., C) hits, predictions and examples of each class, and the number of the positive class."""
    values: Callable[[Any, Any], float] | None = None
    """From all labels or scores (E,) and all predictions: (E,) scores, or (E, C) probabilities of labels."""
    hub: str | None = None
    """Its name on the Hugging Face Hub."""
    percent: bool = False
    higher: bool = True
    """Whether higher is better."""
    selects: bool = False
    """Whether systems can be chosen and compared by it."""
    about: str = ""
    """What a reader of a report may not know about it."""

    def text(self, value: float) -> str:
        return f"{value:.1f}" if self.percent else f"{value:.4f}"


# ---- labels


def _ratio(above: Array, below: Array) -> Array:
    """above / below, 0 where below is 0."""
    return np.divide(above, below, out=np.zeros(np.broadcast(above, below).shape), where=below > 0)


def accuracy(hits: Array, predicted: Array, true: Array, positive: int) -> Array:
    return _ratio(hits.sum(-1), true.sum(-1))


def f1(hits: Array, predicted: Array, true: Array, positive: int) -> Array:
    each = _ratio(2 * hits, predicted + true)
    if each.shape[-1] == 2:
        return each[..., positive]
    return _ratio(each.sum(-1), np.asarray((predicted + true > 0).sum(-1), np.float64))


def mcc(hits: Array, predicted: Array, true: Array, positive: int) -> Array:
    total = true.sum(-1)
    covariance = total * hits.sum(-1) - (predicted * true).sum(-1)
    spread = (total**2 - (predicted**2).sum(-1)) * (total**2 - (true**2).sum(-1))
    return _ratio(covariance, np.sqrt(np.maximum(spread, 0.0)))


def counted(
    metric: Metric, right: NDArray[np.int64], predicted: NDArray[np.int64], classes: int, positive: int
) -> float:
    """A metric of sums from (E,) class numbers: the labels and the predictions."""
    assert metric.counts is not None
    hits, given, true = (
        np.bincount(chosen, minlength=classes).astype(np.float64)
        for chosen in (right[right == predicted], predicted, right)
    )
    return float(metric.counts(hits, given, true, positive))


def _log_loss(right: NDArray[np.int64], probabilities: Array) -> float:
    given = probabilities[np.arange(len(right)), right]
    return float(-np.log(np.clip(given, _LEAST, 1.0)).mean())


def _calibration_error(right: NDArray[np.int64], probabilities: Array) -> float:
    return calibration_error(probabilities, right)


LABEL: Mapping[str, Metric] = {
    "accuracy": Metric("accuracy", counts=accuracy, hub="accuracy", selects=True),
    "f1": Metric(
        "F1", counts=f1, hub="f1", selects=True,
        about="of the positive class where there are two, else the mean over the classes",
    ),
    "mcc": Metric(
        "MCC", counts=mcc, hub="matthews_correlation", selects=True,
        about="correlation of labels and predictions: 0 for a system that always says the same",
    ),
    "log_loss": Metric("log loss", values=_log_loss, higher=False),
    "calibration_error": Metric(
        "calibration error", values=_calibration_error, higher=False,
        about="mean gap between how probable and how often correct predictions are, over 15 bins",
    ),
}  # fmt: skip


# ---- scores


def pearson_of_sums(n: Array, x: Array, y: Array, xx: Array, yy: Array, xy: Array) -> Array:
    """From the sums of 1, x, y, x^2, y^2 and xy; centre x and y before, or digits are lost."""
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


SCORE: Mapping[str, Metric] = {
    "pearson": Metric("Pearson", values=pearson, hub="pearsonr", selects=True),
    "spearman": Metric("Spearman", values=spearman, hub="spearmanr", selects=True),
    "mse": Metric("MSE", values=lambda right, said: float(np.mean((said - right) ** 2)), hub="mse", higher=False),
    "mae": Metric("MAE", values=lambda right, said: float(np.mean(np.abs(said - right))), hub="mae", higher=False),
}  # fmt: skip


# ---- spans and triplets: computed by squad.py and triplet.py


def _span_metrics() -> dict[str, Metric]:
    """Exact match and F1 at the decoding's threshold and at the tuned one: of all questions, and of both parts."""
    found: dict[str, Metric] = {}
    counted = {
        "exact": "share of answers that match a gold answer, as the official SQuAD 2.0 script counts it",
        "f1": "overlap of words with the gold answers, as the official SQuAD 2.0 script counts it",
        "tuned_exact": "at the threshold for no answer that is best on dev",
        "tuned_f1": "at the threshold for no answer that is best on dev",
    }
    for tuned, prefix in (("", ""), ("tuned_", "tuned ")):
        for part, of in (("", ""), ("HasAns_", ", answerable"), ("NoAns_", ", unanswerable")):
            for name, title, hub in (("exact", "EM", "exact_match"), ("f1", "F1", "f1")):
                full = f"{tuned}{part}{name}"
                about = counted.get(full, "")
                hub_name = None if part else hub
                metric = Metric(
                    f"{prefix}{title}{of}", hub=hub_name, percent=True, selects=not part, about=about
                )
                found[full] = metric
    return found


SPAN: Mapping[str, Metric] = _span_metrics()

TRIPLET: Mapping[str, Metric] = {
    "violation_rate": Metric("violation rate", higher=False),
    "positive_distance": Metric("positive distance", higher=False),
    "negative_distance": Metric("negative distance"),
    "paper_loss": Metric("paper loss", higher=False),
    "softmin_loss": Metric("softmin loss", higher=False),
}
