"""`States`: batches of hidden states with their targets, the same whichever source is behind them.

A source only implements `_states`, which yields the states of one batch after another. All that is the same for every
source lives here, and so does one encoder call (`read`).

A batch has as many states as `layers` names and as many tokens as its windows have in `kept`; mask, bounds and
positions count in `kept`. Which windows share a batch follows from the whole windows, whatever is read.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertvision.data.windows import Windows, keep_tokens, kept_tokens, labels_are_positions
from bertvision.encoder.batch import collate, padded_positions
from bertvision.encoder.device import Clock
from bertvision.encoder.encoder import Encoder
from bertvision.shapes import Float, Num
from bertvision.states.batch import StateBatch
from bertvision.states.config import EVERYTHING, Selection
from bertvision.states.plan import cut_by_tokens, head_batches

_GPU_STATES = 2e9
"""Bytes of states one encoder call on a GPU may produce."""
_GPU_WIDTH = 32
"""Batches on a GPU are padded to multiples of this: few shapes mean few graphs to capture."""
_UNREAD = 32
"""Calls whose time is not read yet: reading it at once would wait for the device."""

Place = Callable[[tuple[int, ...], torch.dtype], Tensor | None]
"""Memory for states of a shape (L, B, T, H), valid until the next batch; None = the source allocates its own."""
Memory = Callable[[tuple[int, ...], torch.dtype], Tensor]
"""Memory for states of a shape (L, B, T, H)."""


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
    """Time spent writing a store, beside the encoder's work."""


class States(ABC):
    """Batches of the hidden states of some windows."""

    _ahead: ClassVar[int] = 0
    """Batches a source works on before they are asked for."""

    def __init__(
        self,
        encoder: Encoder,
        windows: Windows,
        *,
        selection: Selection = EVERYTHING,
        targets: NDArray[Any] | None = None,
        tokens_per_call: int = 0,
    ) -> None:
        """
        Args:
            selection: Layers and positions that batches hold.
            targets: (W, K) per window, or flat (N,) per token of `windows`; by default the labels of the windows.
                Per window they are handed out as they are: positions of tokens must count in `kept`.
            tokens_per_call: Tokens of one encoder call, pads included; 0 = what suits the device.
        """
        self.encoder, self.windows, self.selection = encoder, windows, selection
        self.layers = selection.numbers(encoder.num_states)
        """Numbers of the states in the encoder, in the order of the batches."""
        self.tokens_per_call = call_tokens(encoder, tokens_per_call)
        if targets is not None and len(targets) != (len(windows) if targets.ndim > 1 else windows.num_tokens):
            raise ValueError(
                f"{len(targets)} targets for {len(windows)} windows of {windows.num_tokens} tokens"
            )
        self.kept = windows
        """The windows with only the tokens whose states are read; the same object where that is all of them."""
        self._positions: NDArray[np.int64] | None = None  # (kept tokens,) where each stands in its window
        if selection.positions != "all":
            mask = kept_tokens(windows, selection.positions)
            spans = targets is None and labels_are_positions(windows)
            self.kept = keep_tokens(windows, mask, spans=spans)
            self._positions = np.flatnonzero(mask) - np.repeat(windows.offsets[:-1], self.kept.lengths)
            targets = targets[mask] if targets is not None and targets.ndim == 1 else targets
        device = encoder.device
        targets = self.kept.labels if targets is None else targets
        self._targets = target_tensor(targets, device)
        self._bounds = torch.from_numpy(self.kept.context.astype(np.int64)).to(device)
        self._lengths = torch.from_numpy(self.kept.lengths).to(device)
        null = self.kept.null.astype(np.int64)
        self._cls = torch.from_numpy(null).to(device) if null.any() else None
        last = encoder.num_states - 1
        self._pooled = self.layers.index(last) if encoder.has_pooler and last in self.layers else None
        self.widths = widths(encoder, windows.lengths)
        """(W,) how wide an encoder call is whose longest window this is."""
        self._kept_widths = self.widths if self.kept is windows else widths(encoder, self.kept.lengths)
        self._seconds = 0.0
        self._clocks: list[Clock] = []

    @property
    def has_pooled(self) -> bool:
        """Whether batches hold the pooler's vectors."""
        return self._pooled is not None

    @property
    def times(self) -> StateTimes:
        """What the states cost so far; on a GPU this waits for the encoder."""
        return StateTimes(encode=self._seconds + sum(clock.seconds() for clock in self._clocks))

    # ---- batches

    @abstractmethod
    def _states(
        self, batches: Sequence[NDArray[np.int64]], start: int, memory: Memory
    ) -> Iterator[Float[Tensor, "L B T H"]]:
        """The states of each batch from number `start` on, in tensors that `memory` returns."""

    def stream(
        self,
        batches: Sequence[NDArray[np.int64]],
        *,
        start: int = 0,
        place: Place | None = None,
        reuse: bool = False,
    ) -> Iterator[StateBatch]:
        """The windows of each batch from number `start` on.

        Args:
            place: Says where states are written, where the caller has memory for them.
            reuse: The caller drops a batch before it asks for the next, so that its memory can be used again.
        """
        # Fresh memory of the CPU costs more than filling it; a GPU's allocator keeps what is freed.
        ring = _Ring(self._ahead + 1) if reuse and self.encoder.device.type == "cpu" else None

        def memory(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            found = place(shape, dtype) if place else None
            if found is None and ring is not None:
                return ring.take(shape, dtype)
            return torch.empty(shape, dtype=dtype, device=self.encoder.device) if found is None else found

        states = self._states(batches, start, memory)
        for indices in batches[start:]:
            yield self.batch(next(states), indices)

    def walk(self, *, reuse: bool = False) -> Iterator[StateBatch]:
        """Every window once, for evaluation."""
        return self.stream(cut_by_tokens(self.widths, self.tokens_per_call), reuse=reuse)

    def epoch(self, epoch: int, *, batch_size: int, seed: int, **how: Any) -> Iterator[StateBatch]:
        """Shuffled training batches of one epoch, as `stream` returns them."""
        return self.stream(head_batches(self.windows.lengths, batch_size, seed=seed, epoch=epoch), **how)

    def num_batches(self, batch_size: int) -> int:
        """Batches in an epoch, the last one perhaps smaller."""
        return -(-len(self.windows) // batch_size)

    def batch(self, states: Float[Tensor, "L B T H"], indices: NDArray[np.int64]) -> StateBatch:
        """These states of the windows `indices`, with all that belongs to them."""
        chosen = torch.from_numpy(indices).to(self._bounds.device, non_blocking=True)
        mask = torch.arange(states.shape[2], device=states.device) < self._lengths[chosen][:, None]
        cls = None if self._cls is None else self._cls[chosen]
        targets = self._targets
        if targets.ndim == 1:
            flat, _ = padded_positions(self.kept, indices, width=states.shape[2])
            targets = targets[torch.from_numpy(flat).to(mask.device)].masked_fill(~mask, -1)
        else:
            targets = targets[chosen]
        pooled = None if self._pooled is None else self.encoder.pooled(states[self._pooled], cls)
        return StateBatch(states, mask, targets, indices, self._bounds[chosen], pooled, cls)

    # ---- the encoder

    def read(self, indices: NDArray[np.int64]) -> StateBatch:
        """One encoder call on exactly these windows."""
        layers = self._encode(indices)
        if self._positions is None:
            return self.batch(torch.stack(layers), indices)
        states = layers[0].new_empty(self._shape(indices))
        self._gather(states, layers, indices, 0)
        return self.batch(states, indices)

    def _shape(self, indices: NDArray[np.int64]) -> tuple[int, int, int, int]:
        """(L, B, T, H) of a batch of these windows."""
        return (len(self.layers), len(indices), int(self._kept_widths[indices].max()), self.encoder.hidden)

    def _encode(self, indices: NDArray[np.int64]) -> tuple[Float[Tensor, "B T H"], ...]:
        """One encoder call: the selected layers of all tokens."""
        clock = Clock(self.encoder.device)
        width, device = int(self.widths[indices].max()), self.encoder.device
        tokens = collate(self.windows, indices, pad_id=self.encoder.pad_id, device=device, width=width)
        states = self.encoder.layer_states(tokens)
        clock.stop()
        self._clocks.append(clock)
        if len(self._clocks) > _UNREAD:  # by now the device is through with it
            self._seconds += self._clocks.pop(0).seconds()
        return tuple(states[number] for number in self.layers)

    def _gather(
        self,
        target: Float[Tensor, "L b T H"],
        layers: Sequence[Float[Tensor, "B t H"]],
        indices: NDArray[np.int64],
        row: int,
    ) -> None:
        """Write the kept tokens of the windows `indices`, which begin at `row` of the call, into `target`."""
        assert self._positions is not None
        flat, _ = padded_positions(self.kept, indices, width=target.shape[2])
        rows = np.arange(row, row + len(indices))[:, None]
        source = rows * layers[0].shape[1] + self._positions[flat]  # (b, T) in the call's B * t tokens
        index = torch.from_numpy(source.reshape(-1)).to(target.device, non_blocking=True)
        for out, layer in zip(target, layers, strict=True):
            torch.index_select(layer.flatten(0, 1), 0, index, out=out.view(-1, out.shape[-1]))


class _Ring:
    """A few blocks of memory that are used one after the other, again and again."""

    def __init__(self, count: int) -> None:
        self._blocks = [torch.empty(0, dtype=torch.uint8)] * count
        self._next = 0

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        nbytes, i = math.prod(shape) * dtype.itemsize, self._next % len(self._blocks)
        self._next += 1
        if self._blocks[i].numel() < nbytes:
            self._blocks[i] = torch.empty(nbytes, dtype=torch.uint8)
        return self._blocks[i][:nbytes].view(dtype).view(shape)


def target_tensor(targets: NDArray[Any], device: torch.device) -> Num[Tensor, "W ..."]:
    """Targets on a device: whole numbers as int64, others as float32."""
    wide = targets.astype(np.int64 if np.issubdtype(targets.dtype, np.integer) else np.float32)
    return torch.from_numpy(wide).to(device)


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
