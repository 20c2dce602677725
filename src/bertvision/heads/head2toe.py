"""A linear layer over all features of all layers, of which most are dropped half-way.

        out = sum_l W_l x_l / rms(x_l) + b              W: (L, C, H), small noise at first
        penalty = lasso * sum_{l,h} |W_{l,:,h}|         one group = all weights of one feature of one layer
        from `select_at` on: only the `keep` part of the features with the largest |W_{l,:,h}| stays

Why: what a task needs of an encoder may stand in a few features of several layers, and a pooling over layers cannot
take feature 3 from layer 5 and feature 9 from layer 20. A linear layer over all L * H features can, but has many
weights for little data; the group lasso shrinks whole features, and what is left after the selection has no more
weights than a linear layer on one state, chosen from all of them.
Evci et al.: "Head2Toe: Utilizing Intermediate Representations for Better Transfer Learning", 2022.

The initial weights are far smaller than learned ones, so that a feature's norm is what it learned; they differ from
seed to seed. With the selection the penalty ends, and the kept weights go on from where they are. Which features are
kept is part of the saved head (`mask`, `selected`). A dropped weight is left out of every product; its own value,
which an optimiser's momentum may still change, means nothing.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bertvision.errors import ConfigError
from bertvision.heads.base import Geometry, Head, StateBatch, register
from bertvision.heads.layers import unit_scale
from bertvision.heads.spec import HeadConfig, at_least
from bertvision.shapes import Float

_INIT_STD = 1e-3


@dataclass(frozen=True)
class Head2ToeConfig(HeadConfig):
    keep: float = 0.05
    """Part of all L * H features that is kept; 1 keeps all."""
    select_at: float = 0.5
    """Part of the fit after which features are dropped; 1 = never."""
    lasso: float = at_least(0, 1e-4)
    """Weight of the group lasso until then."""

    def check(self) -> None:
        for name, value in {"keep": self.keep, "select_at": self.select_at}.items():
            if not 0 < value <= 1:
                raise ConfigError(f"{name} of head2toe must lie above 0 and not above 1, not {value}")


@register("head2toe.v1", Head2ToeConfig)
class Head2Toe(Head):
    """Linear(C) over all features of all layers, group lasso, then only the strongest features."""

    mask: Tensor
    selected: Tensor

    def __init__(self, config: Head2ToeConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        L, H, C = geometry.states, geometry.hidden, geometry.outputs
        self.weight = nn.Parameter(torch.empty(L, C, H).normal_(std=_INIT_STD))
        self.bias = nn.Parameter(torch.zeros(C))
        self.register_buffer("mask", torch.ones(L, H, dtype=torch.bool))
        self.register_buffer("selected", torch.tensor(False))

    def kept(self) -> Float[Tensor, "L C H"]:
        """The weights, zero where the feature was dropped."""
        return self.weight * self.mask.unsqueeze(1)

    def norms(self) -> Float[Tensor, "L H"]:
        """|W_{l,:,h}|, with a gradient (of zero) where all weights of a feature are zero."""
        return (self.kept().square().sum(1) + 1e-24).sqrt()

    def forward(self, batch: StateBatch) -> Float[Tensor, "B T C"]:
        states = batch.states
        L, B, T, H = states.shape
        weight = self.kept().mT.to(states.dtype)
        each = torch.bmm(states.reshape(L, B * T, H), weight).view(L, B, T, -1)
        return (each * unit_scale(states)).sum(0) + self.bias

    def penalty(self, progress: float) -> Tensor | None:
        """The group lasso; the first call at or after `select_at` selects the features and ends it."""
        if progress >= self.config.select_at and not bool(self.selected):
            self._select()
        return self.config.lasso * self.norms().sum() * ~self.selected

    @torch.no_grad()
    def _select(self) -> None:
        norms = self.norms()
        count = max(1, round(self.config.keep * norms.numel()))
        self.mask.zero_().view(-1)[norms.flatten().topk(count).indices] = True
        self.selected.fill_(True)

    def layer_weights(self) -> list[float] | None:
        """Each layer's share of the norms of the kept features."""
        norms = self.norms().detach().sum(1)
        return (norms / norms.sum()).tolist()
