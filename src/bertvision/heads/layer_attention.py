"""Attention over layers: every token decides by itself which layers it is read from.

        y_l = x_l / rms(x_l)
        q   = Q y_L + p                            (n, d)  from the token's last state
        k_l = K y_l + b_l                          (n, d)  one K for all layers, one b each
        A_l = softmax_l(q . k_l / sqrt(d) + w_l)   (n)     n attention heads
        out = sum_l sum_n A_l,n V_n y_l + P x_L + bias     C numbers

Why: a learned pooling has one weight a layer for all tokens and both outputs. Names, numbers and the null token are
best read from different layers; here the weights follow from the token, and each attention head makes its own mix for
its own output weights. With Q = 0 it is a scalar mix of layers (Peters et al., "Deep Contextualized Word
Representations", 2018) per attention head. Bapna et al., "Training Deeper Neural Machine Translation Models with
Transparent Attention", 2018; Kondratyuk and Straka, "75 Languages, 1 Model: Parsing Universal Dependencies
Universally" (layer attention), 2019.

Q, p and w begin at zero, so that all layers begin with the same weight: a softmax that begins at the last layer passes
hardly any gradient to the others, and the last state has a term of its own anyway. The states are projected before they
are mixed, so that no mix of H numbers is written.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertvision.errors import ConfigError
from bertvision.heads.base import Geometry, Head, StateBatch, glorot_linear, register
from bertvision.heads.layers import unit_scale
from bertvision.heads.options import HeadConfig, at_least
from bertvision.shapes import Float


@dataclass(frozen=True)
class LayerAttentionConfig(HeadConfig):
    size: int = at_least(1, 64)
    """Numbers of a query and a key, all attention heads together."""
    heads: int = at_least(1, 4)
    """n: mixes of layers, each with output weights of its own."""

    def check(self) -> None:
        if self.size % self.heads:
            raise ConfigError(
                f"size of layer_attention must be a multiple of heads, not {self.size} with {self.heads}"
            )


@register("layer_attention.v1", LayerAttentionConfig)
class LayerAttention(Head):
    """each token's attention over its own layers -> Linear(C) of the mix + Linear(C) of the last state."""

    stackable = True

    def __init__(self, config: LayerAttentionConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        L, H, C = geometry.states, geometry.hidden, geometry.outputs
        self.query = nn.Linear(H, config.size)
        nn.init.zeros_(self.query.weight)
        nn.init.zeros_(self.query.bias)
        self.key = nn.Parameter(torch.empty(config.size, H).uniform_(-(H**-0.5), H**-0.5))
        self.key_bias = nn.Parameter(torch.zeros(L, config.size))
        self.layer_bias = nn.Parameter(torch.zeros(L, config.heads))
        self.value = nn.Parameter(torch.empty(config.heads * C, H))
        nn.init.xavier_uniform_(self.value)
        self.project = glorot_linear(H, C)

    def forward(self, batch: StateBatch) -> Float[Tensor, "B T C"]:
        states = batch.states
        scale, heads = unit_scale(states), (self.config.heads, -1)
        # Keys and values in one product: the states are read once.
        both = F.linear(states, torch.cat([self.key, self.value])) * scale
        keys, values = both.split([self.config.size, self.value.shape[0]], dim=-1)
        keys = (keys + self.key_bias[:, None, None]).unflatten(-1, heads)  # (L, B, T, n, d)
        query = F.linear(states[-1], self.query.weight) * scale[-1] + self.query.bias
        scores = (query.unflatten(-1, heads) * keys).sum(-1) / math.sqrt(keys.shape[-1])
        share = (scores + self.layer_bias[:, None, None]).softmax(0)  # (L, B, T, n)
        mixed = (share.unsqueeze(-1) * values.unflatten(-1, heads)).sum((0, -2))
        return mixed + self.project(states[-1])
