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
    """The temperature with the least log loss for (R, C) class logits (`answers.class_logits`) and (R,) labels.

    The log loss is convex in s = 1 / t with the derivative mean(sum_c p_c z_c - z_label): its zero is found by
    halving an interval of log s, which needs no step size and no library.
    """
    known = labels >= 0
    z = logits[known].astype(np.float64)
    if not len(z):
        raise DataError("a temperature is fitted on labelled examples, and none of these has a label")
    z = z - z.max(axis=1, keepdims=True)
    right = z[np.arange(len(z)), labels[known]]

    def slope(s: float) -> float:
        weights = np.exp(s * z)
        return float(((weights * z).sum(axis=1) / weights.sum(axis=1) - right).mean())

    low, high = -np.log(_RANGE[1]), -np.log(_RANGE[0])
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(float(np.exp(middle))) > 0 else (middle, high)
    return float(np.exp(-(low + high) / 2))
