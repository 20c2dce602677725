"""The probability that a question has no answer, made honest on a held-out split.

        P(no answer) = sigmoid((score_diff - shift) / temperature)

`score_diff` is the score of no answer minus that of the best candidate (answers.py). The softmax over the n-best list
is a probability in name only: it knows neither how often questions have no answer nor how sure of itself a head is.
Two numbers repair both, and being monotone they change no decision by a threshold.

They have the least log loss on the split, with Platt's targets ((N + 1) / (N + 2) instead of 1, 1 / (N + 2) instead
of 0; "Probabilistic Outputs for Support Vector Machines", 1999): as if one more question of each kind were on the wrong
side, which keeps a few questions that happen to be told apart from making every probability 0 or 1. The loss is
convex, so Newton's steps, each halved until it helps, find its only minimum.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertvision.errors import DataError
from bertvision.tasks.span.answers import SpanAnswers

__all__ = ["NoAnswer", "fit_no_answer", "no_answer_of"]

_RANGE = 1e-2, 1e2  # a temperature outside of it would mean probabilities that say nothing
_STEPS = 100


@dataclass(frozen=True)
class NoAnswer:
    """P(no answer) as a function of `score_diff`."""

    shift: float
    """Where it is one half."""
    temperature: float
    """How far from there it takes to be sure."""

    def probability(self, score_diff: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of every question; 1 where there is no candidate at all (plus infinity)."""
        z = np.clip((score_diff - self.shift) / self.temperature, -700.0, 700.0)
        return np.where(np.isposinf(score_diff), 1.0, 1 / (1 + np.exp(-z)))


def no_answer_of(answers: SpanAnswers) -> NoAnswer | None:
    """The calibration of a head from its answers to a split; None where all questions, or none, have an answer."""
    absent = np.array([not example.answerable for example in answers.data.examples])
    told = np.isfinite(answers.score_diff)
    if not (absent[told].any() and (~absent[told]).any()):
        return None
    return fit_no_answer(answers.score_diff[told], absent[told])


def fit_no_answer(score_diff: NDArray[np.float64], absent: NDArray[np.bool_]) -> NoAnswer:
    """Fit both numbers to (Q,) finite differences and whether each question has no answer."""
    ones = int(absent.sum())
    if not 0 < ones < len(absent):
        raise DataError("a no-answer probability is fitted on questions with and without an answer")
    zeros = len(absent) - ones
    target = np.where(absent, (ones + 1) / (ones + 2), 1 / (zeros + 2))
    # On a scale of their own, so that one step suits both numbers.
    centre, scale = float(np.mean(score_diff)), float(np.std(score_diff)) or 1.0
    x = (score_diff - centre) / scale
    steep, at = _newton(x, target)
    # A head that tells nothing (or the contrary) still has a positive temperature: all are about as likely.
    steep = min(max(steep, scale / _RANGE[1]), scale / _RANGE[0])
    at = _intercept(x, target, steep)
    return NoAnswer(shift=centre - scale * at / steep, temperature=scale / steep)


def _loss(z: NDArray[np.float64], target: NDArray[np.float64]) -> float:
    return float((np.logaddexp(0, z) - target * z).sum())


def _newton(x: NDArray[np.float64], target: NDArray[np.float64]) -> tuple[float, float]:
    """a and b of the least log loss of sigmoid(a x + b)."""
    rows = np.stack([x, np.ones_like(x)], axis=1)  # (Q, 2)
    place = np.array([0.0, math.log(target.mean() / (1 - target.mean()))])
    loss = _loss(rows @ place, target)
    for _ in range(_STEPS):
        p = 1 / (1 + np.exp(-np.clip(rows @ place, -700.0, 700.0)))
        slope = rows.T @ (p - target)
        bend = (rows * (p * (1 - p))[:, None]).T @ rows + 1e-9 * np.eye(2)
        step = np.linalg.solve(bend, slope)
        size = 1.0
        while size > 1e-6 and _loss(rows @ (place - size * step), target) > loss:
            size /= 2
        place = place - size * step
        before, loss = loss, _loss(rows @ place, target)
        if before - loss <= 1e-12 * max(1.0, before):
            break
    return float(place[0]), float(place[1])


def _intercept(x: NDArray[np.float64], target: NDArray[np.float64], steep: float) -> float:
    """b of the least log loss for a fixed a: where the probabilities sum to the targets, found by halving."""
    reach = float(np.abs(steep * x).max()) + 40.0
    low, high = -reach, reach
    for _ in range(80):
        middle = (low + high) / 2
        total = (1 / (1 + np.exp(-np.clip(steep * x + middle, -700.0, 700.0)))).sum()
        low, high = (middle, high) if total < target.sum() else (low, middle)
    return (low + high) / 2
