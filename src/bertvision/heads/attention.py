"""Attention: a token decides which layers it is read from, a text which tokens (and layers) a label is read from.

layer_attention   y_l = x_l / rms(x_l)
                  q   = Q y_L + p                            (n, d)  from the token's last state
                  k_l = K y_l + b_l                          (n, d)  one K for all layers, one b each
                  A_l = softmax_l(q . k_l / sqrt(d) + w_l)   (n)     n attention heads
                  out = sum_l sum_n A_l,n V_n y_l + P x_L + bias     C numbers

Why: a learned pooling has one weight a layer for all tokens and both outputs. Names, numbers and the null token are
best read from different layers; here the weights follow from the token, and each attention head makes its own mix for
its own output weights. With Q = 0 it is a scalar mix of layers (Peters et al., "Deep Contextualized Word
Representations", 2018) per attention head. Bapna et al., "Training Deeper Neural Machine Translation Models with
Transparent Attention", 2018; Kondratyuk and Straka, "75 Languages, 1 Model: Parsing Universal Dependencies
Universally" (layer attention), 2019. Q, p and w begin at zero, so that all layers begin with the same weight: a softmax
that begins at the last layer passes hardly any gradient to the others. The states are projected before they are mixed.

attention_pooler  key_t    = tanh(W x_t + b)                       a numbers a token
                  share_t  = softmax over real tokens of query . key_t
                  vector   = sum_t share_t x_t                     one for each query --> Linear(C)

`over=tokens` reads a learned mix of the layers. `over=layers+tokens` lets the queries choose among the states of all
layers, with one W for all and a score for each layer added: share_lt = softmax over l, t of query . key_lt + s_l.
Why: pre-training may have left [CLS] unfit for the task, and a mean treats [SEP] and content alike. A frozen encoder
is judged more fairly through a learned query ("attentive probe": Chen et al., "Context Autoencoder for Self-Supervised
Representation Learning", 2022), the pooling by attention of Lee et al., "Set Transformer", 2019. A fixed query sees a
linear key only through one vector, W^T query, so the key has a tanh as in Yang et al., "Hierarchical Attention Networks
for Document Classification", 2016; more than one query as in Lin et al., "A Structured Self-attentive Sentence
Embedding", 2017. Queries begin at zero: the head starts as the mean over real tokens.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertvision.errors import ConfigError
from bertvision.heads.base import Geometry, Head, StateBatch, register
from bertvision.heads.layers import glorot_linear, unit_scale
from bertvision.heads.readouts import LearnedMix
from bertvision.heads.spec import HeadConfig, at_least
from bertvision.shapes import Bool, Float


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


@dataclass(frozen=True)
class AttentionPoolerConfig(HeadConfig):
    size: int = at_least(1, 64)
    """a: numbers in a key."""
    queries: int = at_least(1, 1)
    """Vectors read from a text, side by side."""
    over: Literal["tokens", "layers+tokens"] = "tokens"
    """What is chosen from: the tokens of a learned mix of layers, or all tokens of all layers."""


@register("attention_pooler.v1", AttentionPoolerConfig)
class AttentionPooler(Head):
    """layer mix -> sum_t softmax(query . tanh(W x_t + b)) x_t, queries zero at first -> Linear(C)."""

    units = ("window",)
    stackable = True

    def __init__(self, config: AttentionPoolerConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        L, H, Q = geometry.states, geometry.hidden, config.queries
        if config.over == "tokens":
            self.mix = LearnedMix(L)
        else:
            self.layer_score_bias = nn.Parameter(torch.zeros(L, Q))
        self.key = glorot_linear(H, config.size)
        self.query = nn.Parameter(torch.zeros(Q, config.size))
        self.project = glorot_linear(Q * H, geometry.outputs)

    def forward(self, batch: StateBatch) -> Float[Tensor, "B C"]:
        states = self.mix(batch.states)[None] if self.config.over == "tokens" else batch.states
        vectors = (self.shares(states, batch.mask) @ states).sum(0)  # (B, Q, H)
        return self.project(vectors.flatten(1))

    def shares(self, states: Float[Tensor, "K B T H"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "K B Q T"]:
        """The weight of each token for each query; over layers and tokens they sum to 1, at pads they are 0."""
        scores = self.key(states).tanh() @ self.query.mT  # (K, B, T, Q)
        if self.config.over == "layers+tokens":
            scores = scores + self.layer_score_bias[:, None, None]
        scores = scores.masked_fill(~mask[None, :, :, None], float("-inf"))
        K, B, T, Q = scores.shape
        flat = scores.permute(1, 3, 0, 2).reshape(B, Q, K * T)
        return flat.softmax(-1).view(B, Q, K, T).permute(2, 0, 1, 3).to(states.dtype)
