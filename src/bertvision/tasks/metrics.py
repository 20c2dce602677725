"""Every metric, by kind of task: its title, its name on the Hub, its unit, its direction and its function.

To add a metric of labels, write a function and an entry in `LABEL`; training, sweeps, comparisons, metrics.json, the
report and the cards read these tables and nothing else.

    accuracy   hits / n
    f1         2 hits / (predicted + true) of the positive class with two classes, else the mean over the classes that
               occur among labels or predictions
    mcc        (n sum_k hits_k - sum_k predicted_k true_k) /
               sqrt((n^2 - sum_k predicted_k^2) (n^2 - sum_k true_k^2)), for any number of classes
    log_loss   mean of -log p(label)
    pearson    covariance / sqrt(variance x variance)
    spearman   pearson of the ranks; ties share their mean rank

Functions of predictions take (..., E) labels and predictions and give (...) values: one call scores a dataset or
many resamples of it. An undefined value (no example of the class, a constant prediction) is 0. Metrics of spans are
percentages, all others are fractions or in the unit of the scores.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertvision.tasks.calibrate import calibration_error

Array = NDArray[Any]
_LEAST = float(np.finfo(np.float64).eps)  # a class that was ruled out but is correct costs 36, not infinity


@dataclass(frozen=True)
class Metric:
    """One metric of one kind of task."""

    title: str
    predictions: Callable[[Array, Array, int, int], Array] | None = None
    """From labels and predictions (..., E), the number of classes and that of the positive one; scores ignore both."""
    probabilities: Callable[[Array, Array], float] | None = None
    """From labels (E,) and probabilities (E, C) of all classes."""
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


def _accuracy(right: Array, said: Array, classes: int, positive: int) -> Array:
    return (right == said).mean(-1)


def _counts(right: Array, said: Array, classes: int) -> tuple[Array, Array, Array]:
    """(..., C) hits, predictions and examples of each class."""
    hit = right == said

    def count(which: Callable[[int], Array]) -> Array:
        return np.stack([np.count_nonzero(which(k), axis=-1) for k in range(classes)], -1).astype(np.float64)

    return count(lambda k: hit & (right == k)), count(lambda k: said == k), count(lambda k: right == k)


def _f1(right: Array, said: Array, classes: int, positive: int) -> Array:
    hits, predicted, true = _counts(right, said, classes)
    each = _ratio(2 * hits, predicted + true)
    return each[..., positive] if classes == 2 else _ratio(each.sum(-1), (predicted + true > 0).sum(-1))


def _mcc(right: Array, said: Array, classes: int, positive: int) -> Array:
    hits, predicted, true = _counts(right, said, classes)
    total = true.sum(-1)
    covariance = total * hits.sum(-1) - (predicted * true).sum(-1)
    spread = (total**2 - (predicted**2).sum(-1)) * (total**2 - (true**2).sum(-1))
    return _ratio(covariance, np.sqrt(np.maximum(spread, 0.0)))


def _log_loss(right: Array, probabilities: Array) -> float:
    given = probabilities[np.arange(len(right)), right]
    return float(-np.log(np.clip(given, _LEAST, 1.0)).mean())


LABEL: Mapping[str, Metric] = {
    "accuracy": Metric("accuracy", _accuracy, hub="accuracy", selects=True),
    "f1": Metric(
        "F1", _f1, hub="f1", selects=True,
        about="of the positive class where there are two, else the mean over the classes",
    ),
    "mcc": Metric(
        "MCC", _mcc, hub="matthews_correlation", selects=True,
        about="correlation of labels and predictions: 0 for a system that always says the same",
    ),
    "log_loss": Metric("log loss", probabilities=_log_loss, higher=False),
    "calibration_error": Metric(
        "calibration error", probabilities=calibration_error, higher=False,
        about="mean gap between how probable and how often correct predictions are, over 15 bins",
    ),
}  # fmt: skip


# ---- scores


def pearson(right: Array, said: Array, classes: int = 0, positive: int = 0) -> Array:
    """Correlation along the last axis."""
    x, y = (values - values.mean(-1, keepdims=True, dtype=np.float64) for values in (right, said))
    covariance, spread = (x * y).sum(-1), np.sqrt((x * x).sum(-1) * (y * y).sum(-1))
    # A mean of equal numbers may differ from them in the last digit.
    constant = (np.ptp(right, axis=-1) == 0) | (np.ptp(said, axis=-1) == 0)
    return np.clip(_ratio(covariance, np.where(constant, 0.0, spread)), -1.0, 1.0)


def ranks(values: Array) -> Array:
    """Ranks along the last axis, from 1 on; equal values share the mean of theirs."""
    order = np.argsort(values, axis=-1, kind="stable")
    ordered = np.take_along_axis(values, order, -1)
    change = ordered[..., 1:] != ordered[..., :-1]
    edge, place = np.ones_like(ordered[..., :1], dtype=np.bool_), np.arange(values.shape[-1])
    first = np.maximum.accumulate(np.where(np.concatenate([edge, change], -1), place, 0), -1)
    last = np.where(np.concatenate([change, edge], -1), place, place[-1])
    last = np.minimum.accumulate(last[..., ::-1], -1)[..., ::-1]
    found = np.empty(values.shape)
    np.put_along_axis(found, order, (first + last) / 2 + 1, -1)
    return found


def spearman(right: Array, said: Array, classes: int = 0, positive: int = 0) -> Array:
    """Rank correlation along the last axis."""
    return pearson(ranks(right), ranks(said))


SCORE: Mapping[str, Metric] = {
    "pearson": Metric("Pearson", pearson, hub="pearsonr", selects=True),
    "spearman": Metric("Spearman", spearman, hub="spearmanr", selects=True),
    "mse": Metric("MSE", lambda right, said, *_: ((said - right) ** 2).mean(-1), hub="mse", higher=False),
    "mae": Metric("MAE", lambda right, said, *_: np.abs(said - right).mean(-1), hub="mae", higher=False),
}


# ---- spans and triplets: computed by squad.py and triplet.py


_OFFICIAL = "as the official SQuAD 2.0 script counts it"
_ABOUT = {
    "exact": f"share of answers that match a gold answer, {_OFFICIAL}",
    "f1": f"overlap of words with the gold answers, {_OFFICIAL}",
    "tuned_exact": "at the threshold for no answer that is best on dev",
    "tuned_f1": "at the threshold for no answer that is best on dev",
}

SPAN: Mapping[str, Metric] = {
    f"{tuned}{part}{name}": Metric(
        f"{tuned.replace('_', ' ')}{title}{of}",
        hub=None if part else hub,
        percent=True,
        selects=not part,
        about=_ABOUT.get(f"{tuned}{part}{name}", ""),
    )
    for tuned in ("", "tuned_")
    for part, of in (("", ""), ("HasAns_", ", answerable"), ("NoAns_", ", unanswerable"))
    for name, title, hub in (("exact", "EM", "exact_match"), ("f1", "F1", "f1"))
}
"""Exact match and F1 at the decoding's threshold and at the tuned one: of all questions, and of both parts."""

TRIPLET: Mapping[str, Metric] = {
    "violation_rate": Metric("violation rate", higher=False),
    "positive_distance": Metric("positive distance", higher=False),
    "negative_distance": Metric("negative distance"),
    "paper_loss": Metric("paper loss", higher=False),
    "softmin_loss": Metric("softmin loss", higher=False),
}
