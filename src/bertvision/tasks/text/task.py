"""What a label or score task is: its classes, its loss, how windows are merged and what it is judged by.

    ce    cross-entropy over C logits
    bce   one logit z for two classes: their logits are (0, z)
    mse   one number y for a score; the score is shift + scale * y, with the mean and spread of the training scores,
          so that heads and rates need not know whether scores run to 5 or to 5,000

The windows of a long text are merged by the mean of their probabilities (or scores). For answer / no answer that is
wrong, as one window with the answer is enough: there `min` takes the least probability of no answer. `any_null` is the
papers' way: one window that votes for the positive class (no answer) decides.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from bertvision.data.texts import Metric, TextData, TextKind
from bertvision.errors import ConfigError

__all__ = ["Merge", "TextLoss", "TextTask", "task_of"]

TextLoss = Literal["ce", "bce", "mse"]
Merge = Literal["mean", "min", "max", "any_null"]


@dataclass(frozen=True)
class TextTask:
    """A label or score task; a head's folder keeps it under "task"."""

    unit: ClassVar[Literal["window"]] = "window"
    kind: TextKind
    classes: tuple[str, ...] = ()
    loss: TextLoss = "ce"
    metric: Metric = "accuracy"
    positive: int = 1
    """Of two classes, the one whose F1 is told, and the one `min`, `max` and `any_null` speak of."""
    merge: Merge = "mean"
    shift: float = 0.0
    scale: float = 1.0
    group: int = 1
    """Windows that are one example side by side: 2 for a pair encoded apart."""
    weights: tuple[float, ...] = ()
    """What the loss of an example of each class counts for; none = all alike."""
    pairs: bool = False
    """Its examples are pairs of texts, before any prompt is put in front."""
    asks: bool = False
    """Its examples are questions over paragraphs (answer / no answer) and are cut into windows as those are."""

    def __post_init__(self) -> None:
        if self.kind == "score":
            if self.loss != "mse" or self.merge == "any_null":
                raise ConfigError(
                    "a score is trained with --text.loss mse and merged by --text.merge mean, min or max, "
                    f"not {self.loss} and {self.merge}"
                )
            return
        if self.weights and len(self.weights) != len(self.classes):
            raise ConfigError(
                f"{len(self.weights)} weights for {len(self.classes)} classes: give one for each, or none"
            )
        if self.loss == "mse":
            raise ConfigError("--text.loss mse is for scores: use ce or bce for classes")
        if len(self.classes) < 2:
            raise ConfigError(
                f"a label task needs at least two classes, not {len(self.classes)}: check the labels"
            )
        if len(self.classes) != 2 and (self.loss == "bce" or self.merge != "mean"):
            raise ConfigError(
                f"--text.loss bce and --text.merge {self.merge} are for two classes, and there are "
                f"{len(self.classes)}: use --text.loss ce and --text.merge mean"
            )

    @property
    def outputs(self) -> int:
        """C: numbers a head gives."""
        return len(self.classes) if self.loss == "ce" else 1


def task_of(
    data: TextData, *, loss: TextLoss | None = None, merge: Merge | None = None, group: int = 1
) -> TextTask:
    """The task a training set stands for; without `loss` and `merge` what suits it."""
    if data.kind == "score":
        values = np.array([example.label for example in data.examples], dtype=np.float64)
        spread = float(values.std())
        shift, scale = float(values.mean()), spread if spread > 0 else 1.0
        metric = data.metric if data.metric in ("pearson", "spearman") else "pearson"
        return TextTask(
            "score", (), loss or "mse", metric, 1, merge or "mean", shift, scale, group, pairs=data.pairs
        )
    metric = data.metric if data.metric in ("accuracy", "f1", "mcc") else "accuracy"
    usual: Merge = "mean" if data.spans is None else "min"
    return TextTask(
        "label",
        data.classes,
        loss or "ce",
        metric,
        data.positive,
        merge or usual,
        group=group,
        pairs=data.pairs,
        asks=data.spans is not None,
    )
