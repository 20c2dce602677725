"""States straight from the encoder: nothing is kept, every pass costs a forward pass.

Where only some layers or positions are read, the encoder still sees whole windows; its states are cut on the way into
the batch, without a copy in between.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertvision.shapes import Float
from bertvision.states.base import Memory, States
from bertvision.states.batch import StateBatch
from bertvision.states.plan import cut_by_tokens, group_calls


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
                if self._positions is None:
                    _fill(states, [layer[row : row + len(piece)] for layer in layers], done)
                else:
                    self._gather(states[:, done : done + len(piece)], layers, piece, row)
                row, done = row + len(piece), done + len(piece)
                if done == len(batches[number]):
                    yield states
                    states = None
            del layers  # before the next call makes its own

    def walk(self, *, reuse: bool = False) -> Iterator[StateBatch]:
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
