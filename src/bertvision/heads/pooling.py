"""Pooling over layers: one weighted sum of the hidden states, then a linear layer.

Learned pooling (Tenney's scalar mix): out = gamma * sum_l softmax(w)_l X_l, L + 1 parameters.
Average pooling: the mean over all layers, or over the first and the last (Ma et al., "Universal Text
Representation from BERT: An Empirical Study", 2019), no parameters of its own.

The heads mix the projected states instead of projecting the mixed ones. Both steps are linear, so the sum is the same,
and the states are read once instead of written as a mixed copy.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertvision.heads import fused
from bertvision.heads.base import Geometry, Head, StateBatch, glorot_linear, register
from bertvision.heads.layers import wide
from bertvision.heads.options import HeadConfig, NoOptions
from bertvision.shapes import Float

Pooling = Literal["learned", "average"]


def mixed(states: Float[Tensor, "L *batch H"], weights: Float[Tensor, " L"]) -> Float[Tensor, "*batch H"]:
    """sum_l weights_l states_l."""
    if fused.usable(states):
        return fused.mix(states, weights)
    return (weights.to(states.dtype) @ states.flatten(1)).view(states.shape[1:])


class LearnedMix(nn.Module):
    """gamma * softmax(w): one weight a layer."""

    def __init__(self, states: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.empty(states).normal_(std=0.05))
        self.gamma = nn.Parameter(torch.ones(1))

    def weights(self) -> Float[Tensor, " L"]:
        return self.gamma * self.w.softmax(0)

    def shares(self) -> list[float]:
        """The learned weight of each layer, without the common scale."""
        return self.w.detach().softmax(0).tolist()

    def forward(self, states: Float[Tensor, "L *batch H"]) -> Float[Tensor, "*batch H"]:
        return mixed(states, self.weights())


class AverageMix(nn.Module):
    """The same weight for every layer, or for the first and the last alone."""

    share: Tensor

    def __init__(self, states: int, of: Literal["all", "first-last"] = "all") -> None:
        super().__init__()
        share = torch.full((states,), 1 / states) if of == "all" else torch.zeros(states)
        if of == "first-last":
            share[0], share[-1] = 0.5, 0.5
        self.register_buffer("share", share, persistent=False)

    def weights(self) -> Float[Tensor, " L"]:
        return self.share

    def forward(self, states: Float[Tensor, "L *batch H"]) -> Float[Tensor, "*batch H"]:
        return mixed(states, self.share)


def make_mix(pooling: Pooling, states: int) -> LearnedMix | AverageMix:
    return LearnedMix(states) if pooling == "learned" else AverageMix(states)


def mix_projected(
    states: Float[Tensor, "L B T H"], weights: Float[Tensor, " L"], project: nn.Linear
) -> Float[Tensor, "B T C"]:
    """project(sum_l weights_l states_l)."""
    projected = F.linear(states, wide(project.weight, states))  # (L, B, T, C)
    mixed = torch.einsum("l,lbtc->btc", weights.to(projected.dtype), projected)
    return mixed[..., : project.out_features] + project.bias


@register("learned_pooling.v1", NoOptions)
class LearnedPooling(Head):
    """gamma * softmax(w) over layers -> Linear(H, C)."""

    stackable = True

    def __init__(self, config: NoOptions, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        self.mix = LearnedMix(geometry.states)
        self.project = glorot_linear(geometry.hidden, geometry.outputs)

    def forward(self, batch: StateBatch) -> Float[Tensor, "B T C"]:
        return mix_projected(batch.states, self.mix.weights(), self.project)


@dataclass(frozen=True)
class AveragePoolingConfig(HeadConfig):
    of: Literal["all", "first-last"] = "all"
    """The layers whose mean is taken."""


@register("average_pooling.v1", AveragePoolingConfig)
class AveragePooling(Head):
    """mean over layers -> Linear(H, C)."""

    stackable = True

    def __init__(self, config: AveragePoolingConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        self.mix = AverageMix(geometry.states, config.of)
        self.project = glorot_linear(geometry.hidden, geometry.outputs)

    def forward(self, batch: StateBatch) -> Float[Tensor, "B T C"]:
        if self.config.of == "first-last":
            return self.project((batch.states[0] + batch.states[-1]) / 2)
        return mix_projected(batch.states, self.mix.weights(), self.project)
