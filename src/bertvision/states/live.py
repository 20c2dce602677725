"""States straight from the encoder: nothing is kept, every pass costs a forward pass.

Where only some layers or positions are read, the encoder still sees whole windows; what it gives is cut on the way
into the batch, without a copy in between.
"""

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertvision.data.kept import keep_tokens, kept_tokens
from bertvision.data.windows import Windows
from bertvision.encoder.batch import collate, padded_positions
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.timing import Clock
from bertvision.shapes import Float
from bertvision.states.base import Place, States, StateTimes, call_tokens, label_tensor, pooled_place, widths
from bertvision.states.batch import StateBatch
from bertvision.states.config import EVERYTHING, Selection
from bertvision.states.plan import cut_by_tokens, group_calls

__all__ = ["LiveStates"]

_UNREAD = 32
"""Calls whose time is not read yet: reading it at once would wait for the device."""


class LiveStates(States):
    """Runs the encoder on large calls and cuts them into the heads' batches."""

    def __init__(
        self,
        encoder: Encoder,
        windows: Windows,
        *,
        tokens_per_call: int = 0,
        selection: Selection = EVERYTHING,
    ) -> None:
        self.encoder, self.windows, self.selection = encoder, windows, selection
        self.layers = selection.numbers(encoder.num_states)
        self.kept = windows
        self._positions: NDArray[np.int64] | None = None  # (kept tokens,) where each stands in its window
        if selection.positions != "all":
            mask = kept_tokens(windows, selection.positions)
            self.kept = keep_tokens(windows, mask)
            self._positions = np.flatnonzero(mask) - np.repeat(windows.offsets[:-1], self.kept.lengths)
        self.tokens_per_call = call_tokens(encoder, tokens_per_call)
        self._seconds = 0.0
        self._clocks: deque[Clock] = deque()
        self.labels = label_tensor(self.kept, encoder.device)
        self._pooled_place = pooled_place(encoder, windows, self.layers)
        self.bounds = torch.from_numpy(self.kept.context.astype(np.int64)).to(encoder.device)
        self.lengths = torch.from_numpy(self.kept.lengths).to(encoder.device)
        self.widths = widths(encoder, windows.lengths)
        """(W,) how wide an encoder call is whose longest window this is."""
        self.kept_widths = self.widths if self.kept is windows else widths(encoder, self.kept.lengths)
        """(W,) how wide a batch is whose longest window this is."""

    @property
    def times(self) -> StateTimes:
        """On a GPU this waits for the encoder."""
        return StateTimes(encode=self._seconds + sum(clock.seconds() for clock in self._clocks))

    def stream(
        self,
        batches: Sequence[NDArray[np.int64]],
        *,
        start: int = 0,
        place: Place | None = None,
        reuse: bool = False,
    ) -> Iterator[StateBatch]:
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
                batch = batches[number]
                if states is None:
                    done = 0
                    shape = self._shape(batch)
                    states = place(shape, layers[0].dtype) if place else None
                    states = layers[0].new_empty(shape) if states is None else states
                if self._positions is None:
                    _fill(states, [layer[row : row + len(piece)] for layer in layers], done)
                else:
                    self._gather(states[:, done : done + len(piece)], layers, piece, row)
                row, done = row + len(piece), done + len(piece)
                if done == len(batch):
                    yield self.batch(states, batch)
                    states = None
            del layers  # before the next call makes its own

    def walk(self, *, reuse: bool = False) -> Iterator[StateBatch]:
        for call in cut_by_tokens(self.widths, self.tokens_per_call):
            yield self.read(call)

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
        return (len(self.layers), len(indices), int(self.kept_widths[indices].max()), self.encoder.hidden)

    def _encode(self, indices: NDArray[np.int64]) -> tuple[Float[Tensor, "B T H"], ...]:
        """One encoder call: the layers that are read, of all tokens."""
        clock = Clock(self.encoder.device)
        tokens = collate(
            self.windows,
            indices,
            pad_id=self.encoder.pad_id,
            device=self.encoder.device,
            width=int(self.widths[indices].max()),
        )
        states = self.encoder.layer_states(tokens)
        clock.stop()
        self._clocks.append(clock)
        if len(self._clocks) > _UNREAD:  # by now the device is through with it
            self._seconds += self._clocks.popleft().seconds()
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

    def batch(self, states: Float[Tensor, "L B T H"], indices: NDArray[np.int64]) -> StateBatch:
        chosen = torch.from_numpy(indices).to(self.labels.device, non_blocking=True)
        position = torch.arange(states.shape[2], device=states.device)
        return StateBatch(
            states=states,
            mask=position < self.lengths[chosen][:, None],
            targets=self.labels[chosen],
            windows=indices,
            bounds=self.bounds[chosen],
            pooled=self.pooled(states),
        )

    def pooled(self, states: Float[Tensor, "L B T H"]) -> Float[Tensor, "B H"] | None:
        """The pooler's vectors of a batch, where heads read them."""
        return None if self._pooled_place is None else self.encoder.pooled(states[self._pooled_place])


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
