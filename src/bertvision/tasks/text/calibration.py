"""Does a probability mean what it says?

`calibration_curve` sorts examples by the probability of their predicted class into equal-width bins ((lo, hi]); a
calibrated head is right in as many of a bin as the mean probability there says. `calibration_error` is the mean gap,
bins weighted by their examples. `fit_temperature` finds the one number t for which softmax(z / t) has the least log
loss on a held-out split: predictions stay the same, probabilities become honest.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertvision.errors import DataError

__all__ = ["CalibrationBin", "calibration_curve", "calibration_error", "fit_temperature"]

BINS = 15
_RANGE = 1e-2, 1e2  # a temperature outside of it would mean probabilities that say nothing
_PRIOR = 8.0
"""Weight of the prior: a temperature of 2 or 1/2 must be worth 3.8 of log loss, over all rows."""


@dataclass(frozen=True)
class CalibrationBin:
    """Examples whose predicted class has about the same probability."""

    low: float
    high: float
    count: int
    confidence: float
    """Mean probability of the predicted classes; 0 without examples."""
    accuracy: float
    """Share of right predictions; 0 without examples."""


def calibration_curve(
    probabilities: NDArray[np.floating], right: NDArray[np.integer], *, bins: int = BINS
) -> list[CalibrationBin]:
    """The bins from 0 to 1, empty ones too, of (E, C) probabilities and (E,) class numbers."""
    confidence = probabilities.max(axis=1)
    hit = probabilities.argmax(axis=1) == right
    place = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    counts = np.bincount(place, minlength=bins)
    total = np.maximum(counts, 1)
    means = np.bincount(place, weights=confidence, minlength=bins) / total
    shares = np.bincount(place, weights=hit.astype(np.float64), minlength=bins) / total
    return [
        CalibrationBin(i / bins, (i + 1) / bins, int(counts[i]), float(means[i]), float(shares[i]))
        for i in range(bins)
    ]


def calibration_error(
    probabilities: NDArray[np.floating], right: NDArray[np.integer], *, bins: int = BINS
) -> float:
    """Expected calibration error: mean gap between confidence and accuracy over the bins."""
    curve = calibration_curve(probabilities, right, bins=bins)
    return sum(b.count * abs(b.confidence - b.accuracy) for b in curve) / max(1, len(right))


def fit_temperature(logits: NDArray[np.floating], labels: NDArray[np.integer]) -> float:
    """The temperature t that makes (R, C) class logits (`answers.class_logits`) honest about (R,) labels.

    It has the least log loss of all rows together and of a prior, 8 (log t)^2: a few rows that happen to be all right
    (or a head that says nothing) must not turn every probability into 0 or 1. With a thousand rows the prior is lost in
    them. The slope along u = -log t is s sum_r(sum_c p_c z_c - z_label) + 16 u with s = e^u; its zero is found by
    halving an interval.
    """
    known = labels >= 0
    z = logits[known].astype(np.float64)
    if not len(z):
        raise DataError("a temperature is fitted on labelled examples, and none of these has a label")
    z = z - z.max(axis=1, keepdims=True)
    right = z[np.arange(len(z)), labels[known]]

    def slope(u: float) -> float:
        s = np.exp(u)
        weights = np.exp(s * z)
        return float(s * ((weights * z).sum(axis=1) / weights.sum(axis=1) - right).sum() + 2 * _PRIOR * u)

    low, high = -np.log(_RANGE[1]), -np.log(_RANGE[0])
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(middle) > 0 else (middle, high)
    return float(np.exp(-(low + high) / 2))
