"""The channels of a window head: the classification token's state of every layer, and the pooler's output.

    batch.first   (L, B, H)   embedding output, layer 1, ..., last layer
    pooled           (B, H)   tanh(W x + b) of the last layer's [CLS], where the encoder has a pooler

The papers' code puts the pooled vector first, so that channel -1 is the last layer's [CLS]; their appendix puts it
last. An encoder without a pooler gives the L channels alone.
"""

from typing import Literal

import torch
from torch import Tensor

from bertvision.heads.base import Geometry, StateBatch
from bertvision.shapes import Float

Order = Literal["first", "last"]
"""Where the pooled vector stands among the channels."""


def channels(batch: StateBatch, order: Order) -> Float[Tensor, "S B H"]:
    """The [CLS] vectors of all layers, with the pooled vector before or behind them."""
    cls = batch.first
    if batch.pooled is None:
        return cls
    if cls.dtype == torch.float16:  # stored so; under autocast to bf16 torch joins no float16 to anything
        cls = cls.float()
    pooled = batch.pooled[None].to(cls.dtype)
    return torch.cat([pooled, cls] if order == "first" else [cls, pooled])


def cls_vector(batch: StateBatch) -> Float[Tensor, "B H"]:
    """The one vector of a window: the pooled one, or the last layer's [CLS] where there is no pooler."""
    return batch.first[-1] if batch.pooled is None else batch.pooled


def num_channels(geometry: Geometry) -> int:
    """S: L + 1 with a pooler, L without one."""
    return geometry.states + geometry.pooled
