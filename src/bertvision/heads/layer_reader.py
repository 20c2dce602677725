"""One hidden state read by itself: what the encoder knows of the answer at that layer.

    tokens     states[k]                               -> Linear(H, C)
    windows    states[k] of the classification token   -> Linear(H, C)

A linear layer adds next to nothing of its own, so a row of readers, one for each hidden state, shows at which layer an
answer can be read. `fit --heads each_layer` fits all of them in one pass over the states; state 0 is the embedding
output, what the words alone say.
"""

from dataclasses import dataclass

from torch import Tensor

from bertvision.errors import ConfigError
from bertvision.heads.base import Geometry, Head, StateBatch, glorot_linear, register
from bertvision.heads.options import HeadConfig, at_least
from bertvision.shapes import Float


@dataclass(frozen=True)
class LayerReaderConfig(HeadConfig):
    layer: int = at_least(-1, -1)
    """Index of the hidden state among those that are read: 0 is the embedding output, -1 the last one."""


@register("layer_reader.v1", LayerReaderConfig)
class LayerReader(Head):
    """states[k] -> Linear(H, C); for windows that of the classification token."""

    units = ("token", "window")
    stackable = True
    cls_only = True

    def __init__(self, config: LayerReaderConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        if config.layer >= geometry.states:
            raise ConfigError(
                f"layer_reader:layer={config.layer} does not exist: the encoder gives {geometry.states} hidden "
                f"states, numbered 0 to {geometry.states - 1}"
            )
        self.cls_only = geometry.unit == "window"
        self.project = glorot_linear(geometry.hidden, geometry.outputs)

    def forward(self, batch: StateBatch) -> Float[Tensor, "B *T C"]:
        states = batch.first if self.cls_only else batch.states
        return self.project(states[self.config.layer])


def layer_of(head: Head) -> int | None:
    """Index of the state that a reader reads; None for any other head."""
    if not isinstance(head, LayerReader):
        return None
    return head.config.layer if head.config.layer >= 0 else head.geometry.states - 1
