"""Labels: the class of a text, of a pair, or whether a paragraph answers a question.

    ce    log sum_c exp z_c - z_label
    bce   log(1 + exp z) - label * z          one logit z for two classes, whose logits are (0, z)

An unknown label (-1) costs nothing and has no gradient; with `weights` a class counts for more or less. Losses are
computed in float32, whatever the logits came in, and nothing depends on the values: they can be vmapped over stacked
heads and captured in a CUDA graph. To add a loss, write a function (logits (E, C), labels (E,)) -> (E,) and an entry in
`LOSSES`.

On disk: predictions.json (id -> class), probabilities.json (id -> {class: probability}).

Shapes: R rows of logits, E examples, W windows, B windows of a batch, C classes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
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
from bertvision.tasks.base import Task, Tuning, register
from bertvision.tasks.calibrate import calibration_curve, fit_temperature
from bertvision.tasks.compare import mcnemar
from bertvision.tasks.logits import Logits, softmax
from bertvision.tasks.predictions import LabelPrediction
from bertvision.tasks.settings import Merge, TextConfig
from bertvision.tasks.texts import TextTask, merge_rows, row_starts, truth

if TYPE_CHECKING:
    from torch import Tensor

    from bertvision.states.batch import StateBatch


def _cross_entropy(logits: "Tensor", label: "Tensor") -> "Tensor":
    from torch.nn import functional as F

    log_probs = F.log_softmax(logits, dim=-1)
    return -log_probs.gather(-1, label.long().unsqueeze(-1)).squeeze(-1)


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
    windows: Windows | None
    logits: NDArray[np.float64]
    """(R, C) one logit a class."""
    starts: NDArray[np.int64]
    """(E,) first row of each example."""

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
    limits = (
        "Heads for labels always choose one of their classes, also for texts that belong to none of them."
    )

    classes: tuple[str, ...] = ()
    objective: str = "ce"
    metric: str = "accuracy"
    positive: int = 1
    """Of two classes, the one whose F1 is reported and that `min`, `max` and `any_null` refer to."""
    merge: Merge = "mean"
    group: int = 1
    weights: tuple[float, ...] = ()
    """What the loss of an example of each class counts for; none = all alike."""
    pairs: bool = False
    asks: bool = False

    def __post_init__(self) -> None:
        if self.objective not in LOSSES:
            raise ConfigError(f"--text.loss {self.objective} is not for classes: use {' or '.join(LOSSES)}")
        if self.metric not in self.metrics or not self.metrics[self.metric].selects:
            fitting = ", ".join(name for name, metric in self.metrics.items() if metric.selects)
            raise ConfigError(f"--text.metric {self.metric} does not suit labels: use {fitting}")
        if self.weights and len(self.weights) != len(self.classes):
            raise ConfigError(
                f"{len(self.weights)} weights for {len(self.classes)} classes: give one for each, or none"
            )
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
    def about(self) -> str:
        names = ", ".join(self.classes)
        of = f" of {self.classes[self.positive]}" if self.merge != "mean" else ""
        what = f"Given {self.given} it returns one of {len(self.classes)} classes ({names}) and their probabilities."
        return f"{what} {self.merged(f'probability{of}')}".strip()

    # ---- from data to a task

    @classmethod
    def of(cls, data: TextData, text: TextConfig, windows: WindowConfig) -> "LabelTask":
        positive = data.positive
        if text.positive:
            if len(data.classes) != 2 or text.positive not in data.classes:
                known = ", ".join(data.classes) or "none"
                raise ConfigError(
                    f"--text.positive {text.positive} must be one of two classes; {data.name} has {known}"
                )
            positive = data.classes.index(text.positive)
        asks = data.spans is not None
        usual = data.metric if data.metric in cls.metrics else "accuracy"
        return cls(
            classes=data.classes,
            objective="ce" if text.loss == "auto" else text.loss,
            metric=usual if text.metric == "auto" else text.metric,
            positive=positive,
            merge=("min" if asks else "mean") if text.merge == "auto" else text.merge,
            group=2 if windows.apart and data.pairs else 1,
            pairs=data.pairs,
            asks=asks,
        )

    def describe(self, data: TextData) -> dict[str, Any]:
        labels = [example.label for example in data.examples]
        return {"counts": {name: labels.count(i) for i, name in enumerate(self.classes)}}

    # ---- training

    def targets(self, data: TextData, windows: Windows) -> NDArray[np.int32]:
        """(W, 1) class of each window's example, -1 where it is not known.

        Answer / no answer: a window without the answer is "no answer", whatever the others of its question hold.
        """
        labels = np.array([-1 if e.label is None else e.label for e in data.examples], np.int32)
        own = labels[windows.example].reshape(-1, 1)  # (W, 1)
        if not self.asks:
            return own
        missing = windows.labels[:, :1] == windows.null[:, None]
        return np.where(own < 0, own, missing.astype(np.int32))

    def loss(self, logits: "Tensor", batch: "StateBatch") -> "Tensor":
        import torch

        label = batch.targets.reshape(-1, self.group)[:, 0]  # (E,) the windows of an example agree
        known = label >= 0
        # Replaced before the loss, not behind it: the gradient of a NaN times zero is NaN.
        label = torch.where(known, label, torch.zeros_like(label))
        loss = LOSSES[self.objective](logits.float(), label)
        if self.weights:  # class by class: a tensor of them would have to be sent to the device in every step
            loss = loss * sum((label == c) * weight for c, weight in enumerate(self.weights))
        loss = loss * known
        return loss.unsqueeze(-1).expand(-1, self.group).reshape(-1)

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
        self.join_how(how, members)
        wide = [class_logits(self, member) for member in members]
        logs = [values - np.logaddexp.reduce(values, axis=1, keepdims=True) for values in wide]
        mean = np.logaddexp.reduce(logs, axis=0) - np.log(len(logs))  # (R, classes)
        values = mean[:, 1:] - mean[:, :1] if self.objective in _ONE_LOGIT else mean
        return Logits({"values": values.astype(np.float32)})

    def answer(
        self, windows: Windows, logits: Logits, data: TextData, tuning: LabelTuning | None = None
    ) -> LabelAnswers:
        """The rows of each example, to be merged; the tuning is applied to predictions alone."""
        self.check_logits(logits, windows)
        return LabelAnswers(
            self, data, windows, class_logits(self, logits), row_starts(windows, self.group, data)
        )

    def tune(self, answers: LabelAnswers) -> LabelTuning:
        """The temperature of single windows."""
        assert answers.windows is not None
        labels = self.targets(answers.data, answers.windows)[:: self.group, 0]
        return LabelTuning(fit_temperature(answers.logits, labels))

    def calibrated(self, answers: LabelAnswers, tuning: LabelTuning) -> LabelAnswers:
        return replace(answers, logits=answers.logits / tuning.temperature)

    def mcnemar(self, ours: tuple[LabelAnswers, Any], theirs: tuple[LabelAnswers, Any]) -> float:
        first, second = ours[0], theirs[0]
        return mcnemar(first.values == first.truth, second.values == second.truth)

    # ---- what a user gets

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
        ids = self.ids(answers.data)
        rows = (dict(zip(self.classes, row, strict=True)) for row in answers.probabilities.tolist())
        write_json_rows(folder / "probabilities.json", dict(zip(ids, rows, strict=True)))
        said = [self.classes[value] for value in answers.values.tolist()]
        write_json_rows(folder / "predictions.json", dict(zip(ids, said, strict=True)))

    # ---- what a report shows

    def details(self, answers: LabelAnswers, tuning: Any = None) -> dict[str, Any]:
        """The confusion matrix (rows are the truth) and the bins of the calibration curve."""
        curve = [asdict(part) for part in calibration_curve(answers.probabilities, answers.truth)]
        return {"confusion": answers.confusion.tolist(), "calibration": curve}

    def baselines(
        self, train: TextData, parts: Mapping[str, TextData]
    ) -> dict[str, dict[str, dict[str, float]]]:
        shares = np.bincount(truth(train, np.int64), minlength=len(self.classes)) / len(train)
        logits = np.log(np.maximum(shares, np.finfo(np.float64).tiny))
        found = {
            name: self.score(
                LabelAnswers(self, data, None, np.tile(logits, (len(data), 1)), np.arange(len(data)))
            )
            for name, data in parts.items()
        }
        return {"always the most frequent class": found}

    def example(self, data: TextData, number: int) -> dict[str, Any]:
        one = super().example(data, number)
        return one | {"truth": self.classes[one["truth"]]}

    def said(self, answers: LabelAnswers, tuning: Any = None) -> tuple[list[Any], Sequence[bool]]:
        return [self.classes[v] for v in answers.values.tolist()], (answers.values == answers.truth).tolist()

    def title(self, metric: str) -> str:
        if metric == "f1" and len(self.classes) == 2:
            return f"F1 of {self.classes[self.positive]!r}"
        return super().title(metric)


def class_logits(task: LabelTask, logits: Logits) -> NDArray[np.float64]:
    """(R, C) one logit a class, also where a head gives the second class's alone."""
    wide = logits["values"].astype(np.float64)
    return np.concatenate([np.zeros_like(wide), wide], axis=1) if task.objective in _ONE_LOGIT else wide
