"""Heads on the last hidden state alone: the controls for all token heads.

A linear layer is the head of plain fine-tuning. Fitted again on a frozen snapshot it shows what refitting the
classifier gains. The MLP (and, without its activation, a linear map of the same size) has as many parameters as an
adapter over all layers: what the adapter gains beyond it comes from the layers, not from its size.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from bertvision.heads.base import Geometry, Head, StateBatch, glorot_linear, register
from bertvision.heads.layers import Dropout, gelu
from bertvision.heads.options import HeadConfig, NoOptions, at_least, rate
from bertvision.shapes import Float

__all__ = ["LastState", "LastStateMLP", "LastStateMLPConfig"]


@register("last_state.v1", NoOptions)
class LastState(Head):
    """states[-1] -> Linear(H, C)."""

    stackable = True
    last_only = True

    def __init__(self, config: NoOptions, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        self.project = glorot_linear(geometry.hidden, geometry.outputs)

    def forward(self, batch: StateBatch) -> Float[Tensor, "B T C"]:
        return self.project(batch.states[-1])


@dataclass(frozen=True)
class LastStateMLPConfig(HeadConfig):
    match: int = at_least(1, 386)
    """Size of the shared adapter whose parameter count it comes nearest to."""
    width: int = at_least(0, 0)
    """Hidden numbers; 0 = from `match`."""
    activation: Literal["gelu", "none"] = "gelu"
    """none makes it a linear map of the same number of parameters."""
    dropout: float = rate()
    """Part of the hidden numbers that is dropped while training."""


@register("last_state_mlp.v1", LastStateMLPConfig)
class LastStateMLP(Head):
    """states[-1] -> Linear(H, h) -> GELU -> Linear(h, C), as many parameters as an adapter."""

    stackable = True
    last_only = True

    def __init__(self, config: LastStateMLPConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        L, H, C = geometry.states, geometry.hidden, geometry.outputs
        budget = config.match * (H + 1) + config.match * L * C  # of the adapter, without its output bias
        self.width = config.width or max(1, round(budget / (H + 1 + C)))
        self.down = glorot_linear(H, self.width)
        self.dropout = Dropout(config.dropout)
        self.project = glorot_linear(self.width, C)

    def forward(self, batch: StateBatch) -> Float[Tensor, "B T C"]:
        hidden = self.down(batch.states[-1])
        if self.config.activation == "gelu":
            hidden = gelu(hidden, "tanh")
        return self.project(self.dropout(hidden))
