"""Adapters: a small projection of layers, GELU(W x + b), H to a numbers, and a linear layer on what it gives.

There is no up-projection, no residual and no norm. The flat vector is feature-major and layer-minor as in the paper;
the output layer is applied layer by layer, so that the wide vector is never written.

biaffine:  score(i, j) = s_i + e_j + u_i . v_j / sqrt(r),  i <= j, where s, e (1) and u, v (r) are outputs of a token.
With start and end chosen independently, a window with two likely answers gets spans from one to the other. Here one
softmax over all pairs i <= j is trained, and u_i . v_j says whether j ends what i begins (Dozat and Manning, "Deep
Biaffine Attention for Neural Dependency Parsing", 2017; Yu, Bohnet and Poesio, "Named Entity Recognition as Dependency
Parsing", 2020).
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertvision.errors import ConfigError
from bertvision.heads import fused
from bertvision.heads.base import Geometry, Head, StateBatch, register
from bertvision.heads.layers import (
    Dropout,
    gelu,
    glorot_linear,
    map_layers,
    project_with_skip,
    split_columns,
    truncated_normal_,
    wide,
)
from bertvision.heads.readouts import Mix, Pooling, channels, num_channels
from bertvision.heads.spec import Gelu, HeadConfig, at_least, rate
from bertvision.shapes import Float


class Down(nn.Module):
    """GELU(W x + b), H to a numbers, with one W for all states or (`layers`) one for each."""

    def __init__(self, hidden: int, size: int, kind: Gelu = "tanh", *, layers: int | None = None) -> None:
        super().__init__()
        self.size = size
        self.kind: Gelu = kind
        lead = (layers,) if layers else ()
        self.weight = nn.Parameter(torch.empty(*lead, size, hidden))  # ([L,] a, H)
        self.bias = nn.Parameter(torch.zeros(*lead, size))
        truncated_normal_(self.weight, 1e-3)

    def raw(self, states: Float[Tensor, "*L B T H"]) -> Float[Tensor, "*L B T padded"]:
        """W x; on a GPU padded with zero columns to a multiple of 8."""
        return map_layers(states, wide(self.weight.to(states.dtype), states))

    def padded(self, states: Float[Tensor, "*L B T H"]) -> Float[Tensor, "*L B T padded"]:
        if self.weight.ndim == 2:
            weight = wide(self.weight, states)
            bias = F.pad(self.bias, (0, weight.shape[0] - self.size))
            return gelu(F.linear(states, weight, bias), self.kind)
        raw = self.raw(states)
        bias = F.pad(self.bias, (0, raw.shape[-1] - self.size)).to(raw.dtype)
        return gelu(raw + bias[:, None, None], self.kind)

    def forward(self, states: Float[Tensor, "*L B T H"]) -> Float[Tensor, "*L B T a"]:
        return self.padded(states)[..., : self.size]

    def project(
        self, states: Float[Tensor, "L B T H"], weight: Float[Tensor, "C flat"]
    ) -> Float[Tensor, "B T C"]:
        """`project_layers` of the reduced states, on a GPU without writing them."""
        if not fused.usable(states, weight.shape[0]):
            return project_layers(self.padded(states), weight, self.size)
        raw = self.raw(states)
        L, B, T, padded = raw.shape
        bias = F.pad(self.bias.view(-1, self.size), (0, padded - self.size))
        per_layer = per_layer_weight(weight, self.size, padded)
        return fused.adapter_tail(raw.view(L, B * T, padded), bias, per_layer, self.kind).view(B, T, -1)


def per_layer_weight(weight: Float[Tensor, "C flat"], size: int, padded: int) -> Float[Tensor, "L C padded"]:
    """An output layer's weight (feature-major, layer-minor) cut by layers; zeros behind."""
    return F.pad(weight.unflatten(1, (size, -1)).permute(2, 0, 1), (0, padded - size))


def project_layers(
    reduced: Float[Tensor, "L B T padded"], weight: Float[Tensor, "C flat"], size: int
) -> Float[Tensor, "B T C"]:
    """The flat vector of all layers (feature-major, layer-minor) times `weight`, layer by layer."""
    per_layer = wide(per_layer_weight(weight, size, reduced.shape[-1]), reduced).to(reduced.dtype)
    return map_layers(reduced, per_layer).sum(0)[..., : weight.shape[0]]


# ---- tokens


@dataclass(frozen=True)
class DownConfig(HeadConfig):
    size: int = at_least(1, 386)  # a: numbers a state is reduced to
    gelu: Gelu = "tanh"


@dataclass(frozen=True)
class AdapterConfig(DownConfig):
    unshared: bool = False  # a projection of its own for every layer
    skip: bool = False  # give the last hidden state to the output layer too
    dropout: float = rate()  # of the reduced numbers


@register("adapter.v1", AdapterConfig)
class Adapter(Head):
    """GELU(W x + b) of every layer, shared W or one each -> concat [+ last state] -> Linear(C)."""

    stackable = True

    def __init__(self, config: Any, geometry: Geometry, *, outputs: int = 0) -> None:
        """`outputs`: numbers a token, where they are more than the task's logits."""
        super().__init__(config, geometry)
        L, H = geometry.states, geometry.hidden
        layers = L if getattr(config, "unshared", False) else None
        self.down = Down(H, config.size, config.gelu, layers=layers)
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
class BiaffineConfig(DownConfig):
    size: int = at_least(1, 64)
    rank: int = at_least(1, 16)  # r: numbers a start and an end are compared in
    skip: bool = True  # give the last hidden state to the output layer too
    dropout: float = rate()  # of the reduced numbers


@register("biaffine.v1", BiaffineConfig)
class Biaffine(Adapter):
    """adapter over all layers [+ last state] -> start, end and their factors -> a score for every pair."""

    def __init__(self, config: BiaffineConfig, geometry: Geometry) -> None:
        if geometry.outputs != 2:
            raise ConfigError(f"biaffine scores a start and an end: it has 2 outputs, not {geometry.outputs}")
        super().__init__(config, geometry, outputs=2 + 2 * config.rank)  # s, e, u and v of every token
        with torch.no_grad():  # an independent scorer of starts and ends at first
            self.project.weight[-config.rank :] = 0


@dataclass(frozen=True)
class AdapterPoolerConfig(DownConfig):
    pooling: Pooling = "learned"  # how the layers (of a text: the channels) are pooled first


@dataclass(frozen=True)
class PooledAdapterConfig(AdapterPoolerConfig):
    skip: bool = True  # give the last hidden state to the output layer too; the published count needs it


@register("pooled_adapter.v1", PooledAdapterConfig)
class PooledAdapter(Head):
    """pooling over layers -> GELU(W x + b) [+ last state] -> Linear(C)."""

    stackable = True

    def __init__(self, config: Any, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        states = num_channels(geometry) if geometry.unit == "window" else geometry.states
        self.mix = Mix(states, config.pooling)
        self.down = Down(geometry.hidden, config.size, config.gelu)
        beside = geometry.hidden if getattr(config, "skip", True) else 0
        self.project = glorot_linear(config.size + beside, geometry.outputs)

    def forward(self, batch: StateBatch) -> Float[Tensor, "B T C"]:
        return project_with_skip(self.project, self.down(self.mix(batch.states)), batch.states[-1])


@register("twin_adapter.v1", DownConfig)
class TwinAdapter(Head):
    """shared GELU(W x + b) of every layer, concat with GELU(W' x + b') of the pooled state -> Linear(C)."""

    stackable = True

    def __init__(self, config: DownConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        self.down = Down(geometry.hidden, config.size, config.gelu)
        self.mix = Mix(geometry.states)
        self.pooled_down = Down(geometry.hidden, config.size, config.gelu)
        self.project = glorot_linear(config.size * (geometry.states + 1), geometry.outputs)

    def forward(self, batch: StateBatch) -> Float[Tensor, "B T C"]:
        own, pooled = split_columns(self.project, self.config.size * self.geometry.states)
        logits = self.down.project(batch.states, own)
        return logits + F.linear(self.pooled_down(self.mix(batch.states)), pooled, self.project.bias)


# ---- windows


@register("adapter_pooler.v1", AdapterPoolerConfig)
class AdapterPooler(PooledAdapter):
    """pooling over the [CLS] channels -> GELU(W x + b), concat with channel -1 -> Linear(C)."""

    units = ("window",)
    cls_only = True

    def forward(self, batch: StateBatch) -> Float[Tensor, "B C"]:
        read = channels(batch)
        return self.project(torch.cat([self.down(self.mix(read)), read[-1]], dim=-1))


@dataclass(frozen=True)
class ApGlueConfig(DownConfig):
    size: int = at_least(1, 8)
    gelu: Gelu = "erf"  # as in the papers' torch code
    tokens: int = at_least(1, 250)  # of the longest window it can read


@register("ap_glue.v1", ApGlueConfig)
class ApGlue(Head):
    """shared GELU(W x + b) of every token and layer -> concat -> Linear(tokens * a * L, C).

    The GLUE head of the papers' torch code. The output layer has weights for each of `tokens` places (token-major,
    layer-minor). A shorter window uses the first of them, and reduced states of pads are zero.
    """

    units = ("window",)
    stackable = True

    def __init__(self, config: ApGlueConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        self.down = Down(geometry.hidden, config.size, config.gelu)
        self.project = glorot_linear(config.tokens * config.size * geometry.states, geometry.outputs)

    def forward(self, batch: StateBatch) -> Float[Tensor, "B C"]:
        states, mask = batch.states, batch.mask
        size, most = self.config.size, self.config.tokens
        if states.is_meta:  # where heads are counted, over windows of any length
            states, mask = states[:, :, :most], mask[:, :most]
        L, B, T, _ = states.shape
        if most < T:
            also = f"give the head tokens={T} or cut the windows shorter"
            raise ConfigError(f"ap_glue was built for at most {most} tokens and cannot read {T}: {also}")
        reduced = self.down.padded(states)  # (L, B, T, a), on a GPU with zero columns behind
        padded = reduced.shape[-1]
        reduced = reduced.masked_fill(~mask[None, :, :, None], 0)
        own = self.project.weight.view(-1, most, size, L)[:, :T].permute(3, 1, 2, 0)  # (L, T, a, C)
        own = F.pad(own, (0, 0, 0, padded - size)).to(reduced.dtype)
        flat = torch.bmm(reduced.reshape(L, B, T * padded), own.reshape(L, T * padded, -1))
        return flat.sum(0) + self.project.bias
