"""The channels of a label head: what the encoder made of [CLS], layer by layer, and its pooler's output.

    states[:, :, 0]  (L, B, H)   embedding output, layer 1, ..., last layer
    pooled              (B, H)   tanh(W x + b) of the last layer's [CLS], where the encoder has a pooler

The papers' code puts the pooled vector first, so that channel -1 is the last layer's [CLS]; their appendix says
it comes last. An encoder without a pooler gives the L channels alone.
"""

import functools
import logging
from typing import Literal

import torch
from torch import Tensor

from bertvision.heads.base import Geometry
from bertvision.shapes import Float

__all__ = ["Order", "channels", "cls_vector", "num_channels"]

logger = logging.getLogger(__name__)

Order = Literal["first", "last"]
"""Where the pooled vector stands among the channels."""


def channels(
    states: Float[Tensor, "L B T H"], pooled: Float[Tensor, "B H"] | None, order: Order
) -> Float[Tensor, "S B H"]:
    """The [CLS] vectors of all layers, with the pooled vector before or behind them."""
    cls = states[:, :, 0]
    if pooled is None:
        return cls
    if cls.dtype == torch.float16:  # stored so; under autocast to bf16 torch joins no float16 to anything
        cls = cls.float()
    own = pooled[None].to(cls.dtype)
    return torch.cat([own, cls] if order == "first" else [cls, own])


def cls_vector(states: Float[Tensor, "L B T H"], pooled: Float[Tensor, "B H"] | None) -> Float[Tensor, "B H"]:
    """The one vector of a window: the pooled one, or the last layer's [CLS] where there is no pooler."""
    return states[-1, :, 0] if pooled is None else pooled


def num_channels(geometry: Geometry) -> int:
    """S: L + 1 with a pooler, L without one, which is said once."""
    if geometry.pooled:
        return geometry.states + 1
    if not torch.empty(0).is_meta:  # there a head is only counted
        _say_no_pooler(geometry.states)
    return geometry.states


@functools.cache
def _say_no_pooler(states: int) -> None:
    logger.info("the encoder has no pooler: the head reads %d channels, one for each hidden state", states)
