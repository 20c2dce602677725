"""States computed once and kept in memory, in half precision and without pads.

Layout: one tensor (L, N, H) for all N tokens of all windows that are read, so that a batch is one gather along N.
Even the first epoch reads the rounded copy: a run that was killed and encodes anew gives the same numbers.
"""

import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from bertvision.console import progress
from bertvision.data.windows import Windows
from bertvision.encoder.batch import padded_positions
from bertvision.encoder.encoder import Encoder
from bertvision.errors import EncoderError
from bertvision.states.base import Place, States, StateTimes
from bertvision.states.batch import StateBatch
from bertvision.states.config import EVERYTHING, Selection
from bertvision.states.live import LiveStates
from bertvision.states.plan import cut_by_tokens

__all__ = ["MemoryStates"]


class MemoryStates(States):
    """Encodes all windows when built; every later pass only reads."""

    def __init__(
        self,
        encoder: Encoder,
        windows: Windows,
        *,
        tokens_per_call: int = 0,
        selection: Selection = EVERYTHING,
        label: str = "encode",
    ) -> None:
        self.encoder, self.windows, self.selection = encoder, windows, selection
        live = LiveStates(encoder, windows, tokens_per_call=tokens_per_call, selection=selection)
        self._live = live
        self.kept, self.layers = live.kept, live.layers
        self.tokens_per_call = live.tokens_per_call
        self.labels, self.bounds = live.labels, live.bounds
        self.widths, self.kept_widths = live.widths, live.kept_widths
        shape = (len(self.layers), self.kept.num_tokens, encoder.hidden)
        # What the encoder gives in bf16 is kept as it is.
        dtype = torch.bfloat16 if encoder.state_dtype == torch.bfloat16 else torch.float16
        self.store = torch.empty(shape, dtype=dtype, device=encoder.device)  # (L, N, H)
        began = time.perf_counter()
        with progress(label, windows.num_tokens, unit="tokens") as bar:
            for batch in live.walk():
                self._keep(batch)
                bar.advance(int(windows.lengths[batch.windows].sum()))
        self._times = StateTimes(encode=time.perf_counter() - began)

    @property
    def times(self) -> StateTimes:
        return self._times

    def _keep(self, batch: StateBatch) -> None:
        states = batch.states[:, batch.mask].to(self.store.dtype)  # (L, real tokens, H)
        if not torch.isfinite(states).all():
            raise EncoderError(
                f"{self.encoder.name} has states beyond half precision: use --states.source live (encode in every pass)"
            )
        self.store[:, self._tokens(batch.windows)[0][batch.mask]] = states

    def _tokens(self, indices: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """Positions in the store (B, T) and the mask (B, T)."""
        flat, mask = padded_positions(self.kept, indices, width=int(self.kept_widths[indices].max()))
        device = self.store.device
        return torch.from_numpy(flat).to(device), torch.from_numpy(mask).to(device)

    def stream(
        self,
        batches: Sequence[NDArray[np.int64]],
        *,
        start: int = 0,
        place: Place | None = None,
        reuse: bool = False,
    ) -> Iterator[StateBatch]:
        for batch in batches[start:]:
            yield self._read(batch, place)

    def walk(self, *, reuse: bool = False) -> Iterator[StateBatch]:
        for call in cut_by_tokens(self.widths, self.tokens_per_call):
            yield self._read(call)

    def _read(self, indices: NDArray[np.int64], place: Place | None = None) -> StateBatch:
        flat, mask = self._tokens(indices)
        shape = (self.store.shape[0], *flat.shape, self.store.shape[-1])
        # Heads are float32; autocast, where it is on, picks its own precision from half.
        widened = self.encoder.precision == "fp32"
        out = place(shape, self.store.dtype) if place and not widened else None
        out = None if out is None else out.view(shape[0], -1, shape[-1])
        states = torch.index_select(self.store, 1, flat.reshape(-1), out=out).view(shape)
        chosen = torch.from_numpy(indices).to(self.labels.device)
        states = states.float() if widened else states
        return StateBatch(
            states=states,
            mask=mask,
            targets=self.labels[chosen],
            windows=indices,
            bounds=self.bounds[chosen],
            pooled=self._live.pooled(states),
        )
