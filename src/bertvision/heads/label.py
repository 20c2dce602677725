"""Window heads on the [CLS] channels: the papers' poolers, and the controls for all window heads.

    channels (S, B, H) = [CLS] of every hidden state and the pooled vector, S = L + 1 (heads/channels.py)

    tenney_small     gamma * sum_s softmax(w)_s channel_s                   --> Linear(C)
    adapter_pooler   the same, or the mean --> GELU(W x + b) || channel -1  --> Linear(C)

The controls read one vector alone. cls_linear is the head of plain fine-tuning; cls_mlp has as many parameters as an
adapter_pooler: what that gains beyond it comes from the other channels, not from its size.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bertvision.heads.adapter import Down
from bertvision.heads.base import Geometry, Head, StateBatch, glorot_linear, register
from bertvision.heads.channels import Order, channels, cls_vector, num_channels
from bertvision.heads.layers import Dropout, gelu
from bertvision.heads.options import DownConfig, HeadConfig, NoOptions, at_least, rate
from bertvision.heads.pooling import LearnedMix, Pooling, make_mix
from bertvision.shapes import Float

__all__ = ["AdapterPooler", "AdapterPoolerConfig", "ClsLinear", "ClsMLP", "ClsMLPConfig", "TenneySmall"]


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


@register("cls_linear.v1", NoOptions)
class ClsLinear(Head):
    """pooled vector (last layer's [CLS] without a pooler) -> Linear(H, C)."""

    units = ("window",)
    stackable = True
    last_only = True
    cls_only = True

    def __init__(self, config: NoOptions, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        self.project = glorot_linear(geometry.hidden, geometry.outputs)

    def forward(self, batch: StateBatch) -> Float[Tensor, "B C"]:
        return self.project(cls_vector(batch))


@dataclass(frozen=True)
class ClsMLPConfig(HeadConfig):
    match: int = at_least(1, 386)
    """Size of the adapter_pooler whose parameter count it comes nearest to."""
    width: int = at_least(0, 0)
    """Hidden numbers; 0 = as many as `match` asks for."""
    dropout: float = rate()
    """Part of the hidden numbers that is dropped while training."""


@register("cls_mlp.v1", ClsMLPConfig)
class ClsMLP(Head):
    """last layer's [CLS] -> Linear(H, h) -> GELU -> Linear(h, C), as many parameters as adapter_pooler."""

    units = ("window",)
    stackable = True
    last_only = True
    cls_only = True

    def __init__(self, config: ClsMLPConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        H, C, match = geometry.hidden, geometry.outputs, config.match
        mix = geometry.states + geometry.pooled + 1
        budget = mix + match * (H + 1) + (match + H) * C  # of adapter_pooler, its output bias apart
        self.width = config.width or max(1, round(budget / (H + 1 + C)))
        self.down = glorot_linear(H, self.width)
        self.dropout = Dropout(config.dropout)
        self.project = glorot_linear(self.width, C)

    def forward(self, batch: StateBatch) -> Float[Tensor, "B C"]:
        return self.project(self.dropout(gelu(self.down(batch.first[-1]), "tanh")))
