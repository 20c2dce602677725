"""States straight from the encoder: nothing is kept, every pass costs a forward pass."""

from collections import deque
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertvision.data.windows import Windows
from bertvision.encoder.batch import collate
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.timing import Clock
from bertvision.feed.batches import Place, StateBatch, call_tokens, num_batches, widths
from bertvision.feed.plan import HEAD_RUN, cut_by_tokens, epoch_batches, group_calls
from bertvision.shapes import Float

__all__ = ["LiveFeed"]

_UNREAD = 32
"""Calls whose time is not read yet: reading it at once would wait for the device."""


class LiveFeed:
    """Runs the encoder on large calls and cuts them into the heads' batches."""

    def __init__(self, encoder: Encoder, windows: Windows, *, tokens_per_call: int = 0) -> None:
        self.encoder, self.windows = encoder, windows
        self.tokens_per_call = call_tokens(encoder, tokens_per_call)
        self._seconds = 0.0
        self._clocks: deque[Clock] = deque()
        self.labels = torch.from_numpy(windows.labels.astype(np.int64)).to(encoder.device)
        self.bounds = torch.from_numpy(windows.context.astype(np.int64)).to(encoder.device)
        self.widths = widths(encoder, windows.lengths)
        self.lengths = torch.from_numpy(windows.lengths).to(encoder.device)

    @property
    def encode_seconds(self) -> float:
        """Time the encoder took so far; on a GPU this waits for it."""
        return self._seconds + sum(clock.seconds() for clock in self._clocks)

    def num_batches(self, batch_size: int) -> int:
        return num_batches(self.windows, batch_size)

    def epoch(
        self, epoch: int, *, batch_size: int, seed: int, start: int = 0, place: Place | None = None
    ) -> Iterator[StateBatch]:
        batches = epoch_batches(self.windows.lengths, batch_size, seed=seed, epoch=epoch, run=HEAD_RUN)
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
                    shape = (len(layers), len(batch), int(self.widths[batch].max()), self.encoder.hidden)
                    states = place(shape, layers[0].dtype) if place else None
                    states = layers[0].new_empty(shape) if states is None else states
                _fill(states, [layer[row : row + len(piece)] for layer in layers], done)
                row, done = row + len(piece), done + len(piece)
                if done == len(batch):
                    yield self._batch(states, batch)
                    states = None
            del layers  # before the next call makes its own

    def walk(self) -> Iterator[StateBatch]:
        for call in cut_by_tokens(self.widths, self.tokens_per_call):
            yield self._batch(torch.stack(self._encode(call)), call)

    def _encode(self, indices: NDArray[np.int64]) -> tuple[Float[Tensor, "B T H"], ...]:
        """One encoder call."""
        clock = Clock(self.encoder.device)
        tokens = collate(
            self.windows,
            indices,
            pad_id=self.encoder.pad_id,
            device=self.encoder.device,
            width=int(self.widths[indices].max()),
        )
        layers = self.encoder.layer_states(tokens)
        clock.stop()
        self._clocks.append(clock)
        if len(self._clocks) > _UNREAD:  # by now the device is through with it
            self._seconds += self._clocks.popleft().seconds()
        return layers

    def _batch(self, states: Float[Tensor, "L B T H"], indices: NDArray[np.int64]) -> StateBatch:
        chosen = torch.from_numpy(indices).to(self.labels.device, non_blocking=True)
        position = torch.arange(states.shape[2], device=states.device)
        return StateBatch(
            states=states,
            mask=position < self.lengths[chosen][:, None],
            labels=self.labels[chosen],
            windows=indices,
            bounds=self.bounds[chosen],
        )


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
