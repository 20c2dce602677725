"""A batch of hidden states with its targets."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertvision.shapes import Bool, Float, Int, Num


@dataclass(frozen=True)
class StateBatch:
    """What heads read: some windows' states, padded to one length."""

    states: Float[Tensor, "L B T H"]
    mask: Bool[Tensor, "B T"]
    """True on real tokens."""
    targets: Num[Tensor, "B K"]
    """(B, K) per window: the start and end token of a span (K = 2), a class or a score (K = 1). Or (B, T) per token,
    -1 on pads."""
    windows: NDArray[np.int64]
    """(B,) numbers of the windows."""
    bounds: Int[Tensor, "B 2"]
    """First token of the paragraph and one past its last."""
    pooled: Float[Tensor, "B H"] | None = None
    """The pooler's output, where the encoder has a pooler and its last state is read."""
    cls: Int[Tensor, " B"] | None = None
    """Position of each window's classification token; None: it is the first token."""

    @property
    def first(self) -> Float[Tensor, "L B H"]:
        """All states of the classification token."""
        if self.cls is None:
            return self.states[:, :, 0]
        return self.states[:, torch.arange(len(self.cls), device=self.cls.device), self.cls]

    @property
    def context(self) -> Bool[Tensor, "B T"]:
        """True on the tokens of the paragraph: not on the question, special tokens and pads."""
        position = torch.arange(self.mask.shape[1], device=self.mask.device)
        return (position >= self.bounds[:, :1]) & (position < self.bounds[:, 1:])

    def rows(self, rows: slice) -> "StateBatch":
        """Some of its windows."""
        return StateBatch(
            states=self.states[:, rows],
            mask=self.mask[rows],
            targets=self.targets[rows],
            windows=self.windows[rows],
            bounds=self.bounds[rows],
            pooled=None if self.pooled is None else self.pooled[rows],
            cls=None if self.cls is None else self.cls[rows],
        )
