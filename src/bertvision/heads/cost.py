"""What a head costs: parameters and floating-point operations.

The operations are counted by running the head on the meta device, which computes shapes and no numbers: every
head, a user's own too, is counted by the same rule (matrix products and convolutions, two per multiply-add).
"""

from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from bertvision.heads.base import Geometry, Head, head_class
from bertvision.heads.spec import HeadSpec

__all__ = ["HeadCost", "cost"]


@dataclass(frozen=True)
class HeadCost:
    parameters: int
    flops_per_token: int
    """Forward pass of one token."""

    def percent_of(self, encoder_parameters: int) -> float:
        return 100 * self.parameters / encoder_parameters


def cost(head: Head | HeadSpec, geometry: Geometry, *, tokens: int = 384) -> HeadCost:
    """Parameters and FLOPs of a head for a window of `tokens` tokens; no memory is taken for either."""
    with torch.device("meta"):
        module = head_class(head.name)(head.config, geometry).eval()
        states = torch.empty(geometry.states, 1, tokens, geometry.hidden)
        mask = torch.ones(1, tokens, dtype=torch.bool)
        with FlopCounterMode(display=False) as counter:
            module(states, mask)
    return HeadCost(module.num_parameters, counter.get_total_flops() // tokens)
