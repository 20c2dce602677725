"""Triplets, for pre-training an encoder: bring a text nearer to its positive than to its negatives.

The loss of the distances from an anchor to its positive (d+) and its negatives (d-_j), which heads/triplet.py gives:

    paper     max(0, d+ - log sum_j exp(d-_j) + margin)
    softmin   max(0, d+ + log sum_j exp(-d-_j) + margin)

log sum exp of distances is a soft maximum: in the paper's form one far negative is enough, however near the others
are. What is meant is the nearest negative, and -log sum exp(-d) is the soft minimum of distances: with `softmin` the
loss is zero only when every negative is farther than the positive.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from bertvision.data.examples import content_hash
from bertvision.data.triplets import TripletData, triplet_windows
from bertvision.data.windows import WindowConfig, Windows
from bertvision.errors import ConfigError
from bertvision.shapes import Float
from bertvision.tasks import metrics
from bertvision.tasks.base import Task, TextConfig, register
from bertvision.tasks.logits import Logits

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from bertvision.states.base import StateBatch


TripletForm = Literal["paper", "softmin"]


@register
@dataclass(frozen=True)
class TripletTask(Task):
    """Trains the encoder alone. Its answers are (E, D) distances from each anchor to its positive and each negative."""

    kind = "triplet"
    unit = "window"
    metrics = metrics.TRIPLET
    predicts = False

    form: TripletForm = "softmin"
    margin: float = 0.0
    group: int = 7  # windows of a triplet: anchor, positive, negatives
    metric: str = "violation_rate"

    def __post_init__(self) -> None:
        if self.form not in ("paper", "softmin"):
            raise ConfigError(f"--form {self.form} is unknown: choose softmin or paper")

    @property
    def outputs(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.group - 1

    @property
    def head(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return f"triplet:negatives={self.group - 2}"

    @classmethod
    def of(cls, data: TripletData, text: TextConfig, windows: WindowConfig) -> "TripletTask":
        return cls(group=2 + data.negatives)

    def windows(
        self, data: Any, tokenizer: "PreTrainedTokenizerBase", config: WindowConfig, *, cache: Path | None
    ) -> tuple[Windows, str]:
        from bertvision.encoder.load import tokenizer_fingerprint

        parts = [data.fingerprint, tokenizer_fingerprint(tokenizer), asdict(config), self.config()]
        return triplet_windows(data, tokenizer, config), content_hash([parts])

    def ids(self, data: TripletData) -> list[str]:
        return [f"number {i}" for i in range(len(data))]

    def loss(self, logits: "Tensor", batch: "StateBatch") -> "Tensor":
        return triplet_loss(logits, form=self.form, margin=self.margin).repeat_interleave(self.group)

    def answer(self, windows: Windows, logits: Logits, data: TripletData, tuning: Any = None) -> Any:
        self.check_logits(logits, windows)
        return logits["values"].astype(np.float64)

    def score(self, answers: NDArray[np.float64], tuning: Any = None) -> dict[str, float]:
        import torch

        positive, negatives = answers[:, :1], answers[:, 1:]
        distances = torch.from_numpy(answers)
        return {
            # A triplet is violated when at least one negative is nearer than the positive.
            "violation_rate": float((negatives < positive).any(axis=1).mean()),
            "positive_distance": float(positive.mean()),
            "negative_distance": float(negatives.mean()),
            "paper_loss": float(triplet_loss(distances, form="paper").mean()),
            "softmin_loss": float(triplet_loss(distances, form="softmin").mean()),
        }


def triplet_loss(
    distances: "Float[Tensor, 'E D']", *, form: TripletForm = "softmin", margin: float = 0.0
) -> "Float[Tensor, ' E']":
    positive, negatives = distances[:, 0], distances[:, 1:]
    if form == "paper":
        return (positive - negatives.logsumexp(-1) + margin).clamp(min=0)
    return (positive + (-negatives).logsumexp(-1) + margin).clamp(min=0)
