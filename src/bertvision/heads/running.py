"""Running states: a small state climbs the layers of a token, so that each layer is read in the light of those below.

ladder     z_l = W_l x_l / rms(x_l) + b_l                    (a)    W shared by all layers, or one each
           h_l = g_l * h_{l-1} + (1 - g_l) * z_l                    g_l = sigmoid(c_l), one gate a feature
           h_l = h_l + V GELU(U h_l)                                the rung, shared by all layers
           h   = norm(h_L + attention(norm(h_L)))                   over the window's real tokens

recurrent  z_l      = W x_l / rms(x_l) + b_l                 (a)    one W for all layers
           r_l, k_l = sigmoid(G z_l + S h_{l-1} + c_l)              what is reset, what is kept
           n_l      = tanh(z_l + N (r_l * h_{l-1}))
           h_l      = k_l * h_{l-1} + (1 - k_l) * n_l               h_{-1} = 0

both       [h; last hidden state] --> Linear(C)

Why: the papers' heads add up what single layers say about a single token, with the same weight of a layer for every
token. The ladder's rung is not linear, and its null token, which carries "no answer", attends to what every other token
collected from all layers (Sung, Cho, Bansal: "LST: Ladder Side-Tuning for Parameter and Memory Efficient Transfer
Learning", 2022). In the recurrent cell what was read so far decides, token by token and feature by feature, how much
of the next layer is taken in (Wang et al.: "READ: Recurrent Adaptation of Large Transformers", 2023; the cell is a
gated recurrent unit, Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", 2014).

Gates begin at c_l = log(l + 1), l from 0, which makes the state the running mean of all layers read so far: equal gates
would forget the early layers at a geometric rate. States are divided by their root mean square first, because the
layers of an encoder differ in scale. All layers are projected in one matrix product; only numbers of the small width
pass through the loop.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertvision.errors import ConfigError
from bertvision.heads.base import Geometry, Head, StateBatch, register
from bertvision.heads.layers import Dropout, gelu, glorot_linear, project_with_skip, unit_scale
from bertvision.heads.spec import HeadConfig, at_least, rate
from bertvision.shapes import Bool, Float


def running_mean_gates(states: int, size: int) -> Float[Tensor, "L a"]:
    """c_l = log(l + 1): sigmoid(c_l) = (l + 1) / (l + 2), so every layer ends up with the share 1 / (L + 1)."""
    return (torch.arange(states) + 1.0).log().unsqueeze(1).repeat(1, size)


@dataclass(frozen=True)
class RecurrentConfig(HeadConfig):
    size: int = at_least(1, 64)
    """a: numbers of the running state."""
    skip: bool = True
    """Give the last hidden state to the output layer too."""
    dropout: float = rate()
    """Part of the final state that is dropped while training."""


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
        return project_with_skip(self.project, self.dropout(state), states[-1], skip=self.config.skip)


@dataclass(frozen=True)
class LadderConfig(HeadConfig):
    size: int = at_least(1, 64)
    """a: numbers of the running state."""
    unshared: bool = False
    """A projection of its own for every layer."""
    rung: int = at_least(0, 64)
    """Hidden numbers of the residual block after every layer; 0 = no block."""
    heads: int = at_least(0, 4)
    """Attention heads between tokens; 0 = no attention."""
    skip: bool = True
    """Give the last hidden state to the output layer too."""
    dropout: float = rate()
    """Part of the final state that is dropped while training."""

    def check(self) -> None:
        if self.heads and self.size % self.heads:
            raise ConfigError(
                f"size of ladder must be a multiple of heads, not {self.size} with {self.heads}"
            )


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

    def _reduced(self, states: Float[Tensor, "L B T H"]) -> Float[Tensor, "L B T a"]:
        if self.down.ndim == 2:
            reduced = F.linear(states, self.down)
        else:
            L, B, T, H = states.shape
            reduced = torch.bmm(states.reshape(L, B * T, H), self.down.mT.to(states.dtype)).view(L, B, T, -1)
        return reduced * unit_scale(states) + self.down_bias[:, None, None]

    def forward(self, batch: StateBatch) -> Float[Tensor, "B T C"]:
        reduced, gates = self._reduced(batch.states), self.gate_bias.sigmoid()
        state = torch.zeros_like(reduced[0])
        for layer, gate in zip(reduced.unbind(), gates.unbind(), strict=True):
            state = gate * state + (1 - gate) * layer
            if self.config.rung:
                state = state + self.rung_out(gelu(self.rung_in(state), "tanh"))
        if self.mixing is not None:
            state = self.mixing(state, batch.mask)
        state = self.dropout(self.norm(state))
        return project_with_skip(self.project, state, batch.states[-1], skip=self.config.skip)
