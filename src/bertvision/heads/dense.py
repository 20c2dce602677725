"""Dense layers on one vector: controls as large as an adapter, and the study of minBERT.

    last_state_mlp   states[-1] --> Linear(h) --> GELU --> Linear(C)
    cls_mlp          the same of the last layer's [CLS]
    minbert          pooled vector, or two --> [Linear --> LayerNorm --> dropout --> ReLU] x blocks --> Linear(C)

The width h follows from an adapter over all layers: what that gains beyond an MLP of as many parameters comes from the
other layers, not from its size. `activation=none` is a linear map of the same size.
"""

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from bertvision.errors import ConfigError
from bertvision.heads.base import Geometry, Head, StateBatch, register
from bertvision.heads.layers import Dropout, gelu, glorot_linear
from bertvision.heads.readouts import cls_vector, num_channels
from bertvision.heads.spec import HeadConfig, at_least, rate
from bertvision.shapes import Float


@dataclass(frozen=True)
class ClsMLPConfig(HeadConfig):
    match: int = at_least(1, 386)
    """Size of the adapter whose parameter count it comes nearest to: adapter_pooler's, or the shared adapter's."""
    width: int = at_least(0, 0)
    """Hidden numbers; 0 = from `match`."""
    dropout: float = rate()
    """Part of the hidden numbers that is dropped while training."""


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

    def logits(self, vector: Float[Tensor, "*B H"], *, linear: bool = False) -> Float[Tensor, "*B C"]:
        hidden = self.down(vector)
        return self.project(self.dropout(hidden if linear else gelu(hidden, "tanh")))


@dataclass(frozen=True)
class LastStateMLPConfig(ClsMLPConfig):
    activation: Literal["gelu", "none"] = "gelu"
    """none makes it a linear map of the same number of parameters."""


@register("last_state_mlp.v1", LastStateMLPConfig)
class LastStateMLP(_MLP):
    """states[-1] -> Linear(H, h) -> GELU -> Linear(h, C), as many parameters as an adapter."""

    def __init__(self, config: LastStateMLPConfig, geometry: Geometry) -> None:
        L, H, C = geometry.states, geometry.hidden, geometry.outputs
        super().__init__(config, geometry, config.match * (H + 1) + config.match * L * C)

    def forward(self, batch: StateBatch) -> Float[Tensor, "B T C"]:
        return self.logits(batch.states[-1], linear=self.config.activation == "none")


@register("cls_mlp.v1", ClsMLPConfig)
class ClsMLP(_MLP):
    """last layer's [CLS] -> Linear(H, h) -> GELU -> Linear(h, C), as many parameters as adapter_pooler."""

    units = ("window",)
    cls_only = True

    def __init__(self, config: ClsMLPConfig, geometry: Geometry) -> None:
        H, C, match = geometry.hidden, geometry.outputs, config.match
        mix = num_channels(geometry) + 1
        super().__init__(config, geometry, mix + match * (H + 1) + (match + H) * C)

    def forward(self, batch: StateBatch) -> Float[Tensor, "B C"]:
        return self.logits(batch.first[-1])


@dataclass(frozen=True)
class MinBertConfig(HeadConfig):
    blocks: int = at_least(0, 4)
    """Hidden layers."""
    width: int = at_least(0, 0)
    """Numbers in each of them; 0 = H."""
    dropout: float = rate(0.1)
    """Part of a block's numbers that is dropped while training."""
    vectors: int = 1
    """2 reads two texts that were encoded apart, 1 reads one window."""

    def check(self) -> None:
        if self.vectors not in (1, 2):
            raise ConfigError(f"vectors of minbert must be 1 or 2, not {self.vectors}")


@register("minbert.v1", MinBertConfig)
class MinBert(Head):
    """pooled vector, or two -> (Linear -> LayerNorm -> dropout -> ReLU) x blocks -> Linear(C).

    The study says "5 densely connected layers", which is read as four blocks and the output layer. With `vectors=2`
    rows 2i and 2i + 1 of a batch are the texts of example i, encoded apart.
    """

    units = ("window",)
    stackable = True
    last_only = True
    cls_only = True

    def __init__(self, config: MinBertConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        width = config.width or geometry.hidden
        inputs = config.vectors * geometry.hidden
        layers: list[nn.Module] = []
        for _ in range(config.blocks):
            layers += [nn.Linear(inputs, width), nn.LayerNorm(width), Dropout(config.dropout), nn.ReLU()]
            inputs = width
        self.blocks = nn.Sequential(*layers)
        self.project = nn.Linear(inputs, geometry.outputs)

    @property
    def windows(self) -> int:
        return self.config.vectors

    def forward(self, batch: StateBatch) -> Float[Tensor, "examples C"]:
        vector = cls_vector(batch)
        pairs = vector.reshape(vector.shape[0] // self.config.vectors, -1)  # (examples, vectors * H)
        return self.project(self.blocks(pairs))
