"""Calibration: a temperature for classes, two numbers for "no answer".

A temperature t divides the logits of all classes, softmax(z / t). A question's probability of no answer is

        P(no answer) = sigmoid((score_diff - shift) / temperature)

with `score_diff`, the score of no answer minus that of the best candidate (span_answers.py). Both fits have the least
log loss on a held-out split, and both change no decision: predictions and thresholds stay what they are.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertvision.errors import ConfigError, DataError

BINS = 15
_RANGE = 1e-2, 1e2  # a temperature outside of it would mean probabilities that say nothing
_PRIOR = 8.0  # a temperature of 2 or 1/2 must be worth 3.8 of log loss, over all rows
_STEPS = 100


# ---- classes


def calibration_curve(
    probabilities: NDArray[np.floating], right: NDArray[np.integer]
) -> list[dict[str, float]]:
    """Equal-width bins (low, high] of (E, C) probabilities and (E,) class numbers, empty ones too: how many examples,
    the mean probability of their predicted classes ("confidence") and the share that is correct ("accuracy")."""
    confidence = probabilities.max(axis=1)
    hit = probabilities.argmax(axis=1) == right
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


def calibration_error(right: NDArray[np.integer], probabilities: NDArray[np.floating]) -> float:
    """Expected calibration error: mean gap between confidence and accuracy, bins weighted by their examples."""
    curve = calibration_curve(probabilities, right)
    return sum(b["count"] * abs(b["confidence"] - b["accuracy"]) for b in curve) / max(1, len(right))


def fit_temperature(logits: NDArray[np.floating], labels: NDArray[np.integer]) -> float:
    """The temperature t with the least log loss of (R, C) class logits on (R,) labels, and of a prior 8 (log t)^2.

    The prior keeps a few rows that happen to be all correct (or a head that says nothing) from turning every
    probability into 0 or 1; among a thousand rows it no longer counts. The slope along u = -log t is
    s sum_r(sum_c p_c z_c - z_label) + 16 u with s = e^u.
    """
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


# ---- no answer


@dataclass(frozen=True)
class NoAnswer:
    """P(no answer) as a function of `score_diff`."""

    shift: float  # where it is one half
    temperature: float  # how many points of `score_diff` it takes to be sure

    def __post_init__(self) -> None:
        if not (math.isfinite(self.shift) and math.isfinite(self.temperature) and self.temperature > 0):
            given = f"{self.shift} and {self.temperature}"
            raise ConfigError(f"a calibration needs a finite shift and a positive temperature, not {given}")

    def probability(self, score_diff: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of every question; 1 where there is no candidate at all (plus infinity)."""
        z = (score_diff - self.shift) / self.temperature
        return np.where(np.isposinf(score_diff), 1.0, _sigmoid(z))


def fit_no_answer(score_diff: NDArray[np.float64], absent: NDArray[np.bool_]) -> NoAnswer:
    """Fit both numbers to (Q,) finite differences and whether each question has no answer.

    The targets are Platt's (1999), (N + 1) / (N + 2) instead of 1 and 1 / (N + 2) instead of 0: as if one more question
    of each kind were on the wrong side. The loss is convex: Newton's steps, halved until they help, find its minimum.
    """
    ones = int(absent.sum())
    if not 0 < ones < len(absent):
        raise DataError("a no-answer probability is fitted on questions with and without an answer")
    zeros = len(absent) - ones
    target = np.where(absent, (ones + 1) / (ones + 2), 1 / (zeros + 2))
    # Standardised, so that one step size suits both numbers: sigmoid(a x + b), `place` = (a, b).
    centre, scale = float(np.mean(score_diff)), float(np.std(score_diff)) or 1.0
    x = (score_diff - centre) / scale
    rows = np.stack([x, np.ones_like(x)], axis=1)  # (Q, 2)

    def log_loss(place: NDArray[np.floating]) -> float:
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


def _sigmoid(z: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-np.clip(z, -700.0, 700.0)))


def _halved(above: Callable[[float], bool], low: float, high: float, steps: int) -> float:
    """Where `above` begins to hold, found by halving an interval."""
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (low, middle) if above(middle) else (middle, high)
    return (low + high) / 2
