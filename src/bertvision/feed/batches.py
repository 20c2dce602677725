"""What every feed hands out, whichever source is behind it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertvision.data.kept import Positions
from bertvision.data.windows import Windows
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ConfigError
from bertvision.feed.plan import head_batches
from bertvision.feed.reading import Reading
from bertvision.shapes import Bool, Float, Int, Num

__all__ = [
    "Feed",
    "FeedConfig",
    "FeedTimes",
    "Place",
    "SourceConfig",
    "StateBatch",
    "call_tokens",
    "label_tensor",
    "pooled_place",
    "widths",
]

_GPU_STATES = 2e9
"""Bytes of states one encoder call on a GPU may give."""
_GPU_WIDTH = 32
"""Batches on a GPU are padded to multiples of this: few shapes mean few graphs to capture."""


@dataclass(frozen=True)
class SourceConfig:
    """Where hidden states come from."""

    source: Literal["auto", "live", "memory", "stored"] = "auto"
    """live: encode in every pass; memory: encode once and keep them; stored: keep them on the disk for this run and
    the next; auto: measure, then take the fastest."""
    memory_gb: float = 6.0
    """Most GB of states (in half precision) that auto keeps in memory."""
    store: str = ""
    """Folder or fsspec address (s3://..., gs://...) of stored states; by default ~/.cache/bertvision/states."""
    dtype: Literal["auto", "fp32", "bf16", "fp16", "int8"] = "auto"
    """How states are stored; auto: half precision. int8 has a scale for each token and layer."""
    tokens_per_call: int = 0
    """Tokens the encoder reads in one call, pads included; 0 = 4,096 on a CPU, and on a GPU as many as give it
    enough to do."""

    def __post_init__(self) -> None:
        if self.tokens_per_call < 0:
            raise ConfigError(f"--feed.tokens-per-call must not be negative, not {self.tokens_per_call}")
        if not self.memory_gb >= 0:
            raise ConfigError(f"--feed.memory-gb must not be negative, not {self.memory_gb}")


@dataclass(frozen=True)
class FeedConfig(SourceConfig):
    """Where hidden states come from, and which of them heads read."""

    layers: tuple[int, ...] = ()
    """Hidden states heads read, 0 = embedding output, -1 = last layer; none = all."""
    positions: Positions = "all"
    """Tokens whose states heads read: all, the one that stands for no answer (cls), or that one and the
    paragraph's (context)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.reading  # refuses unknown positions

    @classmethod
    def of(cls, source: SourceConfig, reading: Reading) -> "FeedConfig":
        """This reading from that source."""
        names = [field.name for field in fields(SourceConfig)]
        values: dict[str, Any] = {name: getattr(source, name) for name in names}
        return cls(**values, layers=reading.layers, positions=reading.positions)

    @property
    def reading(self) -> Reading:
        """Which states heads read."""
        return Reading(self.layers, self.positions)


@dataclass(frozen=True)
class StateBatch:
    states: Float[Tensor, "L B T H"]
    mask: Bool[Tensor, "B T"]
    labels: Num[Tensor, "B K"]
    """Start and end token of a span (K = 2); a class or a score (K = 1)."""
    windows: NDArray[np.int64]
    """(B,) which windows these are."""
    bounds: Int[Tensor, "B 2"]
    """First token of the paragraph and one past its last."""
    pooled: Float[Tensor, "B H"] | None = None
    """The pooler's output, where the encoder has one and the labels are of whole windows."""
    cls: Int[Tensor, " B"] | None = None
    """Position of each window's classification token; None: it is the first token."""

    @property
    def first(self) -> Float[Tensor, "L B H"]:
        """All states of the classification token."""
        if self.cls is None:
            return self.states[:, :, 0]
        return self.states[:, torch.arange(len(self.cls), device=self.cls.device), self.cls]

    def rows(self, rows: slice) -> "StateBatch":
        """Some of its windows."""
        return StateBatch(
            states=self.states[:, rows],
            mask=self.mask[rows],
            labels=self.labels[rows],
            windows=self.windows[rows],
            bounds=self.bounds[rows],
            pooled=None if self.pooled is None else self.pooled[rows],
            cls=None if self.cls is None else self.cls[rows],
        )

    @property
    def context(self) -> Bool[Tensor, "B T"]:
        """True on the tokens of the paragraph: not on the question, special tokens and pads."""
        position = torch.arange(self.mask.shape[1], device=self.mask.device)
        return (position >= self.bounds[:, :1]) & (position < self.bounds[:, 1:])


@dataclass(frozen=True)
class FeedTimes:
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
"""Memory for states of a shape (L, B, T, H), valid until the next batch; None = a feed makes its own."""


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


class Feed(ABC):
    """Batches of states with their labels; the same batches whichever source is behind them.

    A batch has as many states as `layers` names and as many tokens as its windows have in `kept`; its mask, labels
    and bounds count in `kept`. Which windows share a batch follows from the whole windows, whatever is read.
    """

    encoder: Encoder
    windows: Windows
    """The whole windows: what logits and answers count in."""
    kept: Windows
    """The same with only the tokens whose states are handed out; the same object where that is all of them."""
    reading: Reading
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
    def times(self) -> FeedTimes:
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
