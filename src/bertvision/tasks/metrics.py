"""Every metric, by kind of task: its title, its name on the Hub, its unit, its direction and its function; and whether
one system is better than another by it.

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

A difference is the mean metric of our members (seeds) minus that of theirs; its percentile interval comes from
resampling examples, the same ones for all members. Two systems that disagree unevenly are tested with McNemar's exact
test.

Shapes: E examples, C classes, D resamples.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertvision.errors import DataError
from bertvision.tasks.calibrate import calibration_error

Array = NDArray[Any]
_RESAMPLES, _LEVEL, _SEED = 2000, 0.95, 0
_CELLS = 1 << 17  # example numbers drawn at a time: 1 MB stays in a core's own memory
_LEAST = float(np.finfo(np.float64).eps)  # a class that was ruled out but is correct costs 36, not infinity


@dataclass(frozen=True)
class Metric:
    """One metric of one kind of task."""

    title: str
    predictions: Callable[[Array, Array, int, int], Array] | None = None
    """From labels and predictions (..., E), the number of classes and that of the positive one; scores ignore both."""
    probabilities: Callable[[Array, Array], float] | None = None
    """From labels (E,) and probabilities (E, C) of all classes."""
    hub: str | None = None  # its name on the Hugging Face Hub
    percent: bool = False
    higher: bool = True  # whether higher is better
    selects: bool = False  # whether systems can be chosen and compared by it
    about: str = ""  # what a reader of a report may not know about it

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


# ---- is one system better than another?


@dataclass(frozen=True)
class Difference:
    """First system minus second, in units of the metric, and its 95 % interval."""

    difference: float
    low: float
    high: float


def mean_difference(
    ours: Sequence[NDArray[np.floating]], theirs: Sequence[NDArray[np.floating]] = ()
) -> Difference:
    """For metrics that are means over examples: (E,) values of each member; without `theirs` the mean of ours."""
    _check(*ours, *theirs)
    gap = np.asarray(np.mean(ours, axis=0, dtype=np.float64))
    if theirs:
        gap = gap - np.mean(theirs, axis=0, dtype=np.float64)
    return _bootstrap(lambda rows: gap[rows].mean(-1), len(gap))


def metric_difference(
    metric: Metric,
    right: Array,
    ours: Sequence[Array],
    theirs: Sequence[Array] = (),
    *,
    classes: int = 0,
    positive: int = 1,
) -> Difference:
    """For metrics of predictions: (E,) truth and predictions of each member; without `theirs` the metric of ours."""
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

    return _bootstrap(score, len(right))


def mcnemar(first: Array, second: Array) -> float:
    """Exact two-sided p of McNemar's test on whether two systems are right on each example (E,), 0 or 1."""
    _check(first, second)
    only_first = int(((first > 0.5) & (second <= 0.5)).sum())
    only_second = int(((second > 0.5) & (first <= 0.5)).sum())
    n, k = only_first + only_second, min(only_first, only_second)
    # Integers stay exact however many examples there are. (Summing math.comb is 400 times slower.)
    term = tail = 1
    for i in range(1, k + 1):
        term = term * (n - i + 1) // i
        tail += term
    return min(1.0, 2 * tail / (1 << n))


def _check(*members: Array) -> None:
    sizes = [len(values) for values in members]
    if not sizes[0] or len(set(sizes)) > 1:
        raise DataError(
            f"systems must be compared on the same examples, not on {', '.join(map(str, sizes))} of them"
        )


def _bootstrap(score: Callable[[NDArray[np.int64]], NDArray[np.float64]], examples: int) -> Difference:
    """The score of all examples and the percentiles of its resamples; `score` gives (D,) values of (D, E) numbers."""
    random = np.random.default_rng(_SEED)
    # Whole resamples at a time, drawn one after the other: the chunk size does not change the numbers.
    step = max(1, _CELLS // examples)
    sizes = [min(step, _RESAMPLES - begin) for begin in range(0, _RESAMPLES, step)]
    drawn = np.concatenate([score(random.integers(0, examples, size=(size, examples))) for size in sizes])
    low, high = np.quantile(drawn, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    whole = score(np.arange(examples)[None])[0]
    # Sums of thirds leave 1e-17 where nothing differs: zero should read as zero.
    return Difference(*(round(float(value), 12) + 0.0 for value in (whole, low, high)))
