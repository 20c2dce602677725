"""How good the answers of a label or score task are; all numbers between 0 and 1, never percent.

labels   accuracy, f1, mcc (metrics.py); log_loss = mean -log p(label); calibration_error (calibration.py)
scores   pearson, spearman, mse, mae, in the units of the scores themselves
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertvision.data.texts import TextData
from bertvision.errors import DataError
from bertvision.tasks.text import metrics
from bertvision.tasks.text.answers import TextAnswers
from bertvision.tasks.text.calibration import calibration_error
from bertvision.tasks.text.task import TextTask

__all__ = ["answers_metric", "confusion", "label_counts", "metric", "score_errors", "score_texts", "truth"]

_LEAST = float(np.finfo(np.float64).eps)  # a class that was ruled out and is right costs 36, not infinity


def truth(data: TextData) -> NDArray[Any]:
    """(E,) class numbers (int64) or scores (float64) of the examples."""
    unknown = sum(example.label is None for example in data.examples)
    if unknown or not len(data):
        raise DataError(
            f"{data.name}: {unknown} of {len(data)} examples have no label and cannot be scored; "
            "predict them instead, or give a file with labels"
        )
    kind = np.float64 if data.kind == "score" else np.int64
    return np.array([example.label for example in data.examples], dtype=kind)


def metric(task: TextTask, right: NDArray[Any], values: NDArray[Any]) -> float:
    """The task's own metric of (E,) predictions `values` against the labels `right`."""
    if task.metric == "pearson":
        return metrics.pearson(right, values)
    if task.metric == "spearman":
        return metrics.spearman(right, values)
    return _label_metrics(right, values, classes=len(task.classes), positive=task.positive)[task.metric]


def score_texts(answers: TextAnswers, data: TextData) -> dict[str, float]:
    """Every metric that suits the task."""
    right = _truth_of(answers, data)
    if answers.probabilities is None:
        error = answers.values - right
        return {
            "pearson": metrics.pearson(right, answers.values),
            "spearman": metrics.spearman(right, answers.values),
            "mse": float(np.mean(error**2)),
            "mae": float(np.mean(np.abs(error))),
        }
    task = answers.task
    found = _label_metrics(right, answers.values, classes=len(task.classes), positive=task.positive)
    given = answers.probabilities[np.arange(len(right)), right]
    found["log_loss"] = float(-np.log(np.clip(given, _LEAST, 1.0)).mean())
    found["calibration_error"] = calibration_error(answers.probabilities, right)
    return found


def answers_metric(answers: TextAnswers, data: TextData) -> float:
    """What the task is judged and chosen by."""
    return metric(answers.task, _truth_of(answers, data), answers.values)


def confusion(answers: TextAnswers, data: TextData) -> NDArray[np.int64]:
    """(C, C) examples of the class of the row that were given the class of the column."""
    classes = len(answers.task.classes)
    cells = _truth_of(answers, data) * classes + answers.values
    return np.bincount(cells.astype(np.int64), minlength=classes**2).reshape(classes, classes)


def label_counts(answers: TextAnswers, data: TextData) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(C,) examples of each class, and predictions of each class."""
    table = confusion(answers, data)
    return table.sum(axis=1), table.sum(axis=0)


def score_errors(answers: TextAnswers, data: TextData) -> NDArray[np.float64]:
    """(E,) predicted less true score."""
    return np.asarray(answers.values - _truth_of(answers, data), np.float64)


def _truth_of(answers: TextAnswers, data: TextData) -> NDArray[Any]:
    right = truth(data)
    if answers.ids != [example.id for example in data.examples]:
        raise DataError(
            f"the {len(answers)} answers are not those of the {len(data)} examples of {data.name}: "
            "make them from the same data"
        )
    return right


def _label_metrics(
    right: NDArray[np.int64], values: NDArray[np.int64], *, classes: int, positive: int
) -> dict[str, float]:
    hits, predicted, true = (
        np.bincount(chosen, minlength=classes).astype(np.float64)
        for chosen in (right[right == values], values, right)
    )
    return {
        "accuracy": float(metrics.accuracy(hits, true)),
        "f1": float(metrics.f1(hits, predicted, true, positive)),
        "mcc": float(metrics.mcc(hits, predicted, true)),
    }
