"""States straight from the encoder: nothing is kept, every pass costs a forward pass."""

import time
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from bertvision.data.windows import Windows
from bertvision.encoder.batch import collate
from bertvision.encoder.encoder import Encoder
from bertvision.feed.batches import StateBatch
from bertvision.feed.plan import HEAD_RUN, cut_by_tokens, epoch_batches, group_calls

__all__ = ["LiveFeed"]


class LiveFeed:
    """Runs the encoder on large calls and cuts them into the heads' batches."""

    def __init__(self, encoder: Encoder, windows: Windows, *, tokens_per_call: int) -> None:
        self.encoder, self.windows, self.tokens_per_call = encoder, windows, tokens_per_call
        self.encode_seconds = 0.0
        self.labels = torch.from_numpy(windows.labels.astype(np.int64)).to(encoder.device)
        self.bounds = torch.from_numpy(windows.context.astype(np.int64)).to(encoder.device)

    def num_batches(self, batch_size: int) -> int:
        return -(-len(self.windows) // batch_size)

    def epoch(self, epoch: int, *, batch_size: int, seed: int, start: int = 0) -> Iterator[StateBatch]:
        lengths = self.windows.lengths
        batches = epoch_batches(lengths, batch_size, seed=seed, epoch=epoch, run=HEAD_RUN)
        done = 0
        # Calls are cut from the whole epoch, so that a resumed one pads (and rounds) exactly as the first did.
        for call in group_calls(batches, lengths, self.tokens_per_call):
            if done + len(call) > start:
                for i, batch in enumerate(self._encode(call)):
                    if done + i >= start:
                        yield batch
            done += len(call)

    def walk(self) -> Iterator[StateBatch]:
        for call in cut_by_tokens(self.windows.lengths, self.tokens_per_call):
            yield from self._encode([call])

    def _encode(self, batches: list[NDArray[np.int64]]) -> Iterator[StateBatch]:
        """One encoder call over several batches; each gets a slice trimmed to its own longest window."""
        began = time.perf_counter()
        tokens = collate(
            self.windows, np.concatenate(batches), pad_id=self.encoder.pad_id, device=self.encoder.device
        )
        states = self.encoder.states(tokens)  # (L, B, T, H)
        # On a GPU this is the time to launch, not to compute: waiting for the device here would slow the walk.
        self.encode_seconds += time.perf_counter() - began
        row = 0
        for batch in batches:
            rows = slice(row, row + len(batch))
            longest = int(self.windows.lengths[batch].max())
            chosen = torch.from_numpy(batch).to(self.labels.device)
            yield StateBatch(
                states=states[:, rows, :longest],
                mask=tokens.mask[rows, :longest],
                labels=self.labels[chosen],
                windows=batch,
                bounds=self.bounds[chosen],
            )
            row += len(batch)
