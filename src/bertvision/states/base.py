"""`States`: batches of hidden states with their targets, the same whichever source is behind them.

    LiveStates      encodes in every pass
    MemoryStates    encodes once, then reads from memory
    StoredStates    reads a store on the disk (stored.py)

A batch has as many states as `layers` names, of all tokens or of the classification token alone. Which windows share a
batch follows from the whole windows, whatever is read: the encoder always sees whole windows.
"""

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertvision.console import progress
from bertvision.data.windows import Windows, ragged_offsets
from bertvision.encoder.batch import collate, padded_positions
from bertvision.encoder.device import Clock
from bertvision.encoder.encoder import Encoder
from bertvision.errors import EncoderError
from bertvision.shapes import Bool, Float, Int, Num
from bertvision.states.config import EVERYTHING, Selection
from bertvision.states.plan import cut_by_tokens, group_calls, head_batches

_GPU_STATES = 2e9
"""Bytes of states one encoder call on a GPU may produce."""
_GPU_WIDTH = 32
"""Batches on a GPU are padded to multiples of this: few shapes mean few graphs to capture."""
_UNREAD = 32
"""Calls whose time is not read yet: reading it at once would wait for the device."""

Memory = Callable[[tuple[int, ...], torch.dtype], Tensor]
"""Memory for states of a shape (L, B, T, H)."""
Place = Callable[[tuple[int, ...], torch.dtype], Tensor | None]
"""The same of the caller; None: the source allocates its own."""


@dataclass(frozen=True)
class StateBatch:
    """What heads read: some windows' states, padded to one length."""

    states: Float[Tensor, "L B T H"]
    mask: Bool[Tensor, "B T"]
    """True on real tokens."""
    targets: Num[Tensor, "B K"]
    """The start and end token of a span (K = 2), a class or a score (K = 1)."""
    windows: NDArray[np.int64]  # (B,)
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
        cut: dict[str, Any] = {n: None if value is None else value[rows] for n, value in vars(self).items()}
        cut["states"] = self.states[:, rows]
        return StateBatch(**cut)


@dataclass(frozen=True)
class StateTimes:
    """Seconds that states cost."""

    encode: float = 0.0
    read: float = 0.0  # by the threads that read a store, most of it while heads are computed
    wait: float = 0.0  # for those threads
    write: float = 0.0  # of a store, beside the encoder's work


class States(ABC):
    """Batches of the hidden states of some windows; a batch is valid until the next one is asked for."""

    _ahead: ClassVar[int] = 0
    """Batches a source works on before they are asked for."""

    def __init__(
        self,
        encoder: Encoder,
        windows: Windows,
        *,
        selection: Selection = EVERYTHING,
        tokens_per_call: int = 0,
    ) -> None:
        """`tokens_per_call` counts pads, too; 0 = what suits the device."""
        self.encoder, self.windows, self.selection = encoder, windows, selection
        self.layers = selection.numbers(encoder.num_states)
        self.tokens_per_call = call_tokens(encoder, tokens_per_call)
        self.lengths = selection.lengths(windows)
        """(W,) tokens of each window in a batch."""
        self._offsets = ragged_offsets(self.lengths)
        self._cls_only = selection.positions == "cls"
        device, null, bounds = encoder.device, windows.null.astype(np.int64), windows.context.astype(np.int64)
        self._targets = target_tensor(windows.labels, device)
        self._lengths = torch.from_numpy(self.lengths).to(device)
        self._cls = None
        if self._cls_only:
            bounds = (null[:, None] < bounds).astype(np.int64)  # tokens that are left before them
        elif null.any():
            self._cls = torch.from_numpy(null).to(device)
        self._bounds = torch.from_numpy(bounds).to(device)
        last = encoder.num_states - 1
        self._pooled = self.layers.index(last) if encoder.has_pooler and last in self.layers else None
        self.widths = widths(encoder, windows.lengths)
        """(W,) how wide an encoder call is whose longest window this is."""
        self._batch_widths = widths(encoder, self.lengths)
        self._seconds = 0.0
        self._clocks: list[Clock] = []

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
        self, batches: Sequence[NDArray[np.int64]], *, start: int = 0, place: Place | None = None
    ) -> Iterator[StateBatch]:
        """The windows of each batch from number `start` on, in memory of the caller where `place` gives some."""
        # Fresh memory of the CPU costs more than filling it; a GPU's allocator keeps what is freed.
        blocks = deque([torch.empty(0, dtype=torch.uint8)] * (self._ahead + 1))

        def memory(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            found = place(shape, dtype) if place else None
            if found is not None:
                return found
            if self.encoder.device.type != "cpu":
                return torch.empty(shape, dtype=dtype, device=self.encoder.device)
            block, nbytes = blocks.popleft(), math.prod(shape) * dtype.itemsize
            if len(block) < nbytes:
                block = torch.empty(nbytes, dtype=torch.uint8)
            blocks.append(block)
            return block[:nbytes].view(dtype).view(shape)

        states = self._states(batches, start, memory)
        for indices in batches[start:]:
            yield self.batch(next(states), indices)

    def walk(self) -> Iterator[StateBatch]:
        return self.stream(cut_by_tokens(self.widths, self.tokens_per_call))

    def epoch(self, epoch: int, *, batch_size: int, seed: int, **how: Any) -> Iterator[StateBatch]:
        """Shuffled training batches of one epoch, as `stream` returns them."""
        return self.stream(head_batches(self.windows.lengths, batch_size, seed=seed, epoch=epoch), **how)

    def num_batches(self, batch_size: int) -> int:
        return -(-len(self.windows) // batch_size)

    def batch(self, states: Float[Tensor, "L B T H"], indices: NDArray[np.int64]) -> StateBatch:
        chosen = torch.from_numpy(indices).to(self._bounds.device, non_blocking=True)
        mask = torch.arange(states.shape[2], device=states.device) < self._lengths[chosen][:, None]
        cls = None if self._cls is None else self._cls[chosen]
        pooled = None if self._pooled is None else self.encoder.pooled(states[self._pooled], cls)
        return StateBatch(states, mask, self._targets[chosen], indices, self._bounds[chosen], pooled, cls)

    # ---- the encoder

    def read(self, indices: NDArray[np.int64]) -> StateBatch:
        return self.batch(torch.stack(self._encode(indices)), indices)

    def _shape(self, indices: NDArray[np.int64]) -> tuple[int, int, int, int]:
        return (len(self.layers), len(indices), int(self._batch_widths[indices].max()), self.encoder.hidden)

    def _encode(self, indices: NDArray[np.int64]) -> tuple[Float[Tensor, "B T H"], ...]:
        """One encoder call: the selected layers of the selected tokens."""
        clock = Clock(self.encoder.device)
        width, device = int(self.widths[indices].max()), self.encoder.device
        tokens = collate(self.windows, indices, pad_id=self.encoder.pad_id, device=device, width=width)
        states = self.encoder.layer_states(tokens)
        clock.stop()
        self._clocks.append(clock)
        if len(self._clocks) > _UNREAD:  # by now the device is through with it
            self._seconds += self._clocks.pop(0).seconds()
        chosen = tuple(states[number] for number in self.layers)
        if self._cls_only:
            rows = torch.arange(len(indices), device=device)
            cls = torch.from_numpy(self.windows.null[indices]).to(device, torch.int64, non_blocking=True)
            chosen = tuple(layer[rows, cls][:, None] for layer in chosen)
        return chosen


class LiveStates(States):
    """Runs the encoder on large calls and cuts them into the heads' batches."""

    def _states(
        self, batches: Sequence[NDArray[np.int64]], start: int, memory: Memory
    ) -> Iterator[Float[Tensor, "L B T H"]]:
        states: Tensor | None = None  # of the batch being filled
        done = 0  # rows of it that are there
        # Calls are cut from the whole epoch, so that a resumed one pads (and rounds) exactly as the first did.
        for call in group_calls(batches, self.widths, self.tokens_per_call):
            needed = [(number, piece) for number, piece in call if number >= start]
            if not needed:
                continue
            layers = self._encode(np.concatenate([piece for _, piece in call]))
            row = sum(len(piece) for number, piece in call if number < start)
            for number, piece in needed:
                if states is None:
                    states, done = memory(self._shape(batches[number]), layers[0].dtype), 0
                _fill(states, [layer[row : row + len(piece)] for layer in layers], done)
                row, done = row + len(piece), done + len(piece)
                if done == len(batches[number]):
                    yield states
                    states = None
            del layers  # before the next call makes its own

    def walk(self) -> Iterator[StateBatch]:
        for call in cut_by_tokens(self.widths, self.tokens_per_call):
            yield self.read(call)


def _fill(states: Float[Tensor, "L B T H"], layers: list[Float[Tensor, "b t H"]], row: int) -> None:
    """Write a call's rows into a batch from `row` on; where the call was narrower, pads are zero."""
    rows, width = layers[0].shape[0], min(layers[0].shape[1], states.shape[2])
    target = states[:, row : row + rows]
    if rows == states.shape[1] and width == states.shape[2]:
        torch.stack([layer[:, :width] for layer in layers], out=states)
        return
    torch._foreach_copy_(  # pyright: ignore[reportPrivateImportUsage]
        list(target[:, :, :width].unbind()), [layer[:, :width] for layer in layers]
    )
    target[:, :, width:] = 0


class MemoryStates(States):
    """Encodes all windows when built and keeps their states in half precision, without pads, as one tensor (L, N, H).

    N are all tokens that are read, so that a batch is one gather. Even the first epoch reads the rounded copy: a run
    that was killed and encodes anew computes the same numbers.
    """

    def __init__(self, encoder: Encoder, windows: Windows, *, label: str = "encode", **options: Any) -> None:
        """`options` are those of `States`; `label` names the progress bar."""
        super().__init__(encoder, windows, **options)
        # States that the encoder computes in bf16 are kept as they are.
        dtype = torch.bfloat16 if encoder.state_dtype == torch.bfloat16 else torch.float16
        shape = (len(self.layers), int(self.lengths.sum()), encoder.hidden)
        self.store = torch.empty(shape, dtype=dtype, device=encoder.device)  # (L, N, H)
        with progress(label, windows.num_tokens, unit="tokens") as bar:
            for call in cut_by_tokens(self.widths, self.tokens_per_call):
                batch = self.read(call)
                states = batch.states[:, batch.mask].to(dtype)  # (L, real tokens, H)
                if not torch.isfinite(states).all():
                    raise EncoderError(
                        f"{encoder.name} has states beyond half precision: use --states.source live (encode in every "
                        "pass)"
                    )
                flat, mask = padded_positions(self._offsets, call, width=batch.mask.shape[1])
                self.store[:, torch.from_numpy(flat[mask]).to(encoder.device)] = states
                bar.update(int(windows.lengths[call].sum()))

    def _states(
        self, batches: Sequence[NDArray[np.int64]], start: int, memory: Memory
    ) -> Iterator[Float[Tensor, "L B T H"]]:
        for indices in batches[start:]:
            yield self._take(indices, memory)  # under no name: the caller frees it after its step

    def _take(self, indices: NDArray[np.int64], memory: Memory) -> Float[Tensor, "L B T H"]:
        # Heads are float32; autocast, where it is on, picks its own precision from half.
        dtype = torch.float32 if self.encoder.precision == "fp32" else self.store.dtype
        shape = self._shape(indices)
        flat, _ = padded_positions(self._offsets, indices, width=shape[2])
        index = torch.from_numpy(flat.reshape(-1)).to(self.store.device, non_blocking=True)
        states = memory(shape, dtype)
        rows = states.view(shape[0], -1, shape[3])
        if dtype == self.store.dtype:
            torch.index_select(self.store, 1, index, out=rows)
        else:
            rows.copy_(torch.index_select(self.store, 1, index))
        return states


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
