"""Labels: the class of a text, of a pair, or whether a paragraph answers a question.

    ce    log sum_c exp z_c - z_label
    bce   log(1 + exp z) - label * z          one logit z for two classes, whose logits are (0, z)

With `weights` a class counts for more or less. To add a loss, write a function (logits (E, C), labels (E,)) -> (E,) and
an entry in `LOSSES`.

Shapes: R rows of logits, E examples, C classes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bertvision.artifacts import write_json_rows
from bertvision.data.examples import TextData
from bertvision.data.windows import WindowConfig, Windows
from bertvision.errors import ConfigError
from bertvision.tasks import metrics
from bertvision.tasks.base import CardText, Member, Task, Tuning, register
from bertvision.tasks.calibrate import calibration_curve, fit_temperature
from bertvision.tasks.compare import mcnemar
from bertvision.tasks.logits import Logits, softmax
from bertvision.tasks.predictions import LabelPrediction
from bertvision.tasks.settings import TextConfig
from bertvision.tasks.texts import TextTask, merge_rows, row_starts, truth

if TYPE_CHECKING:
    from torch import Tensor


def _cross_entropy(logits: "Tensor", label: "Tensor") -> "Tensor":
    return -logits.log_softmax(-1).gather(-1, label.long().unsqueeze(-1)).squeeze(-1)


def _binary(logits: "Tensor", label: "Tensor") -> "Tensor":
    from torch.nn import functional as F

    logit = logits.squeeze(-1)
    return F.softplus(logit) - label.float() * logit


LOSSES = {"ce": _cross_entropy, "bce": _binary}
_ONE_LOGIT = {"bce"}
"""Losses of heads that give the second class's logit alone."""


@dataclass(frozen=True)
class LabelTuning(Tuning):
    temperature: float = 1.0
    """Divides the logits of all classes."""

    def __post_init__(self) -> None:
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise ConfigError(f"--temperature must be a finite number above 0, not {self.temperature}")


@dataclass(frozen=True)
class LabelAnswers:
    """The predicted class of every example, merged over its windows."""

    task: "LabelTask"
    data: TextData
    logits: NDArray[np.float64]
    """(R, C) one logit a class."""
    starts: NDArray[np.int64]
    """(E,) first row of each example."""
    labels: NDArray[np.integer]
    """(R,) what each row had to be, -1 where it is not known."""

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def probabilities(self) -> NDArray[np.float64]:
        """(E, C) probability of each class."""
        probabilities = softmax(self.logits)
        merge, positive = self.task.merge, self.task.positive
        if merge == "mean" or len(self.starts) == len(self.logits):
            return merge_rows(probabilities, self.starts, "mean")
        # Two classes: the positive one is merged and the other follows.
        merged = np.empty((len(self.starts), 2))
        merged[:, positive] = merge_rows(probabilities[:, positive], self.starts, merge)
        merged[:, 1 - positive] = 1 - merged[:, positive]
        return merged

    @cached_property
    def values(self) -> NDArray[np.int64]:
        """(E,) numbers of the predicted classes."""
        return self.probabilities.argmax(axis=1)

    @cached_property
    def truth(self) -> NDArray[np.int64]:
        """(E,) numbers of the labels."""
        return truth(self.data, np.int64)

    @property
    def confusion(self) -> NDArray[np.int64]:
        """(C, C) examples of the row's class that were given the column's class."""
        classes = len(self.task.classes)
        return np.bincount(self.truth * classes + self.values, minlength=classes**2).reshape(classes, classes)


@register
@dataclass(frozen=True)
class LabelTask(TextTask):
    """One of several classes; a head's folder keeps the settings under "task"."""

    kind = "label"
    metrics = metrics.LABEL
    tuning_class = LabelTuning

    classes: tuple[str, ...] = ()
    objective: str = "ce"
    metric: str = "accuracy"
    positive: int = 1
    """Of two classes, the one whose F1 is reported and that `min`, `max` and `any_null` refer to."""
    weights: tuple[float, ...] = ()
    """What the loss of an example of each class counts for; none = all alike."""
    asks: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.objective not in LOSSES:
            raise ConfigError(f"--text.loss {self.objective} is not for classes: use {' or '.join(LOSSES)}")
        if len(self.classes) < 2:
            raise ConfigError(
                f"a label task needs at least two classes, not {len(self.classes)}: check the labels"
            )
        if len(self.classes) != 2 and (self.objective in _ONE_LOGIT or self.merge != "mean"):
            raise ConfigError(
                f"--text.loss bce and --text.merge {self.merge} are for two classes, and there are "
                f"{len(self.classes)}: use --text.loss ce and --text.merge mean"
            )

    @property
    def outputs(self) -> int:
        return 1 if self.objective in _ONE_LOGIT else len(self.classes)

    @property
    def card(self) -> CardText:
        of = f" of {self.classes[self.positive]}" if self.merge != "mean" else ""
        return self.card_text(
            f"one of {len(self.classes)} classes ({', '.join(self.classes)}) and their probabilities",
            f"probability{of}",
            "Heads for labels always choose one of their classes, also for texts that belong to none of them.",
            "text-classification",
        )

    def title(self, metric: str) -> str:
        if metric == "f1" and len(self.classes) == 2:
            return f"F1 of {self.classes[self.positive]!r}"
        return super().title(metric)

    # ---- from data to a task

    @classmethod
    def of(cls, data: TextData, text: TextConfig, windows: WindowConfig) -> "LabelTask":
        positive, asks = data.positive, data.spans is not None
        if text.positive:
            if len(data.classes) != 2 or text.positive not in data.classes:
                known = ", ".join(data.classes) or "none"
                raise ConfigError(
                    f"--text.positive {text.positive} must be one of two classes; {data.name} has {known}"
                )
            positive = data.classes.index(text.positive)
        return cls(
            data.classes,
            objective="ce" if text.loss == "auto" else text.loss,
            positive=positive,
            asks=asks,
            **cls.settings(data, text, windows, "min" if asks else "mean"),
        )

    def describe(self, data: TextData) -> dict[str, Any]:
        labels = [example.label for example in data.examples]
        return {"counts": {name: labels.count(i) for i, name in enumerate(self.classes)}}

    # ---- training

    def losses(self, logits: "Tensor", label: "Tensor") -> "Tensor":
        loss = LOSSES[self.objective](logits, label)
        if self.weights:  # class by class: a tensor of them would have to be sent to the device in every step
            loss = loss * sum((label == c) * weight for c, weight in enumerate(self.weights))
        return loss

    def sampling_classes(self, data: TextData, windows: Windows, bins: int) -> NDArray[np.int64]:
        return self.targets(data, windows)[:: self.group, 0].astype(np.int64)

    def weighted(
        self, data: TextData, windows: Windows, *, balance: bool = False, null_weight: float = 1.0
    ) -> Task:
        if not balance:
            return super().weighted(data, windows, null_weight=null_weight)
        labels = self.targets(data, windows)[:, 0]
        counts = np.bincount(labels[labels >= 0], minlength=len(self.classes))
        weights = [counts.sum() / (len(counts) * count) if count else 0.0 for count in counts]
        return replace(self, weights=tuple(float(weight) for weight in weights))

    # ---- answers

    def join(self, members: Sequence[Logits], windows: Windows, how: str = "") -> Logits:
        """The log of the mean probability of each class, window by window: an ensemble is then like a head."""
        wide = [self.class_logits(member) for member in members]
        logs = [values - np.logaddexp.reduce(values, axis=1, keepdims=True) for values in wide]
        mean = np.logaddexp.reduce(logs, axis=0) - np.log(len(logs))  # (R, classes)
        values = mean[:, 1:] - mean[:, :1] if self.objective in _ONE_LOGIT else mean
        return Logits({"values": values.astype(np.float32)})

    def class_logits(self, logits: Logits) -> NDArray[np.float64]:
        """(R, C) one logit a class, also where a head gives the second class's alone."""
        wide = logits["values"].astype(np.float64)
        one = self.objective in _ONE_LOGIT
        return np.concatenate([np.zeros_like(wide), wide], axis=1) if one else wide

    def answer(
        self, windows: Windows, logits: Logits, data: TextData, tuning: LabelTuning | None = None
    ) -> LabelAnswers:
        """The rows of each example, to be merged; the tuning is applied to predictions alone."""
        self.check_logits(logits, windows)
        starts, labels = row_starts(windows, self.group, data), self.targets(data, windows)
        return LabelAnswers(self, data, self.class_logits(logits), starts, labels[:: self.group, 0])

    def tune(self, answers: LabelAnswers) -> LabelTuning:
        """The temperature of single windows."""
        return LabelTuning(fit_temperature(answers.logits, answers.labels))

    def calibrated(self, answers: LabelAnswers, tuning: LabelTuning) -> LabelAnswers:
        return replace(answers, logits=answers.logits / tuning.temperature)

    def mcnemar(self, ours: Member, theirs: Member) -> float:
        first, second = (answers.values == answers.truth for answers, _ in (ours, theirs))
        return mcnemar(first, second)

    def predictions(
        self, answers: LabelAnswers, tuning: LabelTuning | None = None, *, n_best: int = 0
    ) -> list[LabelPrediction]:
        """With the probabilities at the tuned temperature."""
        answers = answers if tuning is None else self.calibrated(answers, tuning)
        return [
            LabelPrediction(self.classes[best], row[best], dict(zip(self.classes, row, strict=True)))
            for best, row in zip(answers.values.tolist(), answers.probabilities.tolist(), strict=True)
        ]

    def write_answers(self, folder: Path, answers: LabelAnswers, tuning: Any = None) -> None:
        rows = (dict(zip(self.classes, row, strict=True)) for row in answers.probabilities.tolist())
        write_json_rows(folder / "probabilities.json", dict(zip(self.ids(answers.data), rows, strict=True)))
        super().write_answers(folder, answers)

    # ---- what a report shows

    def details(self, answers: LabelAnswers, tuning: Any = None) -> dict[str, Any]:
        """The confusion matrix (rows are the truth) and the bins of the calibration curve."""
        curve = calibration_curve(answers.probabilities, answers.truth)
        return {"confusion": answers.confusion.tolist(), "calibration": curve}

    def baselines(
        self, train: TextData, parts: Mapping[str, TextData]
    ) -> dict[str, dict[str, dict[str, float]]]:
        shares = np.bincount(truth(train, np.int64), minlength=len(self.classes)) / len(train)
        logits = np.log(np.maximum(shares, np.finfo(np.float64).tiny))
        found = {}
        for name, data in parts.items():
            rows = np.arange(len(data))
            found[name] = self.score(LabelAnswers(self, data, np.tile(logits, (len(data), 1)), rows, rows))
        return {"always the most frequent class": found}
