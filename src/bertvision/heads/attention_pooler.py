"""Attention pooling of a text: learned queries decide which tokens (and layers) a label is read from.

    key_t    = tanh(W x_t + b)                       a numbers a token
    share_t  = softmax over real tokens of query . key_t
    vector   = sum_t share_t x_t                     one for each query --> Linear(C)

`over=tokens` reads a learned mix of the layers. `over=layers+tokens` lets the queries choose among the states of all
layers, with one W for all and a score for each layer added: share_lt = softmax over l, t of query . key_lt + s_l.

Why: pre-training may have left [CLS] unfit for the task, and a mean treats [SEP] and content alike. A frozen encoder
is judged more fairly through a learned query ("attentive probe": Chen et al., "Context
Autoencoder for Self-Supervised Representation Learning", 2022; Bardes et al., "Revisiting Feature Prediction for
Learning Visual Representations from Video", 2024), which is the pooling by attention of Lee et al., "Set
Transformer", 2019. A fixed query sees a linear key only through one vector, W^T query, so the key has a tanh as in
Yang et al., "Hierarchical Attention Networks for Document Classification", 2016; more than one query as in
Lin et al., "A Structured Self-attentive Sentence Embedding", 2017.

Queries begin at zero: all scores are equal then, and the head starts as the mean over real tokens.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from bertvision.heads.base import Geometry, Head, StateBatch, glorot_linear, register
from bertvision.heads.options import HeadConfig, at_least
from bertvision.heads.pooling import LearnedMix
from bertvision.shapes import Bool, Float


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
