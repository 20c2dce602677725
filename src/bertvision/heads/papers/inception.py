"""GoogLeNet over the picture (tokens x reduced numbers) of a window, one axis of it made shorter.

        pooled states -> adapter (a) -> picture (T, a), 1 channel
        Conv3/512 s2 - MaxPool3 s2 - Conv1/256 - Conv3/128 - MaxPool3 s2
        3a 3b - MaxPool3 s3 - 4a 4b 4c 4d 4e - MaxPool3 s2 - 5a 5b -> Linear(C) of every token

        module:  [ Conv1 | Conv1 - Conv3 | Conv1 - Conv5 | MaxPool3 - Conv1 ]  side by side, ReLU after each

`axis` says which axis the strides shorten. With tokens, the published failure, one position is left for every 48
tokens: position i is centred on token 48 i, and a token's logits lie on the line between its two neighbours, never
beyond its window's last position. The output layer is applied before this interpolation: both are linear, and its
results are far smaller.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from bertvision.heads.adapter import Down
from bertvision.heads.base import Geometry, StateBatch, register
from bertvision.heads.layers import Dropout, glorot_linear
from bertvision.heads.papers.conv import Conv, ConvHead, max_pool, zero_pads
from bertvision.heads.readouts import LearnedMix
from bertvision.heads.spec import HeadConfig, at_least, rate
from bertvision.shapes import Bool, Float

Stride = tuple[int, int]
"""Along tokens, along features."""

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
STRIDES = (2, 2, 2, 3, 2)
"""Every stride on the way, the first three in the stem."""


@dataclass(frozen=True)
class InceptionConfig(HeadConfig):
    adapter: int = at_least(1, 386)
    """Numbers the pooled state is reduced to."""
    axis: Literal["features", "tokens"] = "features"
    """Which axis the strides shorten; tokens is the published variant that does not learn."""
    dropout: float = rate(0.2)
    """Part of the numbers after modules 4a and 4d that is dropped while training."""


def _conv(inputs: int, outputs: int, kernel: int, stride: Stride = (1, 1)) -> Conv:
    return Conv(inputs, outputs, kernel, stride=stride, bias=0.2)


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
    """Conv3/512 s2 -> MaxPool3 s2 -> Conv1/256 -> Conv3/128 -> MaxPool3 s2."""

    def __init__(self, stride: Stride) -> None:
        super().__init__()
        self.first = _conv(1, 512, 3, stride)
        self.reduce = _conv(512, 256, 1)
        self.second = _conv(256, 128, 3)
        self.pool = Pool(stride)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Float[Tensor, "B C S V"], Bool[Tensor, "B S"]]:
        x = self.first(zero_pads(x, mask)).relu()
        x, mask = self.pool(x, mask[:, :: self.first.stride[0]])
        x = self.reduce(x).relu()
        return self.pool(self.second(zero_pads(x, mask)).relu(), mask)


class Module(nn.Module):
    """Four branches side by side."""

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
        branches = (
            self.one(x),
            self.three(zero_pads(self.reduce3(x).relu(), mask)),
            self.five(zero_pads(self.reduce5(x).relu(), mask)),
            self.pooled(self.pool(x, mask)[0]),
        )
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
        self.mix = LearnedMix(geometry.states)
        self.down = Down(geometry.hidden, config.adapter)
        self.blocks = nn.ModuleDict({"stem": Stem(self._stride(2))})
        channels = 128
        for name, filters in MODULES.items():
            module = Module(channels, filters, config.dropout if name in DROPOUT_AFTER else 0.0)
            self.blocks[name], channels = module, module.outputs
            if name in POOL_AFTER:
                self.blocks[f"pool_{name}"] = Pool(self._stride(POOL_AFTER[name]))
        width, self.step = config.adapter, 1
        for stride in STRIDES:
            along_tokens, along_features = self._stride(stride)
            width, self.step = -(-width // along_features), self.step * along_tokens
        self.project = glorot_linear(channels * width, geometry.outputs)

    def _stride(self, stride: int) -> Stride:
        return (1, stride) if self.config.axis == "features" else (stride, 1)

    def forward(self, batch: StateBatch) -> Float[Tensor, "B T C"]:
        picture = self.down(self.mix(batch.states))[:, None]
        return self.in_parts(self._windows, picture, batch.mask, tokens=batch.mask.shape[1])

    def _windows(self, x: Float[Tensor, "B 1 T a"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T C"]:
        tokens = mask.shape[1]
        for block in self.blocks.values():
            x, mask = self.run_block(block, x, mask)
        logits = self.project(x.transpose(1, 2).flatten(2))  # (B, S, C)
        return logits if self.step == 1 else interpolate(logits, mask, tokens, self.step)
