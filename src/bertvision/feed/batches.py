"""What every feed hands out, whichever source is behind it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertvision.data.windows import Windows
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ConfigError
from bertvision.shapes import Bool, Float, Int

__all__ = ["Feed", "FeedConfig", "StateBatch"]


@dataclass(frozen=True)
class FeedConfig:
    """Where hidden states come from."""

    memory_gb: float = 6.0
    """Keep states in memory when they fit in this many GB (half precision); otherwise encode in every pass."""
    tokens_per_call: int = 4096
    """Tokens the encoder reads in one call, pads included; more on a GPU."""

    def __post_init__(self) -> None:
        if self.tokens_per_call < 1:
            raise ConfigError(f"--feed.tokens-per-call must be at least 1, not {self.tokens_per_call}")
        if self.memory_gb < 0:
            raise ConfigError(f"--feed.memory-gb must not be negative, not {self.memory_gb}")


@dataclass(frozen=True)
class StateBatch:
    states: Float[Tensor, "L B T H"]
    mask: Bool[Tensor, "B T"]
    labels: Int[Tensor, "B 2"]
    windows: NDArray[np.int64]
    """(B,) which windows these are."""
    bounds: Int[Tensor, "B 2"]
    """First token of the paragraph and one past its last."""
    pooled: Float[Tensor, "B H"] | None = None
    """The pooler's output, where the encoder has one and the task reads it."""

    @property
    def context(self) -> Bool[Tensor, "B T"]:
        """True on the tokens of the paragraph: not on the question, special tokens and pads."""
        position = torch.arange(self.mask.shape[1], device=self.mask.device)
        return (position >= self.bounds[:, :1]) & (position < self.bounds[:, 1:])


class Feed(Protocol):
    """Batches of states with their labels; the same batches whichever source is behind them."""

    encoder: Encoder
    windows: Windows
    encode_seconds: float
    """Time the encoder took so far."""

    def epoch(self, epoch: int, *, batch_size: int, seed: int, start: int = 0) -> Iterator[StateBatch]:
        """Shuffled training batches of one epoch, from batch `start` on."""
        ...

    def walk(self) -> Iterator[StateBatch]:
        """Every window once, for evaluation."""
        ...

    def num_batches(self, batch_size: int) -> int:
        """Batches in an epoch."""
        ...
