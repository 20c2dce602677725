"""Window heads on the [CLS] channels: the papers' poolers.

channels (S, B, H) = [CLS] of every hidden state and the pooled vector, S = L + 1 (heads/channels.py)

tenney_small     gamma * sum_s softmax(w)_s channel_s                   --> Linear(C)
adapter_pooler   the same, or the mean --> GELU(W x + b) || channel -1  --> Linear(C)
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bertvision.heads.adapter import Down
from bertvision.heads.base import Geometry, Head, StateBatch, glorot_linear, register
from bertvision.heads.channels import Order, channels, num_channels
from bertvision.heads.options import DownConfig, HeadConfig
from bertvision.heads.pooling import LearnedMix, Pooling, make_mix
from bertvision.shapes import Float


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
