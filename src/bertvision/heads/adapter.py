"""Adapters: a small projection of every layer, their outputs side by side.

        states_l (H) --W,b--> GELU --> (a)      for every layer l, one W and b for all layers or one each
        concat over layers (a * L) [+ last hidden state (H) with skip] --> Linear(C)

There is no up-projection, no residual and no norm. The flat vector is feature-major and layer-minor as in the paper;
the output layer is applied layer by layer, so that the wide vector is never written.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertvision.heads import fused
from bertvision.heads.base import Geometry, Head, StateBatch, glorot_linear, register
from bertvision.heads.layers import (
    Dropout,
    gelu,
    project_with_skip,
    split_columns,
    truncated_normal_,
    wide,
)
from bertvision.heads.options import DownConfig, Gelu, rate
from bertvision.heads.pooling import LearnedMix, Pooling, make_mix
from bertvision.shapes import Float


class Down(nn.Module):
    """GELU(W x + b), H to a numbers, with one W for all states or (`layers`) one for each."""

    def __init__(self, hidden: int, size: int, *, kind: Gelu, std: float, layers: int | None = None) -> None:
        super().__init__()
        self.size = size
        self.kind: Gelu = kind
        lead = () if layers is None else (layers,)
        self.weight = nn.Parameter(torch.empty(*lead, size, hidden))  # ([L,] a, H)
        self.bias = nn.Parameter(torch.zeros(*lead, size))
        truncated_normal_(self.weight, std)

    def raw(self, states: Float[Tensor, "*L B T H"]) -> Float[Tensor, "*L B T padded"]:
        """W x; on a GPU padded with zero columns to a multiple of 8."""
        weight = wide(self.weight.to(states.dtype), states)
        if weight.ndim == 2:
            return F.linear(states, weight)
        L, B, T, H = states.shape
        return torch.bmm(states.reshape(L, B * T, H), weight.mT).view(L, B, T, -1)

    def padded(self, states: Float[Tensor, "*L B T H"]) -> Float[Tensor, "*L B T padded"]:
        """The reduced states, padded like `raw`."""
        if self.weight.ndim == 2:
            weight = wide(self.weight, states)
            extra = weight.shape[0] - self.size
            bias = F.pad(self.bias, (0, extra)) if extra else self.bias
            return gelu(F.linear(states, weight, bias), self.kind)
        raw = self.raw(states)
        bias = F.pad(self.bias, (0, raw.shape[-1] - self.size)).to(raw.dtype)
        return gelu(raw + bias[:, None, None], self.kind)

    def forward(self, states: Float[Tensor, "*L B T H"]) -> Float[Tensor, "*L B T a"]:
        return self.padded(states)[..., : self.size]

    def project(
        self, states: Float[Tensor, "L B T H"], weight: Float[Tensor, "C flat"]
    ) -> Float[Tensor, "B T C"]:
        """The reduced states of all layers side by side, times `weight`: `project_layers` without the wide tensors."""
        if not fused.usable(states, weight.shape[0]):
            return project_layers(self.padded(states), weight, self.size)
        raw = self.raw(states)
        L, B, T, padded = raw.shape
        bias = F.pad(self.bias.view(-1, self.size), (0, padded - self.size))
        per_layer = F.pad(per_layer_weight(weight, self.size, L), (0, padded - self.size))
        return fused.adapter_tail(raw.view(L, B * T, padded), bias, per_layer, self.kind).view(B, T, -1)


def per_layer_weight(weight: Float[Tensor, "C flat"], size: int, layers: int) -> Float[Tensor, "L C a"]:
    """An output layer's weight, whose input is feature-major and layer-minor, cut by layers."""
    return weight.view(-1, size, layers).permute(2, 0, 1)


def project_layers(
    reduced: Float[Tensor, "L B T padded"], weight: Float[Tensor, "C flat"], size: int
) -> Float[Tensor, "B T C"]:
    """The flat vector of all layers (feature-major, layer-minor) times `weight`, layer by layer."""
    L, B, T, padded = reduced.shape
    per_layer = F.pad(per_layer_weight(weight, size, L), (0, padded - size))
    per_layer = wide(per_layer, reduced).to(reduced.dtype)
    logits = torch.bmm(reduced.reshape(L, B * T, padded), per_layer.mT).sum(0)
    return logits[:, : weight.shape[0]].view(B, T, -1)


@dataclass(frozen=True)
class AdapterConfig(DownConfig):
    unshared: bool = False
    """A projection of its own for every layer."""
    skip: bool = False
    """Give the last hidden state to the output layer too."""
    dropout: float = rate()
    """Part of the reduced numbers that is dropped while training."""


@register("adapter.v1", AdapterConfig)
class Adapter(Head):
    """GELU(W x + b) of every layer, shared W or one each -> concat [+ last state] -> Linear(C)."""

    stackable = True

    def __init__(self, config: Any, geometry: Geometry, *, outputs: int = 0) -> None:
        """`outputs` are the numbers a token, of a head that gives more than the task's logits."""
        super().__init__(config, geometry)
        L, H = geometry.states, geometry.hidden
        layers = L if isinstance(config, AdapterConfig) and config.unshared else None
        self.down = Down(H, config.size, kind=config.gelu, std=config.init_std, layers=layers)
        self.dropout = Dropout(config.dropout)
        self.project = glorot_linear(config.size * L + (H if config.skip else 0), outputs or geometry.outputs)

    def forward(self, batch: StateBatch) -> Float[Tensor, "B T C"]:
        own, skip = split_columns(self.project, self.config.size * self.geometry.states)
        if self.training and self.dropout.active:
            reduced = self.dropout(self.down.padded(batch.states))
            logits = project_layers(reduced, own, self.config.size)
        else:
            logits = self.down.project(batch.states, own)
        if self.config.skip:
            logits = logits + F.linear(batch.states[-1], skip)
        return logits + self.project.bias


@dataclass(frozen=True)
class PooledAdapterConfig(DownConfig):
    pooling: Pooling = "learned"
    """How the layers are pooled first."""
    skip: bool = True
    """Give the last hidden state to the output layer too; the published count needs it."""


@register("pooled_adapter.v1", PooledAdapterConfig)
class PooledAdapter(Head):
    """pooling over layers -> GELU(W x + b) [+ last state] -> Linear(C)."""

    stackable = True

    def __init__(self, config: PooledAdapterConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        self.mix = make_mix(config.pooling, geometry.states)
        self.down = Down(geometry.hidden, config.size, kind=config.gelu, std=config.init_std)
        self.project = glorot_linear(config.size + (geometry.hidden if config.skip else 0), geometry.outputs)

    def forward(self, batch: StateBatch) -> Float[Tensor, "B T C"]:
        reduced = self.down(self.mix(batch.states))
        return project_with_skip(self.project, reduced, batch.states[-1], skip=self.config.skip)


@dataclass(frozen=True)
class TwinAdapterConfig(DownConfig):
    pass


@register("twin_adapter.v1", TwinAdapterConfig)
class TwinAdapter(Head):
    """shared GELU(W x + b) of every layer, concat with GELU(W' x + b') of the pooled state -> Linear(C)."""

    stackable = True

    def __init__(self, config: TwinAdapterConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        H, size = geometry.hidden, config.size
        self.down = Down(H, size, kind=config.gelu, std=config.init_std)
        self.mix = LearnedMix(geometry.states)
        self.pooled_down = Down(H, size, kind=config.gelu, std=config.init_std)
        self.project = glorot_linear(size * (geometry.states + 1), geometry.outputs)

    def forward(self, batch: StateBatch) -> Float[Tensor, "B T C"]:
        own, pooled = split_columns(self.project, self.config.size * self.geometry.states)
        logits = self.down.project(batch.states, own)
        return logits + F.linear(self.pooled_down(self.mix(batch.states)), pooled, self.project.bias)
