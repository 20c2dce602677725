"""States straight from the encoder: nothing is kept, every pass costs a forward pass."""

import time
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertvision.data.windows import Windows
from bertvision.encoder.batch import collate
from bertvision.encoder.encoder import Encoder
from bertvision.feed.batches import Place, StateBatch, batch_width, call_tokens, num_batches
from bertvision.feed.plan import HEAD_RUN, cut_by_tokens, epoch_batches, group_calls
from bertvision.shapes import Float

__all__ = ["LiveFeed"]


class LiveFeed:
    """Runs the encoder on large calls and cuts them into the heads' batches."""

    def __init__(self, encoder: Encoder, windows: Windows, *, tokens_per_call: int = 0) -> None:
        self.encoder, self.windows = encoder, windows
        self.tokens_per_call = call_tokens(encoder, tokens_per_call)
        self.encode_seconds = 0.0
        self.labels = torch.from_numpy(windows.labels.astype(np.int64)).to(encoder.device)
        self.bounds = torch.from_numpy(windows.context.astype(np.int64)).to(encoder.device)

    def num_batches(self, batch_size: int) -> int:
        return num_batches(self.windows, batch_size)

    def epoch(
        self, epoch: int, *, batch_size: int, seed: int, start: int = 0, place: Place | None = None
    ) -> Iterator[StateBatch]:
        lengths = self.windows.lengths
        batches = epoch_batches(lengths, batch_size, seed=seed, epoch=epoch, run=HEAD_RUN)
        done = 0
        # Calls are cut from the whole epoch, so that a resumed one pads (and rounds) exactly as the first did.
        for call in group_calls(batches, lengths, self.tokens_per_call):
            if done + len(call) > start:
                for i, batch in enumerate(self._encode(call, place)):
                    if done + i >= start:
                        yield batch
            done += len(call)

    def walk(self) -> Iterator[StateBatch]:
        for call in cut_by_tokens(self.windows.lengths, self.tokens_per_call):
            yield from self._encode([call])

    def _encode(self, batches: list[NDArray[np.int64]], place: Place | None = None) -> Iterator[StateBatch]:
        """One encoder call over several batches; each gets a slice trimmed to its own longest window."""
        began = time.perf_counter()
        together = np.concatenate(batches)
        lengths = self.windows.lengths
        tokens = collate(
            self.windows,
            together,
            pad_id=self.encoder.pad_id,
            device=self.encoder.device,
            width=batch_width(self.encoder, int(lengths[together].max())),
        )
        layers = self.encoder.layer_states(tokens)  # L times (B, T, H)
        # On a GPU this is the time to launch, not to compute: waiting for the device here would slow the walk.
        self.encode_seconds += time.perf_counter() - began
        chosen = torch.from_numpy(together).to(self.labels.device, non_blocking=True)
        labels, bounds = self.labels[chosen], self.bounds[chosen]
        row = 0
        for batch in batches:
            rows = slice(row, row + len(batch))
            width = batch_width(self.encoder, int(lengths[batch].max()))
            yield StateBatch(
                states=_stacked([layer[rows, :width] for layer in layers], place),
                mask=tokens.mask[rows, :width],
                labels=labels[rows],
                windows=batch,
                bounds=bounds[rows],
            )
            row += len(batch)


def _stacked(layers: list[Tensor], place: Place | None) -> Float[Tensor, "L B T H"]:
    """The states of some rows of a call, in one copy."""
    shape = (len(layers), *layers[0].shape)
    return torch.stack(layers, out=place(shape, layers[0].dtype) if place else None)
