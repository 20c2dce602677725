"""Heads beyond the papers: formulas, reasons, sources.

A small state climbs the layers of a token, so that each layer is read in the light of those below:

ladder     z_l = W_l x_l / rms(x_l) + b_l                    (a)    W shared by all layers, or one each
           h_l = g_l * h_{l-1} + (1 - g_l) * z_l                    g_l = sigmoid(c_l), one gate a feature
           h_l = h_l + V GELU(U h_l)                                the rung, shared by all layers
           h   = norm(h_L + attention(norm(h_L)))                   over the window's real tokens

recurrent  z_l      = W x_l / rms(x_l) + b_l                 (a)    one W for all layers
           r_l, k_l = sigmoid(G z_l + S h_{l-1} + c_l)              what is reset, what is kept
           n_l      = tanh(z_l + N (r_l * h_{l-1}))
           h_l      = k_l * h_{l-1} + (1 - k_l) * n_l               h_{-1} = 0

both       [h; last hidden state] --> Linear(C)

The ladder's null token, which carries "no answer", attends to what every other token collected (Sung, Cho, Bansal:
"LST: Ladder Side-Tuning", 2022); in the recurrent cell what was read so far decides how much of the next layer is taken
in (Wang et al.: "READ: Recurrent Adaptation of Large Transformers", 2023; Cho et al., 2014). Gates begin at c_l =
log(l + 1), the running mean of the layers: equal gates would forget the early ones geometrically.

layer_attention   y_l = x_l / rms(x_l)
                  q   = Q y_L + p                            (n, d)  from the token's last state
                  k_l = K y_l + b_l                          (n, d)  one K for all layers, one b each
                  A_l = softmax_l(q . k_l / sqrt(d) + w_l)   (n)     n attention heads
                  out = sum_l sum_n A_l,n V_n y_l + P x_L + bias     C numbers

Here a token chooses its layers, and each attention head makes its own mix; with Q = 0 it is a scalar mix (Peters et
al., 2018; Bapna et al., 2018; Kondratyuk and Straka, 2019). Q, p and w begin at zero: a softmax that begins at the last
layer passes hardly any gradient to others.

attention_pooler  key_t    = tanh(W x_t + b)                       a numbers a token
                  share_t  = softmax over real tokens of query . key_t
                  vector   = sum_t share_t x_t                     one for each query --> Linear(C)

`over=tokens` reads a learned mix of the layers; `over=layers+tokens` chooses among the states of all layers, with a
score for each layer added: share_lt = softmax over l, t of query . key_lt + s_l. A fixed query sees a linear key only
through one vector, so the key has a tanh (Yang et al., 2016; Lin et al., 2017; Lee et al., "Set Transformer", 2019;
Chen et al., "Context Autoencoder", 2022). Queries begin at zero: a mean over real tokens.

head2toe  out     = sum_l W_l x_l / rms(x_l) + b        W: (L, C, H), small noise at first
          penalty = lasso * sum_{l,h} |W_{l,:,h}|       one group = all weights of one feature of one layer
          from `select_at` on: only the `keep` part of the features with the largest |W_{l,:,h}| stays

A pooling cannot take feature 3 from layer 5 and feature 9 from layer 20; a linear layer over all features can, and the
group lasso shrinks whole features of it (Evci et al.: "Head2Toe", 2022). Initial weights are far smaller than learned
ones, so that a feature's norm is what it learned. What is kept is saved with the head (`mask`, `selected`); a dropped
weight is left out of every product, and momentum may still change its own value.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertvision.errors import ConfigError
from bertvision.heads.base import Geometry, Head, StateBatch, register
from bertvision.heads.layers import Dropout, gelu, glorot_linear, map_layers, project_with_skip, unit_scale
from bertvision.heads.readouts import Mix
from bertvision.heads.spec import HeadConfig, at_least, rate
from bertvision.shapes import Bool, Float

# ---- running states


def running_mean_gates(states: int, size: int) -> Float[Tensor, "L a"]:
    """c_l = log(l + 1): sigmoid(c_l) = (l + 1) / (l + 2), so every layer ends up with the share 1 / (L + 1)."""
    return (torch.arange(states) + 1.0).log().unsqueeze(1).repeat(1, size)


class _AttentionConfig(HeadConfig):
    size: int
    heads: int

    def check(self) -> None:
        if self.heads and self.size % self.heads:
            at = f"{self.size} with {self.heads}"
            raise ConfigError(f"size of {self.head} must be a multiple of heads, not {at}")


@dataclass(frozen=True)
class RecurrentConfig(HeadConfig):
    size: int = at_least(1, 64)  # a: numbers of the running state
    skip: bool = True  # give the last hidden state to the output layer too
    dropout: float = rate()  # part of the final state that is dropped while training


@register("recurrent.v1", RecurrentConfig)
class Recurrent(Head):
    """a gated recurrent cell over the layers of each token [+ last state] -> Linear(C)."""

    stackable = True

    def __init__(self, config: RecurrentConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        L, H, size = geometry.states, geometry.hidden, config.size
        self.down = nn.Linear(H, size, bias=False)
        self.down_bias = nn.Parameter(torch.zeros(L, size))
        self.gates_read = nn.Linear(size, 2 * size, bias=False)
        self.gates_state = nn.Linear(size, 2 * size, bias=False)
        self.gate_bias = nn.Parameter(torch.cat([torch.zeros(L, size), running_mean_gates(L, size)], dim=1))
        self.new = nn.Linear(size, size, bias=False)
        self.dropout = Dropout(config.dropout)
        self.project = glorot_linear(size + (H if config.skip else 0), geometry.outputs)

    def forward(self, batch: StateBatch) -> Float[Tensor, "B T C"]:
        states = batch.states
        read = self.down(states) * unit_scale(states) + self.down_bias[:, None, None]  # (L, B, T, a)
        gates = self.gates_read(read) + self.gate_bias[:, None, None]  # (L, B, T, 2a)
        state = torch.zeros_like(read[0])
        for layer, gate in zip(read.unbind(), gates.unbind(), strict=True):
            reset, keep = (gate + self.gates_state(state)).sigmoid().chunk(2, dim=-1)
            new = (layer + self.new(reset * state)).tanh()
            state = keep * state + (1 - keep) * new
        return project_with_skip(self.project, self.dropout(state), states[-1])


@dataclass(frozen=True)
class LadderConfig(_AttentionConfig):
    size: int = at_least(1, 64)  # a: numbers of the running state
    unshared: bool = False  # a projection of its own for every layer
    rung: int = at_least(0, 64)  # hidden numbers of the residual block after every layer; 0 = no block
    heads: int = at_least(0, 4)  # attention heads between tokens; 0 = no attention
    skip: bool = True  # give the last hidden state to the output layer too
    dropout: float = rate()  # part of the final state that is dropped while training


class TokenMixing(nn.Module):
    """x + attention(norm(x)) over the real tokens of a window."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(size)
        self.qkv = glorot_linear(size, 3 * size)
        self.out = glorot_linear(size, size)

    def forward(self, x: Float[Tensor, "B T a"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T a"]:
        query, key, value = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))  # (B, heads, T, d)
        # Written out: fused attention has no rule for stacked heads, and a row that is all pads must stay finite.
        scores = (query @ key.mT).float() / math.sqrt(query.shape[-1])
        scores = scores.masked_fill(~mask[:, None, None, :], torch.finfo(scores.dtype).min)
        mixed = scores.softmax(-1).to(value.dtype) @ value
        return x + self.out(mixed.transpose(1, 2).flatten(2))


@register("ladder.v1", LadderConfig)
class Ladder(Head):
    """gated running state over layers, a residual block each -> self-attention [+ last state] -> Linear(C)."""

    stackable = True

    def __init__(self, config: LadderConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        L, H, size = geometry.states, geometry.hidden, config.size
        lead = (L,) if config.unshared else ()
        self.down = nn.Parameter(torch.empty(*lead, size, H).uniform_(-(H**-0.5), H**-0.5))
        self.down_bias = nn.Parameter(torch.zeros(L, size))
        self.gate_bias = nn.Parameter(running_mean_gates(L, size))
        if config.rung:
            self.rung_in = glorot_linear(size, config.rung)
            self.rung_out = glorot_linear(config.rung, size)
            nn.init.zeros_(self.rung_out.weight)  # the walk begins as the mean of the layers
        self.mixing = TokenMixing(size, config.heads) if config.heads else None
        self.norm = nn.LayerNorm(size)
        self.dropout = Dropout(config.dropout)
        self.project = glorot_linear(size + (H if config.skip else 0), geometry.outputs)

    def forward(self, batch: StateBatch) -> Float[Tensor, "B T C"]:
        reduced = map_layers(batch.states, self.down) * unit_scale(batch.states)
        reduced, gates = reduced + self.down_bias[:, None, None], self.gate_bias.sigmoid()  # (L, B, T, a)
        state = torch.zeros_like(reduced[0])
        for layer, gate in zip(reduced.unbind(), gates.unbind(), strict=True):
            state = gate * state + (1 - gate) * layer
            if self.config.rung:
                state = state + self.rung_out(gelu(self.rung_in(state), "tanh"))
        if self.mixing is not None:
            state = self.mixing(state, batch.mask)
        state = self.dropout(self.norm(state))
        return project_with_skip(self.project, state, batch.states[-1])


# ---- attention


@dataclass(frozen=True)
class LayerAttentionConfig(_AttentionConfig):
    size: int = at_least(1, 64)  # numbers of a query and a key, all attention heads together
    heads: int = at_least(1, 4)  # n: mixes of layers, each with output weights of its own


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
    size: int = at_least(1, 64)  # a: numbers in a key
    queries: int = at_least(1, 1)  # vectors read from a text, side by side
    over: Literal["tokens", "layers+tokens"] = "tokens"  # of a learned mix of layers, or of all layers


@register("attention_pooler.v1", AttentionPoolerConfig)
class AttentionPooler(Head):
    """layer mix -> sum_t softmax(query . tanh(W x_t + b)) x_t, queries zero at first -> Linear(C)."""

    units = ("window",)
    stackable = True

    def __init__(self, config: AttentionPoolerConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        L, H, Q = geometry.states, geometry.hidden, config.queries
        if config.over == "tokens":
            self.mix = Mix(L)
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


# ---- features


@dataclass(frozen=True)
class Head2ToeConfig(HeadConfig):
    keep: float = 0.05  # part of all L * H features that is kept; 1 keeps all
    select_at: float = 0.5  # part of the fit after which features are dropped; 1 = never
    lasso: float = at_least(0, 1e-4)  # weight of the group lasso until then

    def check(self) -> None:
        for name in ("keep", "select_at"):
            if not 0 < (value := getattr(self, name)) <= 1:
                raise ConfigError(f"{name} of head2toe must lie above 0 and not above 1, not {value}")


@register("head2toe.v1", Head2ToeConfig)
class Head2Toe(Head):
    """Linear(C) over all features of all layers, group lasso, then only the strongest features."""

    mask: Tensor
    selected: Tensor

    def __init__(self, config: Head2ToeConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        L, H, C = geometry.states, geometry.hidden, geometry.outputs
        self.weight = nn.Parameter(torch.empty(L, C, H).normal_(std=1e-3))
        self.bias = nn.Parameter(torch.zeros(C))
        self.register_buffer("mask", torch.ones(L, H, dtype=torch.bool))
        self.register_buffer("selected", torch.tensor(False))

    def kept(self) -> Float[Tensor, "L C H"]:
        return self.weight * self.mask.unsqueeze(1)

    def norms(self) -> Float[Tensor, "L H"]:
        """|W_{l,:,h}|, with a gradient (of zero) where all weights of a feature are zero."""
        return (self.kept().square().sum(1) + 1e-24).sqrt()

    def forward(self, batch: StateBatch) -> Float[Tensor, "B T C"]:
        each = map_layers(batch.states, self.kept())
        return (each * unit_scale(batch.states)).sum(0) + self.bias

    def penalty(self, progress: float) -> Tensor | None:
        """The group lasso; the first call at or after `select_at` selects the features and ends it."""
        if progress >= self.config.select_at and not bool(self.selected):
            norms = self.norms().detach().flatten()
            kept = norms.topk(max(1, round(self.config.keep * norms.numel()))).indices
            self.mask.zero_().view(-1)[kept] = True
            self.selected.fill_(True)
        return self.config.lasso * self.norms().sum() * ~self.selected

    def layer_weights(self) -> list[float] | None:
        norms = self.norms().detach().sum(1)
        return (norms / norms.sum()).tolist()
