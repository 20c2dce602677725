"""Shards, states read from them, and the choice between them and other sources.

    scales   (n, L)     float32, int8 only: x is kept as round(x / s), s = max |x| / 127 over a token's H numbers
    crc      (w,)       CRC-32 of each window's states (and scales)
    states   (n, L, H)  the stored tokens of its windows, one window after another

A shard is a safetensors file with these tensors; its header holds the store's key and the shard's number. Every byte is
checked: the header when the file is opened, a window against its checksum when it is first read.

Threads assemble the next batches while the heads work on this one: a window's states are mapped from the disk and
turned from (n, L, H) into their rows of (L, B, T, H); for a GPU in pinned memory, in the dtype they are stored in.

A shard that is missing is encoded when a batch asks for it, by whole encoder calls of its own: its bytes follow from
the data alone. All epochs read what was stored, so that a killed run computes the same numbers when it goes on. One
process at a time writes into a store; another that wants the same shard waits.

The rule of `auto`, for states that are read in p passes (heads cost the same wherever their states come from):

    stored    they are stored already, on a CPU; on a GPU where reading is faster than encoding
    live      p < 2, reading is not faster than encoding, or half precision cannot hold them
    memory    they fit --states.memory-gb and the memory that is free
    stored    reading is at least three times as fast as encoding (a disk is slower than memory), and they fit a fifth
              of the free disk and --states.cache-gb
    live      otherwise
"""

import logging
import os
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertvision.artifacts import check_output, read_tensors, write_tensors
from bertvision.console import progress, size_text
from bertvision.data.windows import Windows
from bertvision.encoder.device import Clock
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError, EncoderError, OutputError
from bertvision.shapes import Float
from bertvision.states.base import LiveStates, Memory, MemoryStates, States, StateTimes
from bertvision.states.config import Source, StatesConfig, StateType
from bertvision.states.plan import cut_by_tokens
from bertvision.states.store import PLAN, Identity, Origin, Store, begin, free_space, local_root

logger = logging.getLogger(__name__)

_DISK = 0.2
"""Part of the free disk that a store begun by `auto` may take."""
_MEMORY = 0.8
"""Part of the free memory that states may take."""
_FASTER = 3.0
"""How many times as fast as encoding reading from memory must be before `auto` begins a store."""
_SAMPLE, _READINGS = 2048, 8
"""Tokens of the sample on a CPU (on a GPU it is one full encoder call), and how often it is read."""


# ---- the file of a shard

STORED = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.int8}
Encoded = tuple[Tensor, Tensor | None]
"""States (n, L, H) as they are stored, and the scales (n, L) of int8."""


def _damaged(path: Path, why: object) -> ArtifactError:
    return ArtifactError(
        f"{path} is damaged ({why}): remove it with `bertvision cache verify --drop` and run the same command again, "
        "which makes it anew"
    )


def encode(states: Float[Tensor, "L n H"], dtype: StateType) -> Encoded:
    scales = None
    turned = states.transpose(0, 1)  # (n, L, H)
    if dtype == "int8":
        turned = turned.float()
        scale = turned.abs().amax(-1) / 127  # (n, L)
        # A scale that rounds by much would push numbers beyond 127.
        scale = torch.where(scale < torch.finfo(torch.float32).tiny, 0.0, scale)
        safe = torch.where(scale > 0, scale, torch.ones_like(scale))
        turned = (turned / safe[..., None]).round_()
        scales = scale.contiguous().cpu()
    stored = turned.to(STORED[dtype]).contiguous().cpu()
    if not bool((stored if scales is None else scales).isfinite().all()):
        if bool(states.isfinite().all()):
            raise EncoderError(f"states go beyond {dtype}: store them with --states.dtype bf16 or fp32")
        raise EncoderError("the encoder gives states that are no finite numbers: check its weights")
    return stored, scales


def load_into(target: Float[Tensor, "L n H"], stored: Tensor, scales: Tensor | None) -> None:
    """Write stored numbers (n, L, H) into a batch, in its dtype; with scales (n, L) they are int8."""
    target.copy_(stored.transpose(0, 1))
    if scales is not None:
        target.mul_(scales.T[..., None])


def _fresh(store: Store, number: int, device: str) -> dict[str, Tensor]:
    windows, layers = store.shards[number], len(store.identity.layers)
    tokens, dtype = int(store.lengths[windows].sum()), store.identity.dtype
    shape = (tokens, layers, store.identity.hidden)
    tensors = {"crc": torch.empty(len(windows), dtype=torch.uint32, device=device)}
    tensors["states"] = torch.empty(shape, dtype=STORED[dtype], device=device)
    if dtype == "int8":
        tensors["scales"] = torch.empty(shape[:2], device=device)
    return tensors


def write_shard(store: Store, number: int, parts: Iterable[Encoded]) -> None:
    """Write a shard from the states of its windows in their order, any number of windows a part."""
    tensors, done = _fresh(store, number, "cpu"), 0
    for states, scales in parts:
        end = done + len(states)
        assert states.dtype == tensors["states"].dtype
        tensors["states"][done:end] = states
        if scales is not None:
            tensors["scales"][done:end] = scales
        done = end
    offsets = store.offsets(number)
    assert done == offsets[-1]
    crc = [_checksum(tensors, first, last) for first, last in pairwise(offsets)]
    tensors["crc"] = torch.tensor(crc, dtype=torch.uint32)
    write_tensors(store.path(number), tensors, {"bertvision": store.key, "shard": str(number)})


class Shard:
    def __init__(self, store: Store, number: int) -> None:
        self.windows, self.path = store.shards[number], store.path(number)
        try:
            found, about = read_tensors(self.path)
        except ArtifactError as error:
            raise _damaged(self.path, error.__cause__ or "it is missing") from error
        wanted = _fresh(store, number, "meta")
        shapes = [{name: (t.dtype, t.shape) for name, t in one.items()} for one in (found, wanted)]
        header = {"format": "pt", "bertvision": store.key, "shard": str(number)}
        if shapes[0] != shapes[1] or {"format": "pt"} | about != header:
            raise _damaged(self.path, "its header is not the one that was written")
        self.states, self.scales = found["states"], found.get("scales")
        self._tensors = found
        # Plain numbers: they are looked up for every window of every batch.
        self._crc, self._offsets = found["crc"].tolist(), store.offsets(number)
        self._checked = [False] * len(self._crc)

    def place(self, row: int) -> tuple[int, int]:
        """The first token of a window and one past its last, once the window is checked."""
        first, last = self._offsets[row : row + 2]
        if not self._checked[row]:
            if _checksum(self._tensors, first, last) != self._crc[row]:
                raise _damaged(self.path, f"window {self.windows[row]} does not have its checksum")
            self._checked[row] = True
        return first, last


def _checksum(tensors: dict[str, Tensor], first: int, last: int) -> int:
    crc = 0
    for name in ("states", "scales"):
        if name in tensors:
            crc = zlib.crc32(tensors[name][first:last].view(torch.uint8).numpy().data, crc)
    return crc


# ---- batches


@dataclass
class _Job:
    windows: list[int]
    states: Tensor
    scales: Tensor | None
    parts: list[Future[float]] = field(default_factory=list)


class StoredStates(States):
    """Reads a store; encodes what is missing in it."""

    _ahead = 2

    def __init__(self, encoder: Encoder, store: Store, *, tokens_per_call: int = 0) -> None:
        identity = store.identity
        selection = identity.selection.resolved(encoder.num_states)
        super().__init__(encoder, store.windows, selection=selection, tokens_per_call=tokens_per_call)
        self.store = store
        self._missing = set(store.missing())
        self._read = self._wait = self._write = 0.0  # seconds
        self._cuda = encoder.device.type == "cuda"
        # Heads are float32; autocast, where it is on, picks its own precision from half.
        half = encoder.state_dtype if identity.dtype == "int8" else STORED[identity.dtype]
        self._dtype = torch.float32 if encoder.precision == "fp32" else half
        with suppress(OSError):  # a disk that is only read
            os.utime(store.folder / PLAN)  # the least recently used stores are deleted first

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
        if not self._missing:
            return
        began, encoded = time.perf_counter(), super().times.encode
        for number in sorted(self._missing.intersection(self.store.places[indices, 0].tolist())):
            self._make(number)
        encoding = super().times.encode - encoded
        self._write += max(0.0, time.perf_counter() - began - encoding)

    def _make(self, number: int) -> None:
        with self.store.locked():
            if number in self.store.missing():
                self._encode_shard(number)
        self._missing.discard(number)

    def _encode_shard(self, number: int) -> None:
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
            write_shard(
                store, number, (encode(one.states[:, one.mask], store.identity.dtype) for one in batches)
            )
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
        size = -(-len(rows) // min(8, torch.get_num_threads()))
        job.parts = [_readers().submit(self._fill, job, rows[i : i + size]) for i in rows[::size]]
        return job

    def _fill(self, job: _Job, rows: range) -> float:
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
        began = time.perf_counter()
        self._read += sum(part.result() for part in job.parts)
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


@cache
def _readers() -> ThreadPoolExecutor:
    """The threads that read, each on one core."""
    cores = torch.get_num_threads()
    count = min(8, cores)
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


# ---- which source


def store_of(encoder: Encoder, windows: Windows, config: StatesConfig, origin: Origin) -> Store:
    # Half precision; an encoder's own bf16 stays as it is.
    half: StateType = "bf16" if encoder.precision == "bf16" and encoder.device.type == "cuda" else "fp16"
    dtype = half if config.dtype == "auto" else config.dtype
    identity = Identity.of(encoder, origin, config.selection, dtype)
    folder = local_root(config.store) / identity.key
    return Store(folder, identity, windows, encoder=encoder.name, data=origin.name)


def open_states(
    encoder: Encoder,
    windows: Windows,
    config: StatesConfig,
    *,
    label: str,
    origin: Origin,
    source: Source | None = None,
    **choice: Any,
) -> States:
    source = source or choose_source(encoder, windows, config, label=label, origin=origin, **choice)
    options: dict[str, Any] = {"tokens_per_call": config.tokens_per_call}
    if source == "stored":
        store = begin(store_of(encoder, windows, config, origin), config.cache_gb)
        if missing := len(store.missing()):
            logger.info(
                "%s: %d of %d shards are missing in %s and are encoded when an epoch comes to them",
                label, missing, store.num_shards, store.folder,
            )  # fmt: skip
        return StoredStates(encoder, store, **options)
    if source == "memory":
        return MemoryStates(encoder, windows, selection=config.selection, label=label, **options)
    return LiveStates(encoder, windows, selection=config.selection, **options)


def choose_source(
    encoder: Encoder,
    windows: Windows,
    config: StatesConfig,
    *,
    label: str,
    origin: Origin,
    passes: int = 2,
    keep: bool = True,
) -> Source:
    """Where states come from that are read `passes` times.

    Without `keep` no store is begun, and only one that is finished is used.
    """
    if config.source in ("live", "memory"):
        return config.source
    planned = store_of(encoder, windows, config, origin)
    finished = planned.begun and not planned.missing()
    if config.source == "stored" and (keep or finished):
        return "stored"
    choice: Source = "stored"
    if config.source == "stored":
        choice, why = "live", "no store has them, and reading them once makes none"
    elif finished and encoder.device.type == "cpu":
        why = "they are stored already"
    elif passes < 2 and not finished:
        choice, why = "live", "they are read once"
    else:
        encode, read, half = measure(encoder, windows, config)
        why = f"encoding makes {encode:,.0f} and reading {read:,.0f} tokens a second"
        if read <= encode:
            choice = "live"
        elif not finished:
            # What half precision takes.
            needed = 2 * len(planned.identity.layers) * int(planned.lengths.sum()) * encoder.hidden
            free = _free_memory(encoder.device)
            room = 0.0  # bytes that a store begun here may take
            if keep and read >= _FASTER * encode:
                with suppress(OutputError):  # nothing can be written there
                    check_output(planned.folder)
                    room = min(config.cache_gb * 1e9, _DISK * free_space(planned.folder))
            why += f"; they need {size_text(needed)}, and a store may take {size_text(room)}"
            if not half:
                choice, why = "live", f"{why}; half precision cannot hold them"
            elif needed <= config.memory_gb * 1e9 and (free is None or needed < _MEMORY * free):
                choice = "memory"
            elif planned.nbytes > room:
                choice = "live"
    logger.info("%s: %s tokens: %s, because %s", label, f"{windows.num_tokens:,}", choice, why)
    return choice


def measure(encoder: Encoder, windows: Windows, config: StatesConfig) -> tuple[float, float, bool]:
    """Tokens a second of encoding and of reading from memory, and whether half precision can hold the states."""
    live = LiveStates(encoder, windows, tokens_per_call=config.tokens_per_call, selection=config.selection)
    on_cpu = encoder.device.type == "cpu"
    calls = cut_by_tokens(live.widths, min(live.tokens_per_call, _SAMPLE) if on_cpu else live.tokens_per_call)
    sample = calls[len(calls) // 2]  # windows of about the usual length
    # The first call loads libraries; on a GPU the second is captured.
    for warm_up in [sample[:1]] if on_cpu else [sample, sample]:
        live.read(warm_up)
    encoding, batch = _timed(lambda: live.read(sample), encoder)
    half = batch.states.to(torch.bfloat16 if batch.states.dtype == torch.bfloat16 else torch.float16)
    kept = half.transpose(0, 1).contiguous().cpu()  # (B, L, T, H): as far from a batch's order as a store is
    target = torch.empty_like(batch.states)

    def read() -> None:
        for _ in range(_READINGS):
            target.copy_(kept.to(encoder.device, non_blocking=True).transpose(0, 1))

    read()
    reading, _ = _timed(read, encoder)
    tokens = int(windows.lengths[sample].sum())
    return tokens / encoding, _READINGS * tokens / reading, bool(half.isfinite().all())


def _timed(action: Callable[[], Any], encoder: Encoder) -> tuple[float, Any]:
    clock = Clock(encoder.device)
    result = action()
    clock.stop()
    return max(clock.seconds(), 1e-6), result


def _free_memory(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None
