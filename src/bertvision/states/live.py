"""States straight from the encoder: in every pass (`LiveStates`), or once and then from memory (`MemoryStates`).

Where only some layers or positions are read, the encoder still sees whole windows; its states are cut on the way into
the batch, without a copy in between.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertvision.console import progress
from bertvision.data.windows import Windows
from bertvision.encoder.batch import padded_positions
from bertvision.encoder.encoder import Encoder
from bertvision.errors import EncoderError
from bertvision.shapes import Float
from bertvision.states.base import Memory, States
from bertvision.states.batch import StateBatch
from bertvision.states.plan import cut_by_tokens, group_calls


class LiveStates(States):
    """Runs the encoder on large calls and cuts them into the heads' batches; every pass costs a forward pass."""

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
        shape = (len(self.layers), self.kept.num_tokens, encoder.hidden)
        self.store = torch.empty(shape, dtype=dtype, device=encoder.device)  # (L, N, H)
        with progress(label, windows.num_tokens, unit="tokens") as bar:
            for call in cut_by_tokens(self.widths, self.tokens_per_call):
                self._keep(self.read(call))
                bar.update(int(windows.lengths[call].sum()))

    def _keep(self, batch: StateBatch) -> None:
        states = batch.states[:, batch.mask].to(self.store.dtype)  # (L, real tokens, H)
        if not torch.isfinite(states).all():
            raise EncoderError(
                f"{self.encoder.name} has states beyond half precision: use --states.source live (encode in every pass)"
            )
        flat, mask = padded_positions(self.kept, batch.windows, width=batch.mask.shape[1])
        self.store[:, torch.from_numpy(flat[mask]).to(self.store.device)] = states

    def _states(
        self, batches: Sequence[NDArray[np.int64]], start: int, memory: Memory
    ) -> Iterator[Float[Tensor, "L B T H"]]:
        for indices in batches[start:]:
            yield self._take(indices, memory)  # under no name here: the caller frees it after its step

    def _take(self, indices: NDArray[np.int64], memory: Memory) -> Float[Tensor, "L B T H"]:
        # Heads are float32; autocast, where it is on, picks its own precision from half.
        dtype = torch.float32 if self.encoder.precision == "fp32" else self.store.dtype
        shape = self._shape(indices)
        flat, _ = padded_positions(self.kept, indices, width=shape[2])
        index = torch.from_numpy(flat.reshape(-1)).to(self.store.device, non_blocking=True)
        states = memory(shape, dtype)
        rows = states.view(shape[0], -1, shape[3])
        if dtype == self.store.dtype:
            torch.index_select(self.store, 1, index, out=rows)
        else:
            rows.copy_(torch.index_select(self.store, 1, index))
        return states
