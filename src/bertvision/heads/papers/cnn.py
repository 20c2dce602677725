"""A small residual CNN over the numbers of every token; the hidden states are its channels.

        x ----- Conv(k), stride 2 -- BN -- + -- ReLU     four stages: k = 7, 3, 3, 3, filters 100, 100, 200, 200
          \\--- Conv(1), stride 2 -- BN ---/
        flatten (width * 200) -> dropout [+ last hidden state (H)] -> Linear(C)

1xN kernels see one token each, NxN kernels its neighbours too. A pooled input is one channel, which an adapter may make
narrower first. `dilated` puts dilation 2 in place of the stride of the last two stages. Only the sizes of these heads
are published. This family meets all of them (with shortcuts that have no batch norm in the dilated and in the NxN
variant), which says nothing about the original.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from bertvision.errors import ConfigError
from bertvision.heads.adapter import Down
from bertvision.heads.base import Geometry, StateBatch, register
from bertvision.heads.layers import Dropout, glorot_linear, pack, unpack
from bertvision.heads.papers.conv import BatchNorm, Conv, ConvHead, zero_pads
from bertvision.heads.readouts import make_mix
from bertvision.heads.spec import HeadConfig, at_least, rate
from bertvision.shapes import Bool, Float

STAGES = ((7, 100), (3, 100), (3, 200), (3, 200))
"""Kernel and filters."""


@dataclass(frozen=True)
class CNNConfig(HeadConfig):
    kernel: Literal["1xn", "nxn"] = "1xn"
    """1xn: along a token's numbers alone; nxn: along its neighbours too."""
    input: Literal["all", "learned", "average"] = "all"
    """Every hidden state as a channel, or one channel pooled with learned weights or as the mean."""
    adapter: int = at_least(0, 0)
    """Numbers a pooled token is reduced to first; 0 = none."""
    dilated: bool = False
    """Dilation 2 in place of stride 2 in the last two stages."""
    dropout: float = rate(0.2)
    """Part of the numbers before the output layer that is dropped while training."""
    skip: bool = True
    """Give the last hidden state to the output layer too."""

    def check(self) -> None:
        if self.adapter and self.input == "all":
            raise ConfigError(
                "adapter of cnn reduces one pooled state: set input=learned or input=average too"
            )


class Stage(nn.Module):
    """ReLU(BN(conv(x)) + shortcut(x))."""

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
        self.mix = None if config.input == "all" else make_mix(config.input, geometry.states)
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
        self.flat = channels * width
        self.project = glorot_linear(self.flat + (H if config.skip else 0), geometry.outputs)

    def forward(self, batch: StateBatch) -> Float[Tensor, "B T C"]:
        states, mask = batch.states, batch.mask
        x = states if self.mix is None else self.mix(states)[None]  # (channels, B, T, H)
        if self.down is not None:
            x = self.down(x)
        if self.config.kernel == "1xn":
            logits = self.in_parts(self._tokens, pack(x, mask).transpose(0, 1))
        else:
            windows = zero_pads(x.transpose(0, 1), mask)  # (B, channels, T, W)
            logits = self.in_parts(self._windows, windows, mask, tokens=mask.shape[1])
        if self.config.skip:
            logits = logits + F.linear(pack(states[-1], mask), self.project.weight[:, self.flat :])
        return unpack(logits, mask)

    def _tokens(self, x: Float[Tensor, "N channels W"]) -> Float[Tensor, "N C"]:
        for stage in self.stages:
            x = self.run_block(stage, x)
        return self._out(x.flatten(1))

    def _windows(self, x: Float[Tensor, "B channels T W"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "N C"]:
        for stage in self.stages:
            x = self.run_block(stage, x, mask)
        return self._out(pack(x.transpose(1, 2).flatten(2), mask))

    def _out(self, flat: Float[Tensor, "N flat"]) -> Float[Tensor, "N C"]:
        return F.linear(self.dropout(flat), self.project.weight[:, : self.flat], self.project.bias)
