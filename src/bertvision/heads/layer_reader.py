"""One hidden state read by itself: what the encoder knows of the answer at that layer.

    spans             states[k]     -> Linear(H, 2)   start and end of every token
    labels, scores    states[k, 0]  -> Linear(H, C)   from [CLS]

A linear layer adds next to nothing of its own, so a row of readers, one for each hidden state, shows where in the
encoder an answer takes form. `fit --heads each_layer` fits all of them in one pass over the states; state 0 is what the
words alone say, before any layer. The set's heads are `layer_reader:layer=0`, `layer_reader:layer=1` and so on, in the
folders layer-reader-layer=0.seed0 ...; `layer_of` tells of any head which state it reads.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from bertvision.errors import ConfigError
from bertvision.heads.base import Geometry, Head, glorot_linear, register
from bertvision.heads.layers import check_at_least
from bertvision.shapes import Bool, Float

__all__ = ["LayerReader", "LayerReaderConfig", "layer_of", "reader_texts"]


@dataclass(frozen=True)
class LayerReaderConfig:
    layer: int = -1
    """Number of the hidden state among those that are read: 0 is the embedding output, -1 the last one."""

    def __post_init__(self) -> None:
        check_at_least("layer_reader", "layer", self.layer, -1)


@register("layer_reader.v1", LayerReaderConfig)
class LayerReader(Head):
    """states[k] -> Linear(H, C); labels and scores: its [CLS]."""

    tasks = ("span", "label", "score")
    stackable = True
    cls_only = True

    def __init__(self, config: LayerReaderConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        if config.layer >= geometry.states:
            raise ConfigError(
                f"layer_reader:layer={config.layer} reads a state there is not: the encoder gives "
                f"{geometry.states}, numbered 0 to {geometry.states - 1}"
            )
        self.cls_only = geometry.task != "span"
        self.project = glorot_linear(geometry.hidden, geometry.outputs)

    def forward(self, states: Float[Tensor, "L B T H"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B *T C"]:
        state = states[self.config.layer]
        return self.project(state[:, 0] if self.cls_only else state)


def reader_texts(states: int) -> Iterator[str]:
    """The readers of an encoder that hands out this many states."""
    return (f"layer_reader:layer={k}" for k in range(states))


def layer_of(head: Head) -> int | None:
    """Which state a reader reads; None for a head of another kind."""
    if not isinstance(head, LayerReader):
        return None
    return head.config.layer if head.config.layer >= 0 else head.geometry.states - 1
