"""Triplet pre-training: what is made of the distances from an anchor to its positive (d+) and its negatives (d-_j).

    paper     max(0, d+ - log sum_j exp(d-_j) + margin)
    softmin   max(0, d+ + log sum_j exp(-d-_j) + margin)

log sum exp of distances is a soft maximum: in the paper's form one far negative is enough, however near the others
are. What is meant is the nearest negative, and -log sum exp(-d) is the soft minimum of distances: with `softmin` the
loss is zero only when every negative is farther than the positive. Distances come from heads/triplet.py.
"""

from typing import Literal

import torch
from torch import Tensor

from bertvision.errors import ConfigError
from bertvision.shapes import Float

__all__ = ["TripletForm", "triplet_loss", "triplet_metrics"]

TripletForm = Literal["paper", "softmin"]


def triplet_loss(
    distances: Float[Tensor, "E D"], *, form: TripletForm = "softmin", margin: float = 0.0
) -> Float[Tensor, " E"]:
    """Loss of each example; the first distance is that to the positive."""
    positive, negatives = distances[:, 0], distances[:, 1:]
    if form == "paper":
        return (positive - negatives.logsumexp(-1) + margin).clamp(min=0)
    if form == "softmin":
        return (positive + (-negatives).logsumexp(-1) + margin).clamp(min=0)
    raise ConfigError(f"--triplet-loss must be paper or softmin, not {form!r}")


def triplet_metrics(distances: Float[Tensor, "E D"]) -> dict[str, float]:
    """Means over examples, for the log of a run."""
    distances = distances.detach().to(torch.float64)
    positive, negatives = distances[:, :1], distances[:, 1:]
    return {
        "positive_distance": float(positive.mean()),
        "negative_distance": float(negatives.mean()),
        # An example is violated when at least one negative is nearer than the positive.
        "violation_rate": float((negatives < positive).any(-1).double().mean()),
        "paper_loss": float(triplet_loss(distances, form="paper").mean()),
        "softmin_loss": float(triplet_loss(distances, form="softmin").mean()),
    }
