"""CNNs over the numbers of every token, over the picture of a window, or over the [CLS] vectors of all layers.

cnn, for tokens: a small residual CNN over the numbers of every token; the hidden states are its channels.

        x ----- Conv(k), stride 2 -- BN -- + -- ReLU     four stages: k = 7, 3, 3, 3, filters 100, 100, 200, 200
          \\--- Conv(1), stride 2 -- BN ---/
        flatten (width * 200) -> dropout [+ last hidden state (H)] -> Linear(C)

1xN kernels see one token each, NxN kernels its neighbours too. A pooled input is one channel, which an adapter may make
narrower first. `dilated` puts dilation 2 in place of the stride of the last two stages. Only sizes are published, and
this family meets all of them (with shortcuts without a batch norm in the dilated and in the NxN variant).

inception, for tokens: GoogLeNet over the picture (tokens x reduced numbers) of a window, one axis of it made shorter.

        pooled states -> adapter (a) -> picture (T, a), 1 channel
        Conv3/512 s2 - MaxPool3 s2 - Conv1/256 - Conv3/128 - MaxPool3 s2
        3a 3b - MaxPool3 s3 - 4a 4b 4c 4d 4e - MaxPool3 s2 - 5a 5b -> Linear(C) of every token

        module:  [ Conv1 | Conv1 - Conv3 | Conv1 - Conv5 | MaxPool3 - Conv1 ]  side by side, ReLU after each

`axis` says which axis the strides shorten. With tokens, the published failure, one position is left for every 48
tokens: position i is centred on token 48 i, and a token's logits lie on the line between its two neighbours, never
beyond its window's last position. The output layer is applied before this interpolation: both are linear.

xception_mod, for tokens. Only its size is published; kernel 5 and three middle blocks meet it.

        pooled states -> adapter (a), 1 channel
        Conv3/32 s2 valid - BN - ReLU - Conv5/64 - BN - ReLU
        3 entry blocks (128, 256, 728):  2 x (ReLU - SepConv5 - BN)  + (Conv1 - BN) of the block's input
        3 middle blocks (728):           3 x (ReLU - SepConv5 - BN)  + the block's input
        flatten (width * 728) -> Linear(C)

xception_abbr and xception, for windows. The [CLS] vectors are a picture of one line, H wide, a channel for every layer.
Kernels are 3 wide; a block ends in a pool of 3 with stride 2, as does its shortcut. A first block's leading ReLU is the
stem's.

        xception_abbr:  Conv3/64 s3 valid - BN - ReLU - Conv3/128 valid - BN - ReLU
                        1 block (256, 512) - mean over the line [+ channel -1 (H)] -> Linear(C)
        xception:       the same stem with 32 and 64 filters - blocks (128, 128), (256, 256), (728, 728)
                        8 middle blocks - block (728, 1024) - 2 x (SepConv - BN - ReLU) (1536, 2048)
                        mean over the line -> Linear(C)
"""

import math
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from bertvision.errors import ConfigError
from bertvision.heads.adapter import Down
from bertvision.heads.base import Geometry, Head, StateBatch, register
from bertvision.heads.layers import (
    BatchNorm,
    Conv,
    Dropout,
    avg_pool,
    glorot_linear,
    max_pool,
    normed,
    pack,
    project_with_skip,
    recomputing,
    separable,
    unpack,
    zero_pads,
)  # fmt: skip
from bertvision.heads.readouts import Mix, channels, num_channels
from bertvision.heads.spec import HeadConfig, at_least, rate
from bertvision.shapes import Bool, Float


class ConvHead(Head):
    """A head that can keep only the inputs of its blocks and compute the rest again, to the last bit, backwards."""

    recompute: bool = False
    """Set while fitting when not even one window's activations fit into memory."""

    def run_block(self, block: nn.Module, *inputs: Any) -> Any:
        if not (self.recompute and torch.is_grad_enabled()):
            return block(*inputs)
        # Nothing in a head draws from a random stream, so no random state has to be restored.
        how: Any = {"use_reentrant": False, "preserve_rng_state": False}
        return checkpoint(block, *inputs, context_fn=lambda: (nullcontext(), recomputing()), **how)

    def run_blocks(self, blocks: nn.Module, x: Tensor, *mask: Tensor) -> Tensor:
        for block in blocks.children():
            x = self.run_block(block, x, *mask)
        return x


STAGES = ((7, 100), (3, 100), (3, 200), (3, 200))  # kernel and filters


@dataclass(frozen=True)
class CNNConfig(HeadConfig):
    kernel: Literal["1xn", "nxn"] = "1xn"  # along a token's numbers alone, or along its neighbours too
    input: Literal["all", "learned", "average"] = "all"  # a channel for every state, or one pooled channel
    adapter: int = at_least(0, 0)  # numbers a pooled token is reduced to first; 0 = none
    dilated: bool = False  # dilation 2 in place of stride 2 in the last two stages
    dropout: float = rate(0.2)  # before the output layer
    skip: bool = True  # give the last hidden state to the output layer too

    def check(self) -> None:
        if self.adapter and self.input == "all":
            raise ConfigError("adapter of cnn reduces a pooled state: set input=learned or input=average too")


class Stage(nn.Module):
    def __init__(
        self, inputs: int, outputs: int, kernel: int, *, stride: tuple[int, ...], dilation: int, norm: bool
    ) -> None:
        super().__init__()
        self.conv = Conv(inputs, outputs, kernel, stride=stride, dilation=dilation)
        self.norm = BatchNorm(outputs)
        self.short = Conv(inputs, outputs, 1, stride=stride)
        self.short_norm = BatchNorm(outputs) if norm else None

    def forward(
        self, x: Float[Tensor, "N C ... W"], mask: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "N D ... V"]:
        # No bias anywhere and zeros from the norm: pads that are zero stay zero.
        short = self.short(x)
        if self.short_norm is not None:
            short = self.short_norm(short, mask)
        return (self.norm(self.conv(x), mask) + short).relu()


@register("cnn.v1", CNNConfig)
class CNN(ConvHead):
    """4 residual conv stages over a token's numbers, layers as channels [+ last state] -> Linear(C)."""

    def __init__(self, config: CNNConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        H, size = geometry.hidden, config.adapter
        self.mix = None if config.input == "all" else Mix(geometry.states, config.input)
        self.down = Down(H, size) if size else None
        channels, width = 1 if self.mix else geometry.states, size or H
        self.stages = nn.ModuleList()
        for i, (kernel, filters) in enumerate(STAGES):
            stride, dilation = (1, 2) if config.dilated and i >= 2 else (2, 1)
            strides = (stride,) if config.kernel == "1xn" else (1, stride)
            norm = config.kernel == "1xn" and not config.dilated
            stage = Stage(channels, filters, kernel, stride=strides, dilation=dilation, norm=norm)
            self.stages.append(stage)
            channels, width = filters, -(-width // stride)
        self.dropout = Dropout(config.dropout)
        self.project = glorot_linear(channels * width + (H if config.skip else 0), geometry.outputs)

    def forward(self, batch: StateBatch) -> Float[Tensor, "B T C"]:
        states, mask = batch.states, batch.mask
        x = states if self.mix is None else self.mix(states)[None]  # (channels, B, T, W)
        if self.down is not None:
            x = self.down(x)
        if self.config.kernel == "1xn":  # (N, channels, W)
            flat = self.run_blocks(self.stages, pack(x, mask).transpose(0, 1)).flatten(1)
        else:  # (B, channels, T, W)
            x = self.run_blocks(self.stages, zero_pads(x.transpose(0, 1), mask), mask)
            flat = pack(x.transpose(1, 2).flatten(2), mask)
        last = pack(states[-1], mask)
        return unpack(project_with_skip(self.project, self.dropout(flat), last), mask)


# ---- inception

Stride = tuple[int, int]  # along tokens, along features

MODULES: dict[str, tuple[int, ...]] = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
"""Filters of a module: 1x1, 3x3 reduced, 3x3, 5x5 reduced, 5x5, after the pool."""
POOL_AFTER = {"3b": 3, "4e": 2}
DROPOUT_AFTER = ("4a", "4d")


@dataclass(frozen=True)
class InceptionConfig(HeadConfig):
    adapter: int = at_least(1, 386)  # numbers the pooled state is reduced to
    axis: Literal["features", "tokens"] = "features"  # what the strides shorten; tokens does not learn
    dropout: float = rate(0.2)  # after modules 4a and 4d


_conv = partial(Conv, stride=(1, 1), bias=0.2)


class Pool(nn.Module):
    """The largest of 3 x 3 neighbours, pads left out."""

    def __init__(self, stride: Stride = (1, 1)) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Float[Tensor, "B C S V"], Bool[Tensor, "B S"]]:
        x = max_pool(x.masked_fill(~mask[:, None, :, None], -torch.inf), 3, self.stride)
        mask = mask[:, :: self.stride[0]]
        # A pad among pads is minus infinity now, and 0 * infinity in a gradient would be no number.
        return zero_pads(x, mask), mask


class Stem(nn.Module):
    def __init__(self, stride: Stride) -> None:
        super().__init__()
        self.first = _conv(1, 512, 3, stride=stride)
        self.reduce = _conv(512, 256, 1)
        self.second = _conv(256, 128, 3)
        self.pool = Pool(stride)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Float[Tensor, "B C S V"], Bool[Tensor, "B S"]]:
        x = self.first(zero_pads(x, mask)).relu()
        x, mask = self.pool(x, mask[:, :: self.first.stride[0]])
        x = self.reduce(x).relu()
        return self.pool(self.second(zero_pads(x, mask)).relu(), mask)


class Module(nn.Module):
    def __init__(self, inputs: int, filters: tuple[int, ...], dropout: float = 0.0) -> None:
        super().__init__()
        one, reduce3, three, reduce5, five, pooled = filters
        self.outputs = one + three + five + pooled
        self.one = _conv(inputs, one, 1)
        self.reduce3, self.three = _conv(inputs, reduce3, 1), _conv(reduce3, three, 3)
        self.reduce5, self.five = _conv(inputs, reduce5, 1), _conv(reduce5, five, 5)
        self.pool, self.pooled = Pool(), _conv(inputs, pooled, 1)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Float[Tensor, "B C S V"], Bool[Tensor, "B S"]]:
        one = self.one(x)  # in this order: it decides how gradients of x are added up
        three = self.three(zero_pads(self.reduce3(x).relu(), mask))
        five = self.five(zero_pads(self.reduce5(x).relu(), mask))
        branches = (one, three, five, self.pooled(self.pool(x, mask)[0]))
        return self.dropout(torch.cat(branches, 1).relu()), mask


def interpolate(
    x: Float[Tensor, "B S C"], mask: Bool[Tensor, "B S"], tokens: int, step: int
) -> Float[Tensor, "B T C"]:
    """Values of all tokens from those of every `step`-th one, on straight lines; constant behind the last."""
    place = torch.arange(tokens, device=x.device) / step  # (T,)
    last = (mask.sum(1, keepdim=True) - 1).clamp(min=0)  # (B, 1)
    left = torch.minimum(place.floor().long(), last)  # (B, T)
    right = torch.minimum(left + 1, last)
    share = (place - place.floor())[:, None].to(x.dtype)
    at = [index[..., None].expand(-1, -1, x.shape[-1]) for index in (left, right)]
    return x.gather(1, at[0]) * (1 - share) + x.gather(1, at[1]) * share


@register("inception.v1", InceptionConfig)
class Inception(ConvHead):
    """gamma * softmax(w) over layers -> adapter -> GoogLeNet over (tokens, features) -> Linear(C)."""

    def __init__(self, config: InceptionConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        self.mix = Mix(geometry.states)
        self.down = Down(geometry.hidden, config.adapter)
        self.blocks, channels = nn.ModuleDict({"stem": Stem(self._stride(2))}), 128
        for name, filters in MODULES.items():
            module = Module(channels, filters, config.dropout if name in DROPOUT_AFTER else 0.0)
            self.blocks[name], channels = module, module.outputs
            if name in POOL_AFTER:
                self.blocks[f"pool_{name}"] = Pool(self._stride(POOL_AFTER[name]))
        self.step, along_features = self._stride(8 * math.prod(POOL_AFTER.values()))  # 8: the stem's strides
        width = -(-config.adapter // along_features)
        self.project = glorot_linear(channels * width, geometry.outputs)

    def _stride(self, stride: int) -> Stride:
        return (1, stride) if self.config.axis == "features" else (stride, 1)

    def forward(self, batch: StateBatch) -> Float[Tensor, "B T C"]:
        x, mask = self.down(self.mix(batch.states))[:, None], batch.mask  # (B, 1, T, a)
        for block in self.blocks.values():
            x, mask = self.run_block(block, x, mask)
        logits = self.project(x.transpose(1, 2).flatten(2))  # (B, S, C)
        return logits if self.step == 1 else interpolate(logits, mask, batch.mask.shape[1], self.step)


# ---- xception


class XceptionBlock(nn.Module):
    """(ReLU - SepConv - BN) for each width [- pool 3, stride 2] + shortcut, a projection where the width changes."""

    def __init__(
        self, inputs: int, widths: tuple[int, ...], kernel: int, *, lead: bool = True, pool: str | None = None
    ) -> None:
        super().__init__()
        self.lead, self.pool = lead, pool
        self.convs, self.norms = nn.ModuleList(), nn.ModuleList()
        for before, after in zip((inputs, *widths), widths, strict=False):
            self.convs.append(separable(before, after, kernel))
            self.norms.append(BatchNorm(after))
        self.short = None
        if inputs != widths[-1]:
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
    return [XceptionBlock(728, (728,) * 3, kernel) for _ in range(number)]


@dataclass(frozen=True)
class XceptionModConfig(HeadConfig):
    adapter: int = at_least(3, 386)  # numbers the pooled state is reduced to; the first kernel needs three


@register("xception_mod.v1", XceptionModConfig)
class XceptionMod(ConvHead):
    """gamma * softmax(w) over layers -> adapter -> Xception's entry and middle over its numbers -> Linear(C)."""

    def __init__(self, config: XceptionModConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        self.mix = Mix(geometry.states)
        self.down = Down(geometry.hidden, config.adapter)
        self.blocks = nn.Sequential(
            normed(Conv(1, 32, 3, stride=(2,), valid=True)),
            normed(Conv(32, 64, 5)),
            XceptionBlock(64, (128, 128), 5, lead=False),
            XceptionBlock(128, (256, 256), 5),
            XceptionBlock(256, (728, 728), 5),
            *_middle_blocks(3, 5),
        )
        self.project = glorot_linear(728 * ((config.adapter - 3) // 2 + 1), geometry.outputs)

    def forward(self, batch: StateBatch) -> Float[Tensor, "B T C"]:
        x = pack(self.down(self.mix(batch.states)), batch.mask)[:, None]  # (N, 1, a)
        return unpack(self.project(self.run_blocks(self.blocks, x).flatten(1)), batch.mask)


class _ClsXception(ConvHead):
    """The [CLS] channels through `blocks`, the mean over what is left of the line -> Linear(C)."""

    units = ("window",)
    cls_only = True

    def __init__(self, config: Any, geometry: Geometry, width: int, *blocks: nn.Module) -> None:
        super().__init__(config, geometry)
        self.blocks = nn.Sequential(*blocks)
        self.project = glorot_linear(width, geometry.outputs)

    def forward(self, batch: StateBatch) -> Float[Tensor, "B C"]:
        picture = channels(batch)
        x = picture.transpose(0, 1)
        x = F.pad(x, (0, max(0, 9 - x.shape[-1])))  # the stem takes no padding and needs 9 numbers
        x = self.run_blocks(self.blocks, x).mean(-1)
        beside = getattr(self.config, "cls", False)
        return self.project(torch.cat([x, picture[-1].to(x.dtype)], -1) if beside else x)


def _stem(geometry: Geometry, first: int, second: int) -> list[nn.Module]:
    read = Conv(num_channels(geometry), first, 3, stride=(3,), valid=True)
    return [normed(read), normed(Conv(first, second, 3, valid=True))]


@dataclass(frozen=True)
class XceptionAbbrConfig(HeadConfig):
    cls: bool = False  # give channel -1 (the last layer's [CLS]) to the output layer too


@register("xception_abbr.v1", XceptionAbbrConfig)
class XceptionAbbr(_ClsXception):
    """[CLS] of all layers as channels -> stem and one block of Xception -> mean [+ channel -1] -> Linear(C)."""

    def __init__(self, config: XceptionAbbrConfig, geometry: Geometry) -> None:
        block = XceptionBlock(128, (256, 512), 3, lead=False, pool="avg")  # drawn before the stem
        width = 512 + (geometry.hidden if config.cls else 0)
        super().__init__(config, geometry, width, *_stem(geometry, 64, 128), block)


@dataclass(frozen=True)
class XceptionConfig(HeadConfig):
    pool: Literal["avg", "max"] = "avg"  # around the middle: as in the last code; max as in the saved model


@register("xception.v1", XceptionConfig)
class Xception(_ClsXception):
    """[CLS] of all layers as channels -> Xception with kernels of 3 numbers -> mean -> Linear(C)."""

    def __init__(self, config: XceptionConfig, geometry: Geometry) -> None:
        super().__init__(
            config,
            geometry,
            2048,
            *_stem(geometry, 32, 64),
            XceptionBlock(64, (128, 128), 3, lead=False, pool="avg"),
            XceptionBlock(128, (256, 256), 3, pool="avg"),
            XceptionBlock(256, (728, 728), 3, pool=config.pool),
            *_middle_blocks(8, 3),
            XceptionBlock(728, (728, 1024), 3, pool=config.pool),
            nn.Sequential(separable(1024, 1536, 3), BatchNorm(1536), nn.ReLU()),
            nn.Sequential(separable(1536, 2048, 3), BatchNorm(2048), nn.ReLU()),
        )
