"""Adapter over all tokens of a text: the GLUE head of the papers' torch code.

    states_l (B, T, H) --W,b--> GELU --> (B, T, a)      one W and b for all layers
    concat over tokens, features and layers (T * a * L)  --> Linear(C)

The output layer has weights for each of `tokens` places. A shorter window uses the first of them; the reduced states
of pads are set to zero, which W and b alone would not do. The wide vector (token-major, layer-minor) is never written:
the output layer is applied layer by layer.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from bertvision.errors import ConfigError
from bertvision.heads.adapter import Down
from bertvision.heads.base import Geometry, Head, StateBatch, glorot_linear, register
from bertvision.heads.options import DownConfig, Gelu, at_least
from bertvision.shapes import Float


@dataclass(frozen=True)
class ApGlueConfig(DownConfig):
    size: int = at_least(1, 8)
    gelu: Gelu = "erf"
    """The exact GELU of the papers' torch code, or its tanh approximation."""
    tokens: int = at_least(1, 250)
    """Tokens of the longest window it can read."""


@register("ap_glue.v1", ApGlueConfig)
class ApGlue(Head):
    """shared GELU(W x + b) of every token and layer -> concat -> Linear(tokens * a * L, C)."""

    units = ("window",)
    stackable = True

    def __init__(self, config: ApGlueConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        self.down = Down(geometry.hidden, config.size, kind=config.gelu, std=config.init_std)
        self.project = glorot_linear(config.tokens * config.size * geometry.states, geometry.outputs)

    def forward(self, batch: StateBatch) -> Float[Tensor, "B C"]:
        states, mask = batch.states, batch.mask
        size, most = self.config.size, self.config.tokens
        if states.is_meta:  # where heads are counted, over windows of any length
            states, mask = states[:, :, :most], mask[:, :most]
        L, B, T, _ = states.shape
        if most < T:
            raise ConfigError(
                f"ap_glue was built for windows of at most {most} tokens and cannot read one of {T}: "
                f"give the head tokens={T} or cut the windows shorter"
            )
        reduced = self.down.padded(states)  # (L, B, T, a), on a GPU with zero columns behind
        padded = reduced.shape[-1]
        reduced = reduced.masked_fill(~mask[None, :, :, None], 0)
        own = self.project.weight.view(-1, most, size, L)[:, :T].permute(3, 1, 2, 0)  # (L, T, a, C)
        own = F.pad(own, (0, 0, 0, padded - size)).to(reduced.dtype)
        flat = torch.bmm(reduced.reshape(L, B, T * padded), own.reshape(L, T * padded, -1))
        return flat.sum(0) + self.project.bias
