"""States computed once and kept in memory, in half precision and without pads.

Layout: one tensor (L, N, H) for all N tokens of all windows that are read, so that a batch is one gather along N.
Even the first epoch reads the rounded copy: a run that was killed and encodes anew computes the same numbers.
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
from bertvision.states.plan import cut_by_tokens


class MemoryStates(States):
    """Encodes all windows when built; every later pass only reads."""

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
                bar.advance(int(windows.lengths[call].sum()))

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
