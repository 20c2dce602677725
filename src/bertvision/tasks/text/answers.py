"""Answers: the class or the score of every example, merged over its windows.

    mean              the mean of the windows' probabilities (scores)
    min, max          the least (largest) probability of the positive class (score) that a window has
    any_null          as max: one window that votes for the positive class decides

Shapes: R rows of logits (a window each, or `task.group` windows that belong side by side), E examples in the order of
the data, C classes. Everything is computed in float64 from float32 logits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertvision.data.texts import TextData
from bertvision.data.windows import Windows
from bertvision.errors import ArtifactError, ConfigError, DataError
from bertvision.tasks.text.logits import TextLogits
from bertvision.tasks.text.task import TextTask

__all__ = ["TextAnswers", "answer", "class_logits", "joined_logits", "softmax"]


@dataclass(frozen=True)
class TextAnswers:
    ids: list[str]
    task: TextTask
    probabilities: NDArray[np.float64] | None
    """(E, C) probability of each class; None for scores."""
    values: NDArray[Any]
    """(E,) numbers of the predicted classes (int64), or the predicted scores (float64)."""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def predictions(self) -> dict[str, str | float]:
        """Id to the name of the predicted class, or to the predicted score."""
        names = self.task.classes
        said = self.values.tolist()
        return dict(zip(self.ids, [names[v] for v in said] if names else said, strict=True))


def softmax(values: NDArray[np.floating]) -> NDArray[np.float64]:
    """Over the last axis, in float64."""
    shifted = np.exp(values.astype(np.float64) - values.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def class_logits(values: NDArray[np.floating], task: TextTask) -> NDArray[np.float64]:
    """(R, C) one logit a class, also where a head gives the second class's alone (bce)."""
    wide = values.astype(np.float64)
    return np.concatenate([np.zeros_like(wide), wide], axis=1) if task.loss == "bce" else wide


def answer(
    windows: Windows, logits: TextLogits, data: TextData, task: TextTask, *, temperature: float = 1.0
) -> TextAnswers:
    """Merge the windows of each example of `data`.

    `temperature` divides the logits of classes before anything else (`calibration.fit_temperature`).
    """
    if data.kind != task.kind or data.classes != task.classes:
        raise DataError(
            f"{data.name} asks for {_what(data.kind, data.classes)} but the head was fitted for "
            f"{_what(task.kind, task.classes)}: give it data of its own task"
        )
    if temperature <= 0:
        raise ConfigError(f"--temperature must be above 0, not {temperature}")
    logits.check(len(windows) // task.group)
    if logits.values.shape[1] != task.outputs:
        raise ArtifactError(
            f"the logits have {logits.values.shape[1]} columns but the task has {task.outputs} outputs: "
            "they were made by a head of another task"
        )
    example = windows.example[:: task.group]  # (R,)
    starts = np.flatnonzero(np.diff(example, prepend=-1))
    if not np.array_equal(example[starts], np.arange(len(data))):
        raise DataError(
            f"{len(starts)} examples have windows but {data.name} has {len(data)}: make the windows from this data"
        )
    ids = [e.id for e in data.examples]
    if task.kind == "score":
        scores = task.shift + task.scale * logits.values[:, 0].astype(np.float64)
        return TextAnswers(ids, task, None, _merge(scores, starts, task.merge))
    probabilities = softmax(class_logits(logits.values, task) / temperature)
    if task.merge == "mean":
        merged = _merge(probabilities, starts, "mean")
    else:  # two classes: the positive one is merged and the other follows
        positive = _merge(probabilities[:, task.positive], starts, task.merge)
        merged = np.empty((len(starts), 2))
        merged[:, task.positive], merged[:, 1 - task.positive] = positive, 1 - positive
    return TextAnswers(ids, task, merged, merged.argmax(axis=1))


def _merge(values: NDArray[np.float64], starts: NDArray[np.int64], how: str) -> NDArray[np.float64]:
    """(E, ...) from (R, ...), where example e's rows begin at starts[e]."""
    if not len(starts):
        return values[:0]
    if how == "min":
        return np.minimum.reduceat(values, starts, axis=0)
    if how != "mean":
        return np.maximum.reduceat(values, starts, axis=0)
    counts = np.diff(np.append(starts, len(values)))
    return np.add.reduceat(values, starts, axis=0) / counts.reshape(-1, *[1] * (values.ndim - 1))


def joined_logits(members: Sequence[TextLogits], task: TextTask) -> TextLogits:
    """An ensemble as one set of logits: the log of the mean probability of each class, or the mean score.

    Members are joined window by window, before windows are merged: an ensemble is then a head like any other.
    """
    if not members:
        raise ConfigError("an ensemble needs the logits of at least one model")
    if task.kind == "score":
        return TextLogits(np.mean([member.values for member in members], axis=0).astype(np.float32))
    wide = [class_logits(member.values, task) for member in members]
    logs = [values - np.logaddexp.reduce(values, axis=1, keepdims=True) for values in wide]
    mean = np.logaddexp.reduce(logs, axis=0) - np.log(len(logs))  # (R, classes)
    return TextLogits((mean[:, 1:] - mean[:, :1] if task.loss == "bce" else mean).astype(np.float32))


def _what(kind: str, classes: tuple[str, ...]) -> str:
    return "a score" if kind == "score" else f"the classes {', '.join(classes)}"
