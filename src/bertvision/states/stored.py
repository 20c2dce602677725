"""States read from a store, in the batches every source has.

Threads assemble the next batches while the heads work on this one: a window's states are mapped from the disk and
turned from (n, L, H) into their rows of (L, B, T, H). On a GPU they are put together in pinned memory, in the dtype
they are stored in, and travel while the device is busy.

A shard that is missing is encoded when a batch asks for it, and so is one that turns out to be damaged: a store that is
just being written serves the run that writes it. Its first epoch then waits for the encoder, the others for the disk,
and all of them read what was stored, so that a killed run gives the same numbers when it goes on.
"""

import contextlib
import math
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError, OutputError
from bertvision.shapes import Float
from bertvision.states.base import Place, States, StateTimes
from bertvision.states.batch import StateBatch
from bertvision.states.codec import STORED, as_tensor, load_into
from bertvision.states.config import Selection
from bertvision.states.extract import Extractor
from bertvision.states.folder import LocalFolder
from bertvision.states.live import LiveStates
from bertvision.states.plan import cut_by_tokens
from bertvision.states.shard import DamagedShard
from bertvision.states.store import Store

__all__ = ["StoredStates"]

_AHEAD = 2
"""Batches that are put together in advance."""
_TRIES = 3
"""How often one shard is made anew for one batch: a disk that never keeps it should end the run."""


class StoredStates(States):
    """Reads a store; encodes what is missing in it."""

    def __init__(self, encoder: Encoder, store: Store, *, tokens_per_call: int = 0) -> None:
        self.encoder, self.store = encoder, store
        identity = store.identity
        layers = () if identity.layers == tuple(range(encoder.num_states)) else identity.layers
        self.selection = Selection(layers, identity.positions)
        # It knows masks, labels and widths, and makes the shards that are missing.
        self._live = LiveStates(
            encoder, store.windows, tokens_per_call=tokens_per_call, selection=self.selection
        )
        self.windows, self.kept, self.layers = store.windows, self._live.kept, self._live.layers
        self.extractor = Extractor(store, self._live)
        self._read_seconds = self._wait_seconds = self._write_seconds = 0.0
        self._cuda = encoder.device.type == "cuda"
        self._dtype = self._batch_dtype(identity.dtype)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2
        self._threads = max(1, min(8, cores))
        self._pool = _Memory(pinned=self._cuda)
        if not store.missing() and store.info is None:  # its maker was killed in between
            with contextlib.suppress(OutputError):
                self.extractor.finish()

    def _batch_dtype(self, stored: str) -> torch.dtype:
        """Heads are float32; autocast, where it is on, picks its own precision from half."""
        if self.encoder.precision == "fp32":
            return torch.float32
        return self.encoder.state_dtype if stored == "int8" else STORED[stored]

    @property
    def times(self) -> StateTimes:
        return StateTimes(
            self._live.times.encode, self._read_seconds, self._wait_seconds, self._write_seconds
        )

    def walk(self, *, reuse: bool = False) -> Iterator[StateBatch]:
        return self.stream(cut_by_tokens(self._live.widths, self._live.tokens_per_call), reuse=reuse)

    # ---- from the disk to a batch

    def stream(
        self,
        batches: Sequence[NDArray[np.int64]],
        *,
        start: int = 0,
        place: Place | None = None,
        reuse: bool = False,
    ) -> Iterator[StateBatch]:
        waiting: deque[_Assembly] = deque()
        with ThreadPoolExecutor(
            self._threads, "read states", initializer=torch.set_num_threads, initargs=(1,)
        ) as pool:
            try:
                for indices in batches[start:]:
                    self._make_missing(indices)
                    waiting.append(self._begin(indices, pool, reuse=reuse or self._cuda))
                    if len(waiting) > _AHEAD:
                        yield from self._end(waiting.popleft(), pool, place, reuse=reuse)
                while waiting:
                    yield from self._end(waiting.popleft(), pool, place, reuse=reuse)
            finally:
                for assembly in waiting:
                    for part in assembly.parts:
                        part.cancel()

    def _make_missing(self, indices: NDArray[np.int64]) -> None:
        there = self.store.finished(look=False)
        if len(there) == self.store.num_shards:
            return
        wanted = np.unique(self.store.plan.shard_of[indices]).tolist()
        missing = [number for number in wanted if number not in there]
        if not missing:
            return
        began, encoded = time.perf_counter(), self._live.times.encode
        for number in missing:
            self.extractor.make(number)
        if len(there) == self.store.num_shards:
            with contextlib.suppress(OutputError):  # all shards are there; the next run writes info.json
                self.extractor.finish()
        encoding = self._live.times.encode - encoded
        self._write_seconds += max(0.0, time.perf_counter() - began - encoding)

    def _begin(self, indices: NDArray[np.int64], pool: ThreadPoolExecutor, *, reuse: bool) -> "_Assembly":
        """Have a batch put together; each thread fills some of its rows."""
        shape = (
            self.num_states,
            len(indices),
            int(self._live.kept_widths[indices].max()),
            self.encoder.hidden,
        )
        stored = self.store.identity.dtype
        # A GPU makes numbers of int8 by itself: half the bytes travel.
        dtype = STORED[stored] if self._cuda else self._dtype
        states = self._pool.take(shape, dtype, reuse=reuse)
        scales = None
        if self._cuda and stored == "int8":
            scales = self._pool.take(shape[:3], torch.float32, reuse=reuse)
        size = -(-len(indices) // self._threads)
        assembly = _Assembly(indices, self.store.find(indices), states, scales, [])
        self._expect(assembly.places)
        rows = range(len(indices))
        assembly.parts += [
            pool.submit(self._fill, assembly, rows[begin : begin + size]) for begin in rows[::size]
        ]
        return assembly

    def _fill(self, assembly: "_Assembly", rows: range) -> float:
        """Read some rows of a batch; returns the time it took."""
        began = time.perf_counter()
        states, scales = assembly.states.view, assembly.scales and assembly.scales.view
        dtype, width = self.store.identity.dtype, states.shape[2]
        for row in rows:
            number, place = assembly.places[row]
            stored, own = self.store.shard(number).states(place)
            tokens = len(stored)
            factor = None if own is None else torch.from_numpy(own)
            load_into(states[:, row, :tokens], as_tensor(stored, dtype), factor if scales is None else None)
            if tokens < width:
                states[:, row, tokens:] = 0
            if scales is not None and factor is not None:
                scales[:, row, :tokens] = factor.T
                scales[:, row, tokens:] = 0
        return time.perf_counter() - began

    def _expect(self, places: list[tuple[int, int]]) -> None:
        """Have the disk begin with what the threads come to later; elsewhere there is nothing to begin."""
        if not isinstance(self.store.folder, LocalFolder):
            return
        # A shard that cannot be opened is the matter of the thread that reads it.
        with contextlib.suppress(DamagedShard):
            for number, place in places:
                self.store.shard(number).expect(place)

    def _end(
        self, assembly: "_Assembly", pool: ThreadPoolExecutor, place: Place | None, *, reuse: bool
    ) -> Iterator[StateBatch]:
        """Hand out a batch when it is there; its memory is free again when the next one is asked for."""
        began, repaired = time.perf_counter(), list[int]()
        while True:
            try:
                self._read_seconds += sum(part.result() for part in assembly.parts)
                break
            except DamagedShard as damaged:
                for part in assembly.parts:
                    part.exception()  # all threads are through with it
                if repaired.count(damaged.number) == _TRIES:
                    raise ArtifactError(
                        f"{self.store.path(damaged.number)} does not keep what is written to it: check the disk"
                    ) from damaged
                repaired.append(damaged.number)
                self.extractor.repair(damaged)
                began = time.perf_counter()  # that was work of the encoder
                assembly.parts[:] = [pool.submit(self._fill, assembly, range(len(assembly.indices)))]
        self._wait_seconds += time.perf_counter() - began
        view = assembly.states.view
        states = self._to_device(assembly, place) if self._cuda else view.to(self.encoder.device)
        yield self._live.batch(states, assembly.indices)
        if reuse and not self._cuda:
            self._pool.give(assembly.states)

    def _to_device(self, assembly: "_Assembly", place: Place | None) -> Float[Tensor, "L B T H"]:
        stored, device = assembly.states.view, self.encoder.device
        shape = tuple(stored.shape)
        target = place(shape, self._dtype) if place else None
        target = torch.empty(shape, dtype=self._dtype, device=device) if target is None else target
        if stored.dtype == self._dtype:
            target.copy_(stored, non_blocking=True)
        else:
            target.copy_(stored.to(device, non_blocking=True))
        if assembly.scales is not None:
            target.mul_(assembly.scales.view.to(device, non_blocking=True)[..., None])
        travelled = torch.cuda.Event()
        travelled.record()
        for block in (assembly.states, assembly.scales):
            if block is not None:
                self._pool.give(block, travelled)
        return target


@dataclass
class _Assembly:
    """A batch that threads put together."""

    indices: NDArray[np.int64]
    places: list[tuple[int, int]]
    """Shard and number in it of each window."""
    states: "_Block"
    scales: "_Block | None"
    parts: list[Future[float]]


@dataclass(frozen=True)
class _Block:
    """Memory, and what it is used as."""

    whole: Tensor
    view: Tensor


class _Memory:
    """Memory for batches, used again: fresh pages cost the system more than filling them costs us."""

    def __init__(self, *, pinned: bool) -> None:
        self._pinned = pinned
        self._free: list[tuple[Tensor, torch.cuda.Event | None]] = []

    def take(self, shape: tuple[int, ...], dtype: torch.dtype, *, reuse: bool) -> _Block:
        nbytes = math.prod(shape) * dtype.itemsize
        fitting = [i for i, (memory, _) in enumerate(self._free) if memory.numel() >= nbytes] if reuse else []
        if fitting:
            whole, travelled = self._free.pop(min(fitting, key=lambda i: self._free[i][0].numel()))
            if travelled is not None:
                travelled.synchronize()
        else:
            if reuse and len(self._free) > _AHEAD:
                self._free.pop(0)  # too small for what comes now
            whole = torch.empty(nbytes, dtype=torch.uint8, pin_memory=self._pinned)
        return _Block(whole, whole[:nbytes].view(dtype).view(shape))

    def give(self, block: _Block, travelled: "torch.cuda.Event | None" = None) -> None:
        """Take it back; `travelled` says when the device has read it."""
        self._free.append((block.whole, travelled))
