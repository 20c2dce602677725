"""The no-answer threshold: tuned on one split, applied to another.

A question is answered where its `score_diff` does not exceed the threshold, so only as many thresholds
matter as there are distinct differences, plus one that answers nothing. All are tried at once.
"""

import numpy as np
from numpy.typing import NDArray

from bertvision.errors import DataError
from bertvision.tasks.span_answers import SpanAnswers


def best_threshold(answers: SpanAnswers) -> float:
    """The threshold with the highest F1; of equally good ones, the closest to 0.

    It stands half-way between the last question that is answered and the first that is not.
    """
    if not len(answers):
        raise DataError(f"{answers.data.name} has no questions: a threshold needs some to be tuned on")
    _, f1 = answers.candidates_judged
    null = (~answers.answerable).astype(np.float64)
    order = np.argsort(answers.score_diff, kind="stable")
    gain = (f1 - null)[order]
    reached = null.sum() + np.concatenate([[0.0], np.cumsum(gain)])  # (Q + 1,) with the first k answered
    values = cut_values(answers.score_diff[order])
    reached[np.isnan(values)] = -np.inf
    # Sums in another order differ in the last digits; such cuts are equally good.
    good = np.flatnonzero(reached >= reached.max() - 1e-9 * len(answers))
    return float(values[good[np.argmin(np.abs(values[good]))]])


def cut_values(diff: NDArray[np.float64]) -> NDArray[np.float64]:
    """(Q + 1,) a finite threshold that answers the first k questions; NaN where none does.

    `diff` rises. Equal neighbours cannot be separated, and infinite ones lie on one side of every threshold.
    """
    below = np.concatenate([[-np.inf], diff])
    above = np.concatenate([diff, [np.inf]])
    values = np.full(len(below), np.nan)
    inner = np.isfinite(below) & np.isfinite(above)
    values[inner] = (below[inner] + above[inner]) / 2
    values = np.where(values >= above, below, values)  # no number lies between them: rounded up
    left, right = np.isneginf(below) & np.isfinite(above), np.isfinite(below) & np.isposinf(above)
    values[left], values[right] = above[left] - 1.0, below[right] + 1.0
    values[(below <= 0) & (above > 0)] = 0.0
    return np.where((below <= values) & (values < above), values, np.nan)
