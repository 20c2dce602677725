"""Scores: a number for a text or a pair of texts.

    mse   (y - (score - shift) / scale) ** 2

A head gives one number y; the score is shift + scale * y, with the mean and spread of the training scores, so that
heads and rates need not know whether scores run to 5 or to 5,000.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bertvision.data.examples import TextData
from bertvision.data.windows import WindowConfig, Windows
from bertvision.errors import ConfigError
from bertvision.tasks import metrics
from bertvision.tasks.base import CardText, register
from bertvision.tasks.logits import Logits
from bertvision.tasks.settings import TextConfig
from bertvision.tasks.texts import TextAnswers, TextTask, truth

if TYPE_CHECKING:
    from torch import Tensor


_POINTS = 1500
_ERROR_BINS = 24


@dataclass(frozen=True)
class ScorePrediction:
    """The score of a text."""

    kind: ClassVar[str] = "score"
    score: float

    def line(self) -> str:
        return f"{self.score:.3f}"


@register
@dataclass(frozen=True)
class ScoreTask(TextTask):
    """A number; a head's folder keeps the settings under "task"."""

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

    # ---- from data to a task

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

    # ---- training

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

    # ---- answers

    def join(self, members: Sequence[Logits], windows: Windows, how: str = "") -> Logits:
        return Logits({"values": np.mean([one["values"] for one in members], axis=0).astype(np.float32)})

    def rows(self, logits: Logits) -> NDArray[np.float64]:
        return self.shift + self.scale * logits["values"][:, 0].astype(np.float64)

    def predictions(
        self, answers: TextAnswers, tuning: Any = None, *, n_best: int = 0
    ) -> list[ScorePrediction]:
        return [ScorePrediction(value) for value in answers.values.tolist()]

    # ---- what a report shows

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
