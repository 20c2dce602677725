"""Labels (the class of a text, of a pair, or whether a paragraph answers a question) and scores (a number).

    ce    log sum_c exp z_c - z_label
    bce   log(1 + exp z) - label * z          one logit z for two classes, whose logits are (0, z)
    mse   (y - (score - shift) / scale) ** 2  the score is shift + scale * y

To add a loss of labels, write a function (logits (E, C), labels (E,)) -> (E,) and an entry in `LOSSES`. Scores are read
with the mean and spread of the training scores, so that heads and rates need not know whether they run to 5 or 5,000.

On disk, beside predictions.json: probabilities.json (id -> {class: probability}).

Shapes: R rows of logits, E examples, C classes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bertvision.artifacts import write_json_rows
from bertvision.data.examples import TextData
from bertvision.data.windows import WindowConfig, Windows
from bertvision.errors import ConfigError
from bertvision.tasks import metrics
from bertvision.tasks.base import CardText, Member, Task, TextConfig, Tuning, register
from bertvision.tasks.logits import Logits, softmax
from bertvision.tasks.metrics import calibration_curve, fit_temperature, mcnemar
from bertvision.tasks.texts import TextAnswers, TextTask, merge_rows, truth

if TYPE_CHECKING:
    from torch import Tensor


def _cross_entropy(logits: "Tensor", label: "Tensor") -> "Tensor":
    return -logits.log_softmax(-1).gather(-1, label.long().unsqueeze(-1)).squeeze(-1)


def _binary(logits: "Tensor", label: "Tensor") -> "Tensor":
    from torch.nn import functional as F

    logit = logits.squeeze(-1)
    return F.softplus(logit) - label.float() * logit


LOSSES = {"ce": _cross_entropy, "bce": _binary}
_ONE_LOGIT = {"bce"}  # of heads that give the second class's logit alone
_POINTS, _ERROR_BINS = 1500, 24  # of what a report draws of scores


@dataclass(frozen=True)
class LabelTuning(Tuning):
    temperature: float = 1.0  # divides the logits of all classes

    def __post_init__(self) -> None:
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise ConfigError(f"a temperature must be a finite number above 0, not {self.temperature}")


@dataclass(frozen=True)
class LabelPrediction:
    kind: ClassVar[str] = "label"
    label: str  # the class with the greatest probability
    probability: float
    probabilities: dict[str, float]  # of every class

    def line(self) -> str:
        return f"{self.label}  p={self.probability:.3f}"


@dataclass(frozen=True)
class LabelAnswers(TextAnswers):
    @cached_property
    def probabilities(self) -> NDArray[np.float64]:  # (E, C)
        probabilities = softmax(self.rows)
        merge, positive = self.task.merge, self.task.positive
        if merge == "mean" or len(self.starts) == len(self.rows):
            return merge_rows(probabilities, self.starts, "mean")
        # Two classes: the positive one is merged and the other follows.
        merged = np.empty((len(self.starts), 2))
        merged[:, positive] = merge_rows(probabilities[:, positive], self.starts, merge)
        merged[:, 1 - positive] = 1 - merged[:, positive]
        return merged

    @cached_property
    def values(self) -> NDArray[np.int64]:
        return self.probabilities.argmax(axis=1)


@register
@dataclass(frozen=True)
class LabelTask(TextTask):
    kind = "label"
    metrics = metrics.LABEL
    tuning_class = LabelTuning
    answers_class = LabelAnswers

    classes: tuple[str, ...] = ()
    objective: str = "ce"
    metric: str = "accuracy"
    positive: int = 1
    """Of two classes, the one whose F1 is reported and that `min`, `max` and `any_null` refer to."""
    weights: tuple[float, ...] = ()  # what an example of each class counts for in the loss; none: all alike
    asks: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.objective not in LOSSES:
            raise ConfigError(f"--text.loss {self.objective} is not for classes: use {' or '.join(LOSSES)}")
        if (count := len(self.classes)) < 2:
            raise ConfigError(f"a label task needs at least two classes, not {count}: check the labels")
        if count != 2 and (self.objective in _ONE_LOGIT or self.merge != "mean"):
            raise ConfigError(
                f"--text.loss bce and --text.merge {self.merge} are for two classes, and there are {count}: "
                "use --text.loss ce and --text.merge mean"
            )

    @property
    def outputs(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return 1 if self.objective in _ONE_LOGIT else len(self.classes)

    @property
    def card(self) -> CardText:  # pyright: ignore[reportIncompatibleVariableOverride]
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

    @classmethod
    def of(cls, data: TextData, text: TextConfig, windows: WindowConfig) -> "LabelTask":
        asks = data.spans is not None
        shared = cls.settings(data, text, windows, "min" if asks else "mean")
        positive = data.classes.index(text.positive) if text.positive else data.positive
        objective = "ce" if text.loss == "auto" else text.loss
        return cls(data.classes, objective=objective, positive=positive, asks=asks, **shared)

    def describe(self, data: TextData) -> dict[str, Any]:
        labels = [example.label for example in data.examples]
        return {"counts": {name: labels.count(i) for i, name in enumerate(self.classes)}}

    def losses(self, logits: "Tensor", label: "Tensor") -> "Tensor":
        loss = LOSSES[self.objective](logits, label)
        if self.weights:  # class by class: a tensor of them would have to be sent to the device in every step
            loss = loss * sum((label == c) * weight for c, weight in enumerate(self.weights))
        return loss

    def sampling_classes(self, windows: Windows, bins: int) -> NDArray[np.int64]:
        return self.row_labels(windows).astype(np.int64)

    def balanced(self, windows: Windows) -> Task:
        labels = windows.labels[:, 0]
        counts = np.bincount(labels[labels >= 0], minlength=len(self.classes))
        weights = [counts.sum() / (len(counts) * count) if count else 0.0 for count in counts]
        return replace(self, weights=tuple(float(weight) for weight in weights))

    def join(self, members: Sequence[Logits], windows: Windows, how: str = "") -> Logits:
        """The log of the mean probability of each class, window by window: an ensemble is then like a head."""
        wide = [self.rows(member) for member in members]
        logs = [values - np.logaddexp.reduce(values, axis=1, keepdims=True) for values in wide]
        mean = np.logaddexp.reduce(logs, axis=0) - np.log(len(logs))  # (R, classes)
        values = mean[:, 1:] - mean[:, :1] if self.objective in _ONE_LOGIT else mean
        return Logits({"values": values.astype(np.float32)})

    def rows(self, logits: Logits) -> NDArray[np.float64]:
        """(R, C) one logit a class, also where a head gives the second class's alone."""
        wide = logits["values"].astype(np.float64)
        return np.pad(wide, ((0, 0), (1, 0))) if self.objective in _ONE_LOGIT else wide

    def tune(self, answers: LabelAnswers) -> LabelTuning:
        return LabelTuning(fit_temperature(answers.rows, answers.labels))

    def calibrated(self, answers: LabelAnswers, tuning: LabelTuning) -> LabelAnswers:
        return replace(answers, rows=answers.rows / tuning.temperature)

    def mcnemar(self, ours: Member, theirs: Member) -> float:
        return mcnemar(*(answers.values == answers.truth for answers, _ in (ours, theirs)))

    def predictions(self, answers: Any, tuning: Any = None, *, n_best: int = 0) -> list[LabelPrediction]:
        answers = answers if tuning is None else self.calibrated(answers, tuning)
        return [
            LabelPrediction(self.classes[best], row[best], dict(zip(self.classes, row, strict=True)))
            for best, row in zip(answers.values.tolist(), answers.probabilities.tolist(), strict=True)
        ]

    def write_answers(self, folder: Path, answers: LabelAnswers, tuning: Any = None) -> None:
        rows = (dict(zip(self.classes, row, strict=True)) for row in answers.probabilities.tolist())
        write_json_rows(folder / "probabilities.json", dict(zip(self.ids(answers.data), rows, strict=True)))
        super().write_answers(folder, answers)

    def details(self, answers: LabelAnswers, tuning: Any = None) -> dict[str, Any]:
        """The confusion matrix (rows are the truth) and the bins of the calibration curve."""
        confusion = np.zeros([len(self.classes)] * 2, np.int64)
        np.add.at(confusion, (answers.truth, answers.values), 1)
        curve = calibration_curve(answers.probabilities, answers.truth)
        return {"confusion": confusion.tolist(), "calibration": curve}

    def constant(self, train: TextData) -> tuple[str, Any]:
        shares = np.bincount(truth(train, np.int64), minlength=len(self.classes)) / len(train)
        return "always the most frequent class", np.log(np.maximum(shares, np.finfo(np.float64).tiny))


@dataclass(frozen=True)
class ScorePrediction:
    kind: ClassVar[str] = "score"
    score: float

    def line(self) -> str:
        return f"{self.score:.3f}"


@register
@dataclass(frozen=True)
class ScoreTask(TextTask):
    kind = "score"
    metrics = metrics.SCORE
    outputs = 1

    metric: str = "pearson"
    shift: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.merge == "any_null":
            raise ConfigError("a score is merged by --text.merge mean, min or max, not by any_null")

    @property
    def card(self) -> CardText:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.card_text(
            f"a score; training scores had a mean of {self.shift:.3g} and a deviation of {self.scale:.3g}",
            "score",
            "Heads for scores answer on the scale of their training data, and nothing keeps them inside it.",
            "sentence-similarity" if self.pairs else "text-classification",
        )

    @classmethod
    def of(cls, data: TextData, text: TextConfig, windows: WindowConfig) -> "ScoreTask":
        if text.loss not in ("auto", "mse"):
            raise ConfigError(f"a score is trained with --text.loss mse, not {text.loss}")
        shared, scores = cls.settings(data, text, windows, "mean"), truth(data, np.float64)
        return cls(shift=float(scores.mean()), scale=float(scores.std()) or 1.0, **shared)

    def describe(self, data: TextData) -> dict[str, Any]:
        known = np.array([e.label for e in data.examples if e.label is not None], np.float64)
        if not len(known):
            return {}
        numbers = {"low": known.min(), "mean": known.mean(), "high": known.max(), "spread": known.std()}
        return {"range": {name: float(value) for name, value in numbers.items()}}

    def losses(self, logits: "Tensor", label: "Tensor") -> "Tensor":
        return (logits.squeeze(-1) - (label.float() - self.shift) / self.scale).square()

    def sampling_classes(self, windows: Windows, bins: int) -> NDArray[np.int64]:
        """Bins of equal width and not of equal counts: sampling by them makes rare scores frequent."""
        scores = self.row_labels(windows).astype(np.float64)
        if bins < 1:
            raise ConfigError(f"--bins must be at least 1, not {bins}")
        if not np.isfinite(scores).all():
            raise ConfigError("scores that are not known cannot be put into bins: use --sampling natural")
        low, width = scores.min(initial=np.inf), np.ptp(scores) if len(scores) else 0.0
        place = (scores - low) / (width or 1.0) * bins
        return np.minimum(place.astype(np.int64), bins - 1)

    def join(self, members: Sequence[Logits], windows: Windows, how: str = "") -> Logits:
        return Logits({"values": np.mean([one["values"] for one in members], axis=0).astype(np.float32)})

    def rows(self, logits: Logits) -> NDArray[np.float64]:
        return self.shift + self.scale * logits["values"][:, 0].astype(np.float64)

    def predictions(self, answers: Any, tuning: Any = None, *, n_best: int = 0) -> list[ScorePrediction]:
        return [ScorePrediction(value) for value in answers.values.tolist()]

    def details(self, answers: TextAnswers, tuning: Any = None) -> dict[str, Any]:
        """A draw of true and predicted scores, and a histogram of the errors."""
        errors = answers.values - answers.truth
        reach = float(np.abs(errors).max()) or 1.0
        counts, edges = np.histogram(errors, bins=_ERROR_BINS, range=(-reach, reach))
        chosen = np.random.default_rng(0).permutation(len(errors))[:_POINTS]
        points = np.stack([answers.truth, answers.values], axis=1)[np.sort(chosen)]
        return {
            "points": np.round(points, 4).tolist(),
            "errors": {"edges": edges.tolist(), "counts": counts.tolist()},
        }

    def constant(self, train: TextData) -> tuple[str, Any]:
        return "always the mean score", truth(train, np.float64).mean()
