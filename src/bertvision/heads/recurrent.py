"""A small recurrent cell that reads a token's states one layer after another.

        z_l        = W x_l / rms(x_l) + b_l                      (a)    one W for all layers
        r_l, k_l   = sigmoid(G z_l + S h_{l-1} + c_l)                   what is reset, what is kept
        n_l        = tanh(z_l + N (r_l * h_{l-1}))
        h_l        = k_l * h_{l-1} + (1 - k_l) * n_l                    h_{-1} = 0
        [h_L; last hidden state] --> Linear(C)

Why: a weighted sum of layers gives a layer the same weight for every token. Here what was read so far decides, token
by token and feature by feature, how much of the next layer is taken in: a token that is settled early can keep what a
middle layer said. The number of parameters hardly grows with the number of layers.
Wang et al.: "READ: Recurrent Adaptation of Large Transformers", 2023; the cell is a gated recurrent unit
(Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", 2014).

c_l begins so that k_l makes the state the running mean of what was read (see `running_mean_gates`). All layers are
projected in one matrix product; only numbers of the small width pass through the loop.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bertvision.heads.base import Geometry, Head, StateBatch, glorot_linear, register
from bertvision.heads.ladder import running_mean_gates
from bertvision.heads.layers import Dropout, project_with_skip, unit_scale
from bertvision.heads.options import HeadConfig, at_least, rate
from bertvision.shapes import Float


@dataclass(frozen=True)
class RecurrentConfig(HeadConfig):
    size: int = at_least(1, 64)
    """a: numbers of the recurrent state."""
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
