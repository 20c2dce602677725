"""States read from a store.

Threads assemble the next batches while the heads work on this one: a window's states are mapped from the disk and
turned from (n, L, H) into their rows of (L, B, T, H). On a GPU they are put together in pinned memory, in the dtype
they are stored in, and travel while the device is busy.

A shard that is missing is encoded when a batch asks for it: a store that is being written serves the run that writes
it. Its first epoch then waits for the encoder, the others for the disk, and all of them read what was stored, so that a
killed run computes the same numbers when it goes on. A damaged shard ends the run; `cache verify --drop` removes it.

A shard is made by whole encoder calls of its own, so that its bytes follow from the data alone, not from what was made
before. One process at a time writes into a store; another that wants the same shard waits.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertvision.console import progress
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError, OutputError
from bertvision.shapes import Float
from bertvision.states.base import Memory, States, StateTimes
from bertvision.states.config import Selection
from bertvision.states.plan import cut_by_tokens
from bertvision.states.shard import STORED, DamagedShard, encode, load_into
from bertvision.states.store import Store

logger = logging.getLogger(__name__)


@dataclass
class _Job:
    """A batch that threads put together."""

    windows: list[int]
    states: Tensor
    scales: Tensor | None
    parts: list[Future[float]] = field(default_factory=list)


class StoredStates(States):
    """Reads a store; encodes what is missing in it."""

    _ahead = 2

    def __init__(self, encoder: Encoder, store: Store, *, tokens_per_call: int = 0) -> None:
        identity = store.identity
        selection = Selection(identity.layers, identity.positions).resolved(encoder.num_states)
        super().__init__(encoder, store.windows, selection=selection, tokens_per_call=tokens_per_call)
        self.store = store
        self._missing = set(store.missing())
        self._read = self._wait = self._write = 0.0  # seconds
        self._cuda = encoder.device.type == "cuda"
        # Heads are float32; autocast, where it is on, picks its own precision from half.
        half = encoder.state_dtype if identity.dtype == "int8" else STORED[identity.dtype]
        self._dtype = torch.float32 if encoder.precision == "fp32" else half
        store.mark_used()

    @property
    def times(self) -> StateTimes:
        return StateTimes(super().times.encode, self._read, self._wait, self._write)

    # ---- writing

    def fill(self, label: str = "encode") -> int:
        """Make all shards that are missing; returns the number of tokens that were encoded."""
        missing, count = self.store.missing(), self.store.num_shards
        tokens = [int(self.windows.lengths[shard].sum()) for shard in self.store.shards]
        todo = sum(tokens[number] for number in missing)
        if 0 < len(missing) < count:
            logger.info("%s: %d of %d shards are there", label, count - len(missing), count)
        with progress(label, sum(tokens), unit="tokens", done=sum(tokens) - todo) as bar:
            for number in missing:
                self._make(number)
                bar.update(tokens[number])
        return todo

    def _make_missing(self, indices: NDArray[np.int64]) -> None:
        """Make the shards of these windows that are not there."""
        if not self._missing:
            return
        began, encoded = time.perf_counter(), super().times.encode
        for number in sorted(self._missing.intersection(self.store.places[indices, 0].tolist())):
            self._make(number)
        encoding = super().times.encode - encoded
        self._write += max(0.0, time.perf_counter() - began - encoding)

    def _make(self, number: int) -> None:
        """Make a shard, unless another process has made it in the meantime."""
        with self.store.locked():
            if number in self.store.missing():
                self._encode_shard(number)
        self._missing.discard(number)

    def _encode_shard(self, number: int) -> None:
        """Encode one shard, call after call."""
        store, theirs, ours = self.store, self.store.identity.precision, self.encoder.precision
        if theirs != ours:
            raise ArtifactError(
                f"{store.path(number)} is missing and the store was computed in {theirs}: an encoder in {ours} cannot "
                f"make it, use --precision {theirs}"
            )
        windows = store.shards[number]
        calls = cut_by_tokens(self.widths[windows], self.tokens_per_call)
        batches = (self.read(windows[call]) for call in calls)
        try:
            store.write(number, (encode(one.states[:, one.mask], store.identity.dtype) for one in batches))
        except OutputError as error:
            there = store.num_shards - len(store.missing())
            raise OutputError(
                f"{error} ({there} of {store.num_shards} shards are there and are used)"
            ) from error

    # ---- reading

    def _states(
        self, batches: Sequence[NDArray[np.int64]], start: int, memory: Memory
    ) -> Iterator[Float[Tensor, "L B T H"]]:
        waiting: deque[_Job] = deque()
        try:
            for indices in batches[start:]:
                self._make_missing(indices)
                waiting.append(self._begin(indices, memory))
                if len(waiting) > self._ahead:
                    yield self._end(waiting.popleft(), memory)
            while waiting:
                yield self._end(waiting.popleft(), memory)
        finally:
            for job in waiting:
                for part in job.parts:
                    part.cancel()

    def _begin(self, indices: NDArray[np.int64], memory: Memory) -> _Job:
        """Have threads put a batch together, each some of its rows."""
        shape, stored = self._shape(indices), self.store.identity.dtype
        scales = None
        if self._cuda:
            # The GPU widens the numbers: fewer bytes travel. Pinned memory is cached, and kept until it has travelled.
            states = torch.empty(shape, dtype=STORED[stored], pin_memory=True)
            if stored == "int8":
                scales = torch.empty(shape[:3], dtype=torch.float32, pin_memory=True)
        else:
            states = memory(shape, self._dtype)
        job = _Job(indices.tolist(), states, scales)
        rows = range(len(indices))
        size = -(-len(rows) // _threads())
        job.parts = [_readers().submit(self._fill, job, rows[i : i + size]) for i in rows[::size]]
        return job

    def _fill(self, job: _Job, rows: range) -> float:
        """Read some rows of a batch; returns the seconds it took."""
        began = time.perf_counter()
        for row in rows:
            states, scales = self.store.read(job.windows[row])
            tokens = len(states)
            load_into(job.states[:, row, :tokens], states, scales if job.scales is None else None)
            job.states[:, row, tokens:] = 0
            if job.scales is not None and scales is not None:
                job.scales[:, row, :tokens] = scales.T
                job.scales[:, row, tokens:] = 0
        return time.perf_counter() - began

    def _end(self, job: _Job, memory: Memory) -> Float[Tensor, "L B T H"]:
        """The states of a batch when they are there."""
        began = time.perf_counter()
        try:
            self._read += sum(part.result() for part in job.parts)
        except DamagedShard as damage:
            raise ArtifactError(
                f"{self.store.folder}/{damage}: remove it with `bertvision cache verify --drop` and run the "
                "same command again, which makes it anew"
            ) from damage
        self._wait += time.perf_counter() - began
        if not self._cuda:
            return job.states.to(self.encoder.device)
        target = memory(tuple(job.states.shape), self._dtype)
        if job.states.dtype == self._dtype:
            target.copy_(job.states, non_blocking=True)
        else:
            target.copy_(job.states.to(target.device, non_blocking=True))
        if job.scales is not None:
            target.mul_(job.scales.to(target.device, non_blocking=True)[..., None])
        return target


def _threads() -> int:
    return min(8, torch.get_num_threads())


@cache
def _readers() -> ThreadPoolExecutor:
    """The threads that read, each on one core."""
    count, cores = _threads(), torch.get_num_threads()
    begun = threading.Barrier(count + 1)
    pool = ThreadPoolExecutor(count, "read states", initializer=torch.set_num_threads, initargs=(1,))
    for _ in range(count):
        pool.submit(begun.wait)
    begun.wait()
    # What a thread sets holds for those that begin later, too.
    torch.set_num_threads(cores)
    return pool


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_readers.cache_clear)  # threads do not come along
