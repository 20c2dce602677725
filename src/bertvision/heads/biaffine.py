"""Start and end scored together, as a pair.

        f_t  = [GELU(W x_l + b) of every layer l; last hidden state]      (a * L + H)
        (s_t, e_t, u_t, v_t) = Linear(2 + 2r)(f_t)
        score(i, j) = s_i + e_j + u_i . v_j / sqrt(r)                     i <= j

Why: the papers' heads choose the start and the end independently, so a window with two likely answers gets spans from
the start of one to the end of the other, and an end before its start has to be repaired when decoding. Here one softmax
over all pairs i <= j is trained (the span task's loss), and u_i . v_j says whether j ends what i begins: f_i' U' V f_j
is a bilinear form of rank r. Dozat and Manning, "Deep Biaffine Attention for Neural
Dependency Parsing", 2017; Yu, Bohnet and Poesio, "Named Entity Recognition as Dependency Parsing", 2020.

The representation is the adapter's, with its initial weights. End factors begin at zero, so that the head begins as an
independent scorer of starts and ends.
"""

from dataclasses import dataclass

import torch

from bertvision.errors import ConfigError
from bertvision.heads.adapter import Adapter
from bertvision.heads.base import Geometry, register
from bertvision.heads.options import DownConfig, at_least, rate


@dataclass(frozen=True)
class BiaffineConfig(DownConfig):
    size: int = at_least(1, 64)
    rank: int = at_least(1, 16)
    """r: numbers a start and an end are compared in."""
    skip: bool = True
    """Give the last hidden state to the output layer too."""
    dropout: float = rate()
    """Part of the reduced numbers that is dropped while training."""


@register("biaffine.v1", BiaffineConfig)
class Biaffine(Adapter):
    """adapter over all layers [+ last state] -> start, end and their factors -> a score for every pair."""

    def __init__(self, config: BiaffineConfig, geometry: Geometry) -> None:
        if geometry.outputs != 2:
            raise ConfigError(f"biaffine scores a start and an end: it has 2 outputs, not {geometry.outputs}")
        super().__init__(config, geometry, outputs=2 + 2 * config.rank)  # s, e, u and v of every token
        with torch.no_grad():
            self.project.weight[-config.rank :] = 0
