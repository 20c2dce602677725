"""The shared adapter: one small projection for all layers, their outputs side by side.

        states_l (H) --W,b--> GELU --> (a)      for every layer l, the same W and b
        concat over layers (a * L) [+ last hidden state (H) with skip] --> Linear(C)

There is no up-projection, no residual and no norm. The flat vector is feature-major and layer-minor as in the
paper; the last layer is applied layer by layer, so the wide vector is never written.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertvision.errors import ConfigError
from bertvision.heads.base import Geometry, Head, glorot_linear, register
from bertvision.shapes import Bool, Float

__all__ = ["Adapter", "AdapterConfig"]


@dataclass(frozen=True)
class AdapterConfig:
    size: int = 386
    """a: numbers each layer is reduced to."""
    skip: bool = False
    """Give the last hidden state to the output layer too."""
    gelu: Literal["tanh", "none"] = "tanh"
    """The approximation of GELU: tanh as in the papers' TensorFlow code, none for the exact one."""
    init_std: float = 1e-3
    """Spread of the initial weights."""

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"an adapter's size must be at least 1, not {self.size}")
        if not 0 < self.init_std < 1:
            raise ConfigError(f"an adapter's init_std must lie between 0 and 1, not {self.init_std}")


@register("adapter.v1", AdapterConfig)
class Adapter(Head):
    """GELU(W x + b) with one W for all layers -> concat [+ last state] -> Linear(C)."""

    def __init__(self, config: AdapterConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        self.down = nn.Linear(geometry.hidden, config.size)
        # Keras' truncated normal cuts at two standard deviations.
        std = config.init_std
        nn.init.trunc_normal_(self.down.weight, std=std, a=-2 * std, b=2 * std)
        nn.init.zeros_(self.down.bias)
        width = config.size * geometry.states + (geometry.hidden if config.skip else 0)
        self.project = glorot_linear(width, geometry.outputs)

    def forward(self, states: Float[Tensor, "L B T H"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T C"]:
        L, B, T, _ = states.shape
        size, C = self.config.size, self.geometry.outputs
        reduced = F.gelu(self.down(states), approximate=self.config.gelu)  # (L, B, T, a)
        flat, skip = self.project.weight.split([size * L, self.project.in_features - size * L], dim=1)
        per_layer = flat.view(C, size, L).permute(2, 1, 0)  # (L, a, C)
        logits = torch.bmm(reduced.view(L, B * T, size), per_layer.to(reduced.dtype)).sum(0).view(B, T, C)
        if self.config.skip:
            logits = logits + F.linear(states[-1], skip)
        return logits + self.project.bias
