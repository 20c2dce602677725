"""Every metric, by kind of task; whether one system is better than another by it; and calibration.

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

Calibration: a temperature t divides the logits of all classes, softmax(z / t), and a question's probability of no
answer is, with `score_diff`, the score of no answer minus that of the best candidate (span_answers.py),

        P(no answer) = sigmoid((score_diff - shift) / temperature)

Both fits have the least log loss on a held-out split, and both change no decision: predictions and thresholds stay
what they are.

Shapes: E examples, C classes, D resamples, R rows of logits, Q questions.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertvision.errors import ConfigError, DataError

Array = NDArray[Any]
BINS = 15  # of calibration
_RANGE = 1e-2, 1e2  # a temperature outside of it would mean probabilities that say nothing
_PRIOR = 8.0  # a temperature of 2 or 1/2 must be worth 3.8 of log loss, over all rows
_STEPS = 100
_RESAMPLES, _LEVEL, _SEED = 2000, 0.95, 0
_CELLS = 1 << 17  # example numbers drawn at a time: 1 MB stays in a core's own memory
_LEAST = float(np.finfo(np.float64).eps)  # a class that was ruled out but is correct costs 36, not infinity


# ---- calibration


def calibration_curve(probabilities: Array, right: Array) -> list[dict[str, float]]:
    """Equal-width bins (low, high] of (E, C) probabilities and (E,) class numbers, empty ones too: how many examples,
    the mean probability of their predicted classes ("confidence") and the share that is correct ("accuracy")."""
    confidence, hit = probabilities.max(axis=1), probabilities.argmax(axis=1) == right
    place = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)
    counts = np.bincount(place, minlength=BINS)
    means, shares = (
        np.bincount(place, weights=of, minlength=BINS) / np.maximum(counts, 1) for of in (confidence, hit)
    )
    rows = zip(counts.tolist(), means.tolist(), shares.tolist(), strict=True)
    return [
        {"low": i / BINS, "high": (i + 1) / BINS, "count": count, "confidence": mean, "accuracy": share}
        for i, (count, mean, share) in enumerate(rows)
    ]


def calibration_error(right: Array, probabilities: Array) -> float:
    """Expected calibration error: mean gap between confidence and accuracy, bins weighted by their examples."""
    curve = calibration_curve(probabilities, right)
    return sum(b["count"] * abs(b["confidence"] - b["accuracy"]) for b in curve) / max(1, len(right))


def fit_temperature(logits: Array, labels: Array) -> float:
    """The temperature t with the least log loss of (R, C) class logits on (R,) labels, and of a prior 8 (log t)^2. The
    prior keeps a few rows that happen to be all correct (or a head that says nothing) from turning every probability
    into 0 or 1; among a thousand rows it no longer counts. The slope along u = -log t, with s = e^u, is
    s sum_r(sum_c p_c z_c - z_label) + 16 u."""
    known = labels >= 0
    if not known.any():
        raise DataError("a temperature is fitted on labelled examples, and none of these has a label")
    z = logits[known].astype(np.float64)
    z = z - z.max(axis=1, keepdims=True)
    right = z[np.arange(len(z)), labels[known]]

    def rises(u: float) -> bool:
        s = np.exp(u)
        weights = np.exp(s * z)
        slope = s * ((weights * z).sum(axis=1) / weights.sum(axis=1) - right).sum() + 2 * _PRIOR * u
        return bool(slope > 0)

    return float(np.exp(-_halved(rises, -np.log(_RANGE[1]), -np.log(_RANGE[0]), 60)))


@dataclass(frozen=True)
class NoAnswer:
    """P(no answer) as a function of `score_diff`."""

    shift: float  # where it is one half
    temperature: float  # how many points of `score_diff` it takes to be sure

    def __post_init__(self) -> None:
        if not (math.isfinite(self.shift) and math.isfinite(self.temperature) and self.temperature > 0):
            given = f"{self.shift} and {self.temperature}"
            raise ConfigError(f"a calibration needs a finite shift and a positive temperature, not {given}")

    def probability(self, score_diff: Array) -> Array:
        """Of every question; 1 where there is no candidate at all (plus infinity)."""
        z = (score_diff - self.shift) / self.temperature
        return np.where(np.isposinf(score_diff), 1.0, _sigmoid(z))


def fit_no_answer(score_diff: Array, absent: Array) -> NoAnswer:
    """Fit both numbers to (Q,) finite differences and whether each question has no answer. The targets are Platt's
    (1999), (N + 1) / (N + 2) instead of 1 and 1 / (N + 2) instead of 0: as if one more question of each kind were on
    the wrong side. The loss is convex: Newton's steps, halved until they help, find its minimum."""
    ones = int(absent.sum())
    if not 0 < ones < len(absent):
        raise DataError("a no-answer probability is fitted on questions with and without an answer")
    zeros = len(absent) - ones
    target = np.where(absent, (ones + 1) / (ones + 2), 1 / (zeros + 2))
    # Standardised, so that one step size suits both numbers: sigmoid(a x + b), `place` = (a, b).
    centre, scale = float(np.mean(score_diff)), float(np.std(score_diff)) or 1.0
    x = (score_diff - centre) / scale
    rows = np.stack([x, np.ones_like(x)], axis=1)  # (Q, 2)

    def log_loss(place: Array) -> float:
        z = rows @ place
        return float((np.logaddexp(0, z) - target * z).sum())

    place = np.array([0.0, math.log(target.mean() / (1 - target.mean()))])
    loss = log_loss(place)
    for _ in range(_STEPS):
        p = _sigmoid(rows @ place)
        hessian = (rows * (p * (1 - p))[:, None]).T @ rows + 1e-9 * np.eye(2)
        step = np.linalg.solve(hessian, rows.T @ (p - target))
        size = 1.0
        while size > 1e-6 and log_loss(place - size * step) > loss:
            size /= 2
        place = place - size * step
        before, loss = loss, log_loss(place)
        if before - loss <= 1e-12 * max(1.0, before):
            break
    # A head that separates nothing (or does the contrary) still has a positive temperature: all are about as likely.
    steep = min(max(float(place[0]), scale / _RANGE[1]), scale / _RANGE[0])
    # The best b for this a: where the probabilities sum to the targets.
    reach = float(np.abs(steep * x).max()) + 40.0
    at = _halved(lambda b: _sigmoid(steep * x + b).sum() >= target.sum(), -reach, reach, 80)
    return NoAnswer(shift=centre - scale * at / steep, temperature=scale / steep)


def _sigmoid(z: Array) -> Array:
    return 1 / (1 + np.exp(-np.clip(z, -700.0, 700.0)))


def _halved(above: Callable[[float], bool], low: float, high: float, steps: int) -> float:
    """Where `above` begins to hold, found by halving an interval."""
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (low, middle) if above(middle) else (middle, high)
    return (low + high) / 2


@dataclass(frozen=True)
class Metric:
    title: str
    predictions: Callable[[Array, Array, int, int], Array] | None = None
    """From labels and predictions (..., E), the number of classes and that of the positive one; scores ignore both."""
    probabilities: Callable[[Array, Array], float] | None = None
    """From labels (E,) and probabilities (E, C) of all classes."""
    hub: str | None = None  # its name on the Hugging Face Hub
    percent: bool = False
    higher: bool = True  # whether higher is better
    selects: bool = False  # whether systems can be chosen and compared by it
    about: str = ""  # what a reader of a report may not know

    def text(self, value: float) -> str:
        return f"{value:.1f}" if self.percent else f"{value:.4f}"


# ---- labels


def _ratio(above: Array, below: Array) -> Array:
    """above / below, 0 where below is 0."""
    return np.divide(above, below, out=np.zeros(np.broadcast(above, below).shape), where=below > 0)


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
    "accuracy": Metric("accuracy", lambda right, said, *_: (right == said).mean(-1), hub="accuracy", selects=True),
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
    return pearson(ranks(right), ranks(said))


SCORE: Mapping[str, Metric] = {
    "pearson": Metric("Pearson", pearson, hub="pearsonr", selects=True),
    "spearman": Metric("Spearman", spearman, hub="spearmanr", selects=True),
    "mse": Metric("MSE", lambda right, said, *_: ((said - right) ** 2).mean(-1), hub="mse", higher=False),
    "mae": Metric("MAE", lambda right, said, *_: np.abs(said - right).mean(-1), hub="mae", higher=False),
}


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
"""At the decoding's threshold and at the tuned one, of all questions and of both parts (span_answers.py)."""

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


def mean_difference(ours: Sequence[Array], theirs: Sequence[Array] = ()) -> Difference:
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

    def score(rows: Array) -> Array:
        truth = right[rows]
        first, *second = (
            np.mean([function(truth, own[rows], classes, positive) for own in members], axis=0)
            for members in (ours, theirs)
            if members
        )
        return first - second[0] if second else first

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


def _bootstrap(score: Callable[[Array], Array], examples: int) -> Difference:
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
