"""What all sources of states have in common."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertvision.data.windows import Windows
from bertvision.encoder.encoder import Encoder
from bertvision.shapes import Num
from bertvision.states.batch import StateBatch
from bertvision.states.config import Selection
from bertvision.states.plan import head_batches

__all__ = ["Place", "StateTimes", "States", "call_tokens", "label_tensor", "pooled_place", "widths"]

_GPU_STATES = 2e9
"""Bytes of states one encoder call on a GPU may give."""
_GPU_WIDTH = 32
"""Batches on a GPU are padded to multiples of this: few shapes mean few graphs to capture."""


@dataclass(frozen=True)
class StateTimes:
    """Seconds that states cost."""

    encode: float = 0.0
    """The encoder's own work."""
    read: float = 0.0
    """Work of the threads that read a store, most of it while heads are computed."""
    wait: float = 0.0
    """Time the heads waited for those threads."""
    write: float = 0.0
    """Time a store took to be written beside the encoder's work."""


Place = Callable[[tuple[int, ...], torch.dtype], Tensor | None]
"""Memory for states of a shape (L, B, T, H), valid until the next batch; None = the source makes its own."""


def label_tensor(windows: Windows, device: torch.device) -> Num[Tensor, "W K"]:
    """The labels of all windows on a device."""
    labels = windows.labels
    wide = labels.astype(np.int64 if np.issubdtype(labels.dtype, np.integer) else np.float32)
    return torch.from_numpy(wide).to(device)


def pooled_place(encoder: Encoder, windows: Windows, layers: Sequence[int]) -> int | None:
    """Which of the states that are read the pooler takes; None where no head asks for its vector.

    Span heads do not; and where the last state is not read, there is nothing to pool.
    """
    last = encoder.num_states - 1
    if windows.labels.shape[1] == 2 or not encoder.has_pooler or last not in layers:
        return None
    return list(layers).index(last)


def call_tokens(encoder: Encoder, configured: int) -> int:
    """Tokens of one encoder call: as configured, or what suits the device."""
    if configured:
        return configured
    if encoder.device.type == "cpu":
        return 4096
    # A small encoder needs many tokens in a call, or the time goes into launching its kernels.
    fitting = int(_GPU_STATES / (encoder.num_states * encoder.hidden * 4))
    return max(16_384, min(131_072, fitting))


def widths(encoder: Encoder, lengths: NDArray[np.int64], *, multiple: int = _GPU_WIDTH) -> NDArray[np.int64]:
    """(W,) how wide a batch is whose longest window this is; never wider than the longest of all."""
    if encoder.device.type != "cuda":
        return lengths
    return np.minimum(-(-lengths // multiple) * multiple, lengths.max(initial=1))


class States(ABC):
    """Batches of states with their labels; the same batches whichever source is behind them.

    A batch has as many states as `layers` names and as many tokens as its windows have in `kept`; its mask, labels
    and bounds count in `kept`. Which windows share a batch follows from the whole windows, whatever is read.
    """

    encoder: Encoder
    windows: Windows
    """The whole windows: what logits and answers count in."""
    kept: Windows
    """The same with only the tokens whose states are handed out; the same object where that is all of them."""
    selection: Selection
    """Which states are handed out."""
    layers: tuple[int, ...]
    """Their numbers in the encoder, in the order of the batches."""

    @property
    def has_pooled(self) -> bool:
        """Whether batches bring the pooler's vectors."""
        return pooled_place(self.encoder, self.windows, self.layers) is not None

    @property
    def num_states(self) -> int:
        """States handed out for a token."""
        return len(self.layers)

    @property
    @abstractmethod
    def times(self) -> StateTimes:
        """What the states cost so far."""

    @abstractmethod
    def stream(
        self,
        batches: Sequence[NDArray[np.int64]],
        *,
        start: int = 0,
        place: Place | None = None,
        reuse: bool = False,
    ) -> Iterator[StateBatch]:
        """The windows of each batch, from batch `start` on, written where `place` says.

        `reuse` promises that a batch is let go of before the next is asked for, so that its memory can be used again.
        """

    @abstractmethod
    def walk(self, *, reuse: bool = False) -> Iterator[StateBatch]:
        """Every window once, for evaluation."""

    def epoch(self, epoch: int, *, batch_size: int, seed: int, **how: Any) -> Iterator[StateBatch]:
        """Shuffled training batches of one epoch, handed out as `stream` does."""
        return self.stream(head_batches(self.windows.lengths, batch_size, seed=seed, epoch=epoch), **how)

    def num_batches(self, batch_size: int) -> int:
        """Batches in an epoch, the last one perhaps smaller."""
        return -(-len(self.windows) // batch_size)
