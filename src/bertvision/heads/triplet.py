"""Distances between texts, for pre-training an encoder on triplets.

An example is 2 + n neighbouring windows: an anchor, its positive and n negatives (data/triplets.py). With c_i the last
layer's [CLS] of window i,

    distances = |c_0 - c_1|, |c_0 - c_2|, ..., |c_0 - c_{n+1}|        (E, 1 + n) Euclidean, float32

The first is the one that should be small. There is nothing to train here: tasks/triplet.py makes a loss of the
distances, and what it trains is the encoder. So `bertvision heads` does not list it and `fit --heads` refuses it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bertvision.heads.base import Geometry, Head, register
from bertvision.heads.layers import check_at_least
from bertvision.shapes import Bool, Float

__all__ = ["Triplet", "TripletConfig"]


@dataclass(frozen=True)
class TripletConfig:
    negatives: int = 5
    """n: texts of an example that should be far from the anchor."""

    def __post_init__(self) -> None:
        check_at_least("triplet", "negatives", self.negatives, 1)


@register("triplet.v1", TripletConfig)
class Triplet(Head):
    """last layer's [CLS] of anchor, positive and negatives -> Euclidean distances to the anchor."""

    tasks = ("triplet",)
    last_only = True
    cls_only = True

    def __init__(self, config: TripletConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)

    @property
    def windows(self) -> int:
        return 2 + self.config.negatives

    def forward(self, states: Float[Tensor, "L B T H"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "E D"]:
        cls = states[-1, :, 0]  # (B, H)
        vectors = cls.to(torch.promote_types(cls.dtype, torch.float32)).unflatten(0, (-1, self.windows))
        # Equal vectors have distance 0 and the gradient 0 there, so a text may be its own neighbour.
        return torch.linalg.vector_norm(vectors[:, 1:] - vectors[:, :1], dim=-1)
