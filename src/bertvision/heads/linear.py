"""A linear layer on the last hidden state: the head of plain fine-tuning, and the control for all others.

Fitted on a frozen snapshot it shows what refitting the classifier alone gains; what a head that reads all
layers gains beyond it comes from the layers.
"""

from dataclasses import dataclass

from torch import Tensor

from bertvision.heads.base import Geometry, Head, glorot_linear, register
from bertvision.shapes import Bool, Float

__all__ = ["LastState", "LastStateConfig"]


@dataclass(frozen=True)
class LastStateConfig:
    pass


@register("last_state.v1", LastStateConfig)
class LastState(Head):
    """states[-1] -> Linear(H, C)."""

    def __init__(self, config: LastStateConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        self.project = glorot_linear(geometry.hidden, geometry.outputs)

    def forward(self, states: Float[Tensor, "L B T H"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T C"]:
        return self.project(states[-1])
