"""Window heads on the classification token: its state of every layer, and the pooler's vector.

    batch.first   (L, B, H)   embedding output, layer 1, ..., last layer
    pooled           (B, H)   tanh(W x + b) of the last layer's [CLS], where the encoder has a pooler

channels (S, B, H) are both: S = L + 1, or L without a pooler. The papers' code puts the pooled vector first, so that
channel -1 is the last layer's [CLS]; their appendix puts it last.

tenney_small     gamma * sum_s softmax(w)_s channel_s                   --> Linear(C)
adapter_pooler   the same, or the mean --> GELU(W x + b) || channel -1  --> Linear(C)
minbert          pooled vector, or two --> [Linear --> LayerNorm --> dropout --> ReLU] x blocks --> Linear(C)
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from bertvision.errors import ConfigError
from bertvision.heads.adapter import Down
from bertvision.heads.base import Geometry, Head, StateBatch, glorot_linear, register
from bertvision.heads.layers import Dropout
from bertvision.heads.options import DownConfig, HeadConfig, at_least, rate
from bertvision.heads.pooling import LearnedMix, Pooling, make_mix
from bertvision.shapes import Float

Order = Literal["first", "last"]
"""Where the pooled vector stands among the channels."""


def channels(batch: StateBatch, order: Order) -> Float[Tensor, "S B H"]:
    """The [CLS] vectors of all layers, with the pooled vector before or behind them."""
    cls = batch.first
    if batch.pooled is None:
        return cls
    if cls.dtype == torch.float16:  # stored so; under autocast to bf16 torch joins no float16 to anything
        cls = cls.float()
    pooled = batch.pooled[None].to(cls.dtype)
    return torch.cat([pooled, cls] if order == "first" else [cls, pooled])


def cls_vector(batch: StateBatch) -> Float[Tensor, "B H"]:
    """The one vector of a window: the pooled one, or the last layer's [CLS] where there is no pooler."""
    return batch.first[-1] if batch.pooled is None else batch.pooled


def num_channels(geometry: Geometry) -> int:
    """S: L + 1 with a pooler, L without one."""
    return geometry.states + geometry.pooled


@dataclass(frozen=True)
class TenneySmallConfig(HeadConfig):
    order: Order = "first"
    """Where the pooled vector stands among the channels, and so in the layer weights."""


@register("tenney_small.v1", TenneySmallConfig)
class TenneySmall(Head):
    """gamma * softmax(w) over the [CLS] channels -> Linear(H, C)."""

    units = ("window",)
    stackable = True
    cls_only = True

    def __init__(self, config: TenneySmallConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        self.mix = LearnedMix(num_channels(geometry))
        self.project = glorot_linear(geometry.hidden, geometry.outputs)

    def forward(self, batch: StateBatch) -> Float[Tensor, "B C"]:
        return self.project(self.mix(channels(batch, self.config.order)))


@dataclass(frozen=True)
class AdapterPoolerConfig(DownConfig):
    pooling: Pooling = "learned"
    """How the channels are pooled first."""
    order: Order = "first"
    """Where the pooled vector stands: channel -1 goes past the adapter, and first makes it the last layer's [CLS]."""


@register("adapter_pooler.v1", AdapterPoolerConfig)
class AdapterPooler(Head):
    """pooling over the [CLS] channels -> GELU(W x + b), concat with channel -1 -> Linear(C)."""

    units = ("window",)
    stackable = True
    cls_only = True

    def __init__(self, config: AdapterPoolerConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        H = geometry.hidden
        self.mix = make_mix(config.pooling, num_channels(geometry))
        self.down = Down(H, config.size, kind=config.gelu, std=config.init_std)
        self.project = glorot_linear(config.size + H, geometry.outputs)

    def forward(self, batch: StateBatch) -> Float[Tensor, "B C"]:
        read = channels(batch, self.config.order)
        reduced = self.down(self.mix(read))  # (B, a)
        return self.project(torch.cat([reduced, read[-1]], dim=-1))


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
