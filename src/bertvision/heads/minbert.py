"""The dense heads of the minBERT study: a stack of normalised layers on one vector of a text.

    vector --> [Linear --> LayerNorm --> dropout --> ReLU] x blocks --> Linear(C)

The vector is the pooled one, or the last layer's [CLS] where the encoder has no pooler. Two texts can be read as one
window, or (`vectors=2`) encoded apart: then rows 2i and 2i + 1 of a batch are the texts of example i, and their two
vectors side by side are the input. The study says "5 densely connected layers", which is read as four blocks and the
output layer; `blocks=5` is another reading.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from bertvision.errors import ConfigError
from bertvision.heads.base import Geometry, Head, StateBatch, register
from bertvision.heads.channels import cls_vector
from bertvision.heads.layers import Dropout
from bertvision.heads.options import HeadConfig, at_least, rate
from bertvision.shapes import Float


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
    """pooled vector, or two -> (Linear -> LayerNorm -> dropout -> ReLU) x blocks -> Linear(C)."""

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
