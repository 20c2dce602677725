"""Xception with kernels along a line of numbers: of one token, or of the [CLS] vectors of all layers.

xception_mod, for tokens. Only its size is published; kernel 5 and three middle blocks meet it.

        pooled states -> adapter (a), 1 channel
        Conv3/32 s2 valid - BN - ReLU - Conv5/64 - BN - ReLU
        3 entry blocks (128, 256, 728):  2 x (ReLU - SepConv5 - BN)  + (Conv1 - BN) of the block's input
        3 middle blocks (728):           3 x (ReLU - SepConv5 - BN)  + the block's input
        flatten (width * 728) -> Linear(C)

xception_abbr and xception, for windows. The [CLS] vectors are a picture of one line, H wide, with a channel for every
layer. Kernels are 3 wide, and a block ends in a pool of 3 with stride 2, as does its shortcut.

        xception_abbr:  Conv3/64 s3 valid - BN - ReLU - Conv3/128 valid - BN - ReLU
                        1 block (256, 512) - mean over the line [+ channel -1 (H)] -> Linear(C)
        xception:       the same stem with 32 and 64 filters - blocks (128, 128), (256, 256), (728, 728)
                        8 middle blocks - block (728, 1024) - 2 x (SepConv - BN - ReLU) (1536, 2048)
                        mean over the line -> Linear(C)

The leading ReLU of a first block is the stem's.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertvision.heads.adapter import Down
from bertvision.heads.base import Geometry, StateBatch, register
from bertvision.heads.layers import glorot_linear, pack, unpack
from bertvision.heads.papers.conv import (
    BatchNorm,
    Conv,
    ConvHead,
    ConvNorm,
    Separable,
    avg_pool,
    max_pool,
)
from bertvision.heads.readouts import LearnedMix, channels, num_channels
from bertvision.heads.spec import HeadConfig, at_least
from bertvision.shapes import Float


class XceptionBlock(nn.Module):
    """(ReLU - SepConv - BN) for each width [- pool 3, stride 2] + shortcut."""

    def __init__(
        self,
        inputs: int,
        widths: tuple[int, ...],
        kernel: int,
        *,
        lead: bool = True,
        pool: Literal["avg", "max"] | None = None,
        project: bool = True,
    ) -> None:
        super().__init__()
        self.lead, self.pool = lead, pool
        self.convs, self.norms = nn.ModuleList(), nn.ModuleList()
        for before, after in zip((inputs, *widths), widths, strict=False):
            self.convs.append(Separable(before, after, kernel))
            self.norms.append(BatchNorm(after))
        self.short = None
        if project:
            stride = (2,) if pool else (1,)
            self.short = nn.Sequential(Conv(inputs, widths[-1], 1, stride=stride), BatchNorm(widths[-1]))

    def forward(self, x: Float[Tensor, "N C W"]) -> Float[Tensor, "N D V"]:
        y = x
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            y = norm(conv(y.relu() if i or self.lead else y))
        if self.pool == "avg":
            y = avg_pool(y, 3, 2)
        elif self.pool == "max":
            y = max_pool(y, 3, (2,))
        return y + (x if self.short is None else self.short(x))


def _middle_blocks(number: int, kernel: int) -> list[nn.Module]:
    return [XceptionBlock(728, (728,) * 3, kernel, project=False) for _ in range(number)]


class _XceptionHead(ConvHead):
    blocks: nn.Sequential
    project: nn.Linear

    def run_blocks(self, x: Float[Tensor, "N C W"]) -> Float[Tensor, "N D V"]:
        for block in self.blocks:
            x = self.run_block(block, x)
        return x


@dataclass(frozen=True)
class XceptionModConfig(HeadConfig):
    adapter: int = at_least(3, 386)  # the first kernel takes no padding
    """Numbers the pooled state is reduced to."""


@register("xception_mod.v1", XceptionModConfig)
class XceptionMod(_XceptionHead):
    """gamma * softmax(w) over layers -> adapter -> Xception's entry and middle over its numbers -> Linear(C)."""

    def __init__(self, config: XceptionModConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        self.mix = LearnedMix(geometry.states)
        self.down = Down(geometry.hidden, config.adapter)
        self.blocks = nn.Sequential(
            ConvNorm(Conv(1, 32, 3, stride=(2,), valid=True)),
            ConvNorm(Conv(32, 64, 5)),
            XceptionBlock(64, (128, 128), 5, lead=False),
            XceptionBlock(128, (256, 256), 5),
            XceptionBlock(256, (728, 728), 5),
            *_middle_blocks(3, 5),
        )
        self.project = glorot_linear(728 * ((config.adapter - 3) // 2 + 1), geometry.outputs)

    def forward(self, batch: StateBatch) -> Float[Tensor, "B T C"]:
        reduced = self.down(self.mix(batch.states))
        return unpack(self.in_parts(self._tokens, pack(reduced, batch.mask)[:, None]), batch.mask)

    def _tokens(self, x: Float[Tensor, "N 1 a"]) -> Float[Tensor, "N C"]:
        return self.project(self.run_blocks(x).flatten(1))


class _ClsXception(_XceptionHead):
    """The [CLS] channels through `blocks`, the mean over what is left of the line -> Linear(C)."""

    units = ("window",)
    cls_only = True
    beside = False
    """Whether channel -1 goes to the output layer too."""

    def forward(self, batch: StateBatch) -> Float[Tensor, "B C"]:
        picture = channels(batch)
        x = picture.transpose(0, 1)
        x = F.pad(x, (0, max(0, 9 - x.shape[-1])))  # the stem takes no padding and needs 9 numbers
        x = self.run_blocks(x).mean(-1)
        return self.project(torch.cat([x, picture[-1].to(x.dtype)], -1) if self.beside else x)


def _stem(inputs: int, first: int, second: int) -> list[nn.Module]:
    return [
        ConvNorm(Conv(inputs, first, 3, stride=(3,), valid=True)),
        ConvNorm(Conv(first, second, 3, valid=True)),
    ]


@dataclass(frozen=True)
class XceptionAbbrConfig(HeadConfig):
    cls: bool = False
    """Give channel -1 (the last layer's [CLS]) to the output layer too."""


@register("xception_abbr.v1", XceptionAbbrConfig)
class XceptionAbbr(_ClsXception):
    """[CLS] of all layers as channels -> stem and one block of Xception -> mean [+ channel -1] -> Linear(C)."""

    def __init__(self, config: XceptionAbbrConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        self.beside = config.cls
        block = XceptionBlock(128, (256, 512), 3, lead=False, pool="avg")
        self.blocks = nn.Sequential(*_stem(num_channels(geometry), 64, 128), block)
        self.project = glorot_linear(512 + (geometry.hidden if config.cls else 0), geometry.outputs)


@dataclass(frozen=True)
class XceptionConfig(HeadConfig):
    pool: Literal["avg", "max"] = "avg"
    """Pool of the two blocks around the middle: avg as in the papers' last code, max as in their saved model."""


@register("xception.v1", XceptionConfig)
class Xception(_ClsXception):
    """[CLS] of all layers as channels -> Xception with kernels of 3 numbers -> mean -> Linear(C)."""

    def __init__(self, config: XceptionConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        self.blocks = nn.Sequential(
            *_stem(num_channels(geometry), 32, 64),
            XceptionBlock(64, (128, 128), 3, lead=False, pool="avg"),
            XceptionBlock(128, (256, 256), 3, pool="avg"),
            XceptionBlock(256, (728, 728), 3, pool=config.pool),
            *_middle_blocks(8, 3),
            XceptionBlock(728, (728, 1024), 3, pool=config.pool),
            nn.Sequential(Separable(1024, 1536, 3), BatchNorm(1536), nn.ReLU()),
            nn.Sequential(Separable(1536, 2048, 3), BatchNorm(2048), nn.ReLU()),
        )
        self.project = glorot_linear(2048, geometry.outputs)
