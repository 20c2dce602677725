"""Pooling over layers: one weighted sum of the hidden states, then a linear layer.

Learned pooling (Tenney's scalar mix): out = gamma * sum_l softmax(w)_l X_l, L + 1 parameters.
Average pooling: the mean over layers, no parameters of its own.

Both mix the projected states instead of projecting the mixed ones. It is the same sum, because both steps are
linear, and it reads the states once instead of writing a mixed copy of them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bertvision.heads.base import Geometry, Head, glorot_linear, register
from bertvision.shapes import Bool, Float

__all__ = ["AveragePooling", "LearnedPooling", "PoolingConfig"]


@dataclass(frozen=True)
class PoolingConfig:
    pass


def mix_projected(
    states: Float[Tensor, "L B T H"], weights: Float[Tensor, " L"], project: nn.Linear
) -> Float[Tensor, "B T C"]:
    """project(sum_l weights_l states_l)."""
    projected = torch.nn.functional.linear(states, project.weight)  # (L, B, T, C)
    return torch.einsum("l,lbtc->btc", weights.to(projected.dtype), projected) + project.bias


@register("learned_pooling.v1", PoolingConfig)
class LearnedPooling(Head):
    """gamma * softmax(w) over layers -> Linear(H, C)."""

    def __init__(self, config: PoolingConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        self.mix = nn.Parameter(torch.empty(geometry.states).normal_(std=0.05))
        self.gamma = nn.Parameter(torch.ones(1))
        self.project = glorot_linear(geometry.hidden, geometry.outputs)

    def forward(self, states: Float[Tensor, "L B T H"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T C"]:
        return mix_projected(states, self.gamma * self.mix.softmax(0), self.project)

    def layer_weights(self) -> list[float]:
        return self.mix.detach().softmax(0).tolist()


@register("average_pooling.v1", PoolingConfig)
class AveragePooling(Head):
    """mean over layers -> Linear(H, C)."""

    def __init__(self, config: PoolingConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        self.project = glorot_linear(geometry.hidden, geometry.outputs)

    def forward(self, states: Float[Tensor, "L B T H"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T C"]:
        count = self.geometry.states
        return mix_projected(states, torch.full((count,), 1 / count, device=states.device), self.project)
