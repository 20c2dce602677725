"""Xception for labels: the [CLS] vectors are a picture of one line, H wide, with a channel for every layer.

        xception_abbr:  Conv3/64 s3 valid - BN - ReLU - Conv3/128 valid - BN - ReLU
                        1 block (256, 512) - mean over the line [+ channel -1 (H)] -> Linear(C)
        xception:       the same stem with 32 and 64 filters - blocks (128, 128), (256, 256), (728, 728)
                        8 middle blocks - block (728, 1024) - 2 x (SepConv - BN - ReLU) (1536, 2048)
                        mean over the line -> Linear(C)

A block is (ReLU - SepConv3 - BN) for each width, then a pool of 3 with stride 2, plus a 1 x 1 convolution of its
input with stride 2 and batch norm; the first block's leading ReLU is the stem's.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertvision.heads.base import Geometry, glorot_linear, register
from bertvision.heads.channels import Order, channels, num_channels
from bertvision.heads.conv import BatchNorm, Conv, ConvHead, ConvNorm, Separable
from bertvision.heads.xception import XceptionBlock, middle_block
from bertvision.shapes import Bool, Float

__all__ = ["LabelXception", "LabelXceptionConfig", "XceptionAbbr", "XceptionAbbrConfig"]


class _XceptionHead(ConvHead):
    """The channels through `blocks`, and the mean over what is left of the line."""

    tasks = ("label", "score")
    extras = ("pooled",)
    cls_only = True
    blocks: nn.Sequential

    def features(self, picture: Float[Tensor, "S B H"]) -> Float[Tensor, "B D"]:
        x = picture.transpose(0, 1)
        x = F.pad(x, (0, max(0, 9 - x.shape[-1])))  # the stem takes no padding and needs 9 numbers
        for block in self.blocks:
            x = self.run_block(block, x)
        return x.mean(-1)


def _stem(inputs: int, first: int, second: int) -> list[nn.Module]:
    return [
        ConvNorm(Conv(inputs, first, 3, stride=(3,), valid=True)),
        ConvNorm(Conv(first, second, 3, valid=True)),
    ]


@dataclass(frozen=True)
class XceptionAbbrConfig:
    cls: bool = False
    """Give channel -1 (the last layer's [CLS], unless order=last) to the output layer too."""
    order: Order = "first"
    """Where the pooled vector stands among the channels: first as in the papers' code, or last."""


@register("xception_abbr.v1", XceptionAbbrConfig)
class XceptionAbbr(_XceptionHead):
    """[CLS] of all layers as channels -> stem and one block of Xception -> mean [+ channel -1] -> Linear(C)."""

    def __init__(self, config: XceptionAbbrConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        block = XceptionBlock(128, (256, 512), 3, lead=False, pool="avg")
        self.blocks = nn.Sequential(*_stem(num_channels(geometry), 64, 128), block)
        self.project = glorot_linear(512 + (geometry.hidden if config.cls else 0), geometry.outputs)

    def forward(
        self,
        states: Float[Tensor, "L B T H"],
        mask: Bool[Tensor, "B T"],
        pooled: Float[Tensor, "B H"] | None = None,
    ) -> Float[Tensor, "B C"]:
        picture = channels(states, pooled, self.config.order)
        x = self.features(picture)
        return self.project(torch.cat([x, picture[-1].to(x.dtype)], -1) if self.config.cls else x)


@dataclass(frozen=True)
class LabelXceptionConfig:
    pool: Literal["avg", "max"] = "avg"
    """Pool of the two blocks around the middle: avg as in the papers' last code, max as in their saved model."""
    order: Order = "first"
    """Where the pooled vector stands among the channels: first as in the papers' code, or last."""


@register("xception.v1", LabelXceptionConfig)
class LabelXception(_XceptionHead):
    """[CLS] of all layers as channels -> Xception with kernels of 3 numbers -> mean -> Linear(C)."""

    def __init__(self, config: LabelXceptionConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        self.blocks = nn.Sequential(
            *_stem(num_channels(geometry), 32, 64),
            XceptionBlock(64, (128, 128), 3, lead=False, pool="avg"),
            XceptionBlock(128, (256, 256), 3, pool="avg"),
            XceptionBlock(256, (728, 728), 3, pool=config.pool),
            *(middle_block(3) for _ in range(8)),
            XceptionBlock(728, (728, 1024), 3, pool=config.pool),
            nn.Sequential(Separable(1024, 1536, 3), BatchNorm(1536), nn.ReLU()),
            nn.Sequential(Separable(1536, 2048, 3), BatchNorm(2048), nn.ReLU()),
        )
        self.project = glorot_linear(2048, geometry.outputs)

    def forward(
        self,
        states: Float[Tensor, "L B T H"],
        mask: Bool[Tensor, "B T"],
        pooled: Float[Tensor, "B H"] | None = None,
    ) -> Float[Tensor, "B C"]:
        return self.project(self.features(channels(states, pooled, self.config.order)))
