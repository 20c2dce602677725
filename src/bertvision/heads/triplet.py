"""Distances between texts, for pre-training an encoder on triplets. This head has no parameters.

    window i * (2 + n)          anchor of example i      the [CLS] vector of the last layer of each: (E, 2 + n, H)
    window i * (2 + n) + 1      its positive             distances of anchor and every other: (E, 1 + n)
    the n windows that follow   its negatives            Euclidean, float32

The first distance is the one that should be small. The triplet task makes a loss of the distances, which trains the
encoder. So `bertvision heads` does not list this head and `fit --heads` refuses it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bertvision.heads.base import Head, StateBatch, register
from bertvision.heads.options import HeadConfig, at_least
from bertvision.shapes import Float


@dataclass(frozen=True)
class TripletConfig(HeadConfig):
    negatives: int = at_least(1, 5)
    """n: texts of an example that should be far from the anchor."""


@register("triplet.v1", TripletConfig)
class Triplet(Head):
    """last layer's [CLS] of anchor, positive and negatives -> Euclidean distances to the anchor."""

    units = ()
    last_only = True
    cls_only = True

    @property
    def windows(self) -> int:
        return 2 + self.config.negatives

    def forward(self, batch: StateBatch) -> Float[Tensor, "E D"]:
        cls = batch.first[-1]  # (B, H)
        vectors = cls.to(torch.promote_types(cls.dtype, torch.float32)).unflatten(0, (-1, self.windows))
        # Equal vectors have distance 0 and gradient 0 there, so a text may be its own neighbour.
        return torch.linalg.vector_norm(vectors[:, 1:] - vectors[:, :1], dim=-1)
