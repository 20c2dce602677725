"""The controls: heads on the last hidden state alone, for tokens (last_state) and for windows (cls).

A linear layer is the head of plain fine-tuning. Fitted again on a frozen snapshot it shows what refitting the
classifier gains. The MLP (and, without its activation, a linear map of the same size) has as many parameters as an
adapter over all layers: what the adapter gains beyond it comes from the other layers, not from its size.
"""

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from bertvision.heads.base import Geometry, Head, StateBatch, glorot_linear, register
from bertvision.heads.cls import cls_vector
from bertvision.heads.layers import Dropout, gelu
from bertvision.heads.options import HeadConfig, NoOptions, at_least, rate
from bertvision.shapes import Float


@register("last_state.v1", NoOptions)
class LastState(Head):
    """states[-1] -> Linear(H, C)."""

    stackable = True
    last_only = True

    def __init__(self, config: NoOptions, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        self.project = glorot_linear(geometry.hidden, geometry.outputs)

    def forward(self, batch: StateBatch) -> Float[Tensor, "B *T C"]:
        return self.project(batch.states[-1])


@register("cls_linear.v1", NoOptions)
class ClsLinear(LastState):
    """pooled vector (last layer's [CLS] without a pooler) -> Linear(H, C)."""

    units = ("window",)
    cls_only = True

    def forward(self, batch: StateBatch) -> Float[Tensor, "B C"]:
        return self.project(cls_vector(batch))


class _MLP(Head):
    """vector -> Linear(H, h) -> GELU -> Linear(h, C), with nearly `parameters` weights beside the output bias."""

    stackable = True
    last_only = True

    def __init__(self, config: Any, geometry: Geometry, parameters: int) -> None:
        super().__init__(config, geometry)
        H, C = geometry.hidden, geometry.outputs
        self.width = config.width or max(1, round(parameters / (H + 1 + C)))
        self.down = glorot_linear(H, self.width)
        self.dropout = Dropout(config.dropout)
        self.project = glorot_linear(self.width, C)

    def _logits(self, vector: Float[Tensor, "*B H"], *, linear: bool = False) -> Float[Tensor, "*B C"]:
        hidden = self.down(vector)
        return self.project(self.dropout(hidden if linear else gelu(hidden, "tanh")))


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
class LastStateMLP(_MLP):
    """states[-1] -> Linear(H, h) -> GELU -> Linear(h, C), as many parameters as an adapter."""

    def __init__(self, config: LastStateMLPConfig, geometry: Geometry) -> None:
        L, H, C = geometry.states, geometry.hidden, geometry.outputs
        super().__init__(config, geometry, config.match * (H + 1) + config.match * L * C)

    def forward(self, batch: StateBatch) -> Float[Tensor, "B T C"]:
        return self._logits(batch.states[-1], linear=self.config.activation == "none")


@dataclass(frozen=True)
class ClsMLPConfig(HeadConfig):
    match: int = at_least(1, 386)
    """Size of the adapter_pooler whose parameter count it comes nearest to."""
    width: int = at_least(0, 0)
    """Hidden numbers; 0 = from `match`."""
    dropout: float = rate()
    """Part of the hidden numbers that is dropped while training."""


@register("cls_mlp.v1", ClsMLPConfig)
class ClsMLP(_MLP):
    """last layer's [CLS] -> Linear(H, h) -> GELU -> Linear(h, C), as many parameters as adapter_pooler."""

    units = ("window",)
    cls_only = True

    def __init__(self, config: ClsMLPConfig, geometry: Geometry) -> None:
        H, C, match = geometry.hidden, geometry.outputs, config.match
        mix = geometry.states + geometry.pooled + 1
        super().__init__(config, geometry, mix + match * (H + 1) + (match + H) * C)

    def forward(self, batch: StateBatch) -> Float[Tensor, "B C"]:
        return self._logits(batch.first[-1])
