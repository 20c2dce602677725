"""How fast states are encoded, kept, written and read here: a sample of the windows goes every way once.

The sample is encoded, gathered from memory as `MemoryStates` does, put into a small store beside the real one, and read
by `StoredStates` itself, with its threads and its way to the device: first straight from the disk (where the system can
be told to forget the files), then again.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from bertvision.artifacts import sweep
from bertvision.data.windows import Windows
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError, EncoderError, OutputError
from bertvision.states.choose import Measured
from bertvision.states.config import Selection
from bertvision.states.folder import LocalFolder, open_folder
from bertvision.states.identity import Identity, StateType
from bertvision.states.live import LiveStates
from bertvision.states.plan import head_batches
from bertvision.states.store import Store, create_store, open_store
from bertvision.states.stored import StoredStates

__all__ = ["free_memory", "measure"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_SAMPLE = 2048
"""Tokens of the sample on a CPU; on a GPU it is one full encoder call."""
_BATCH = 16
"""Windows that are read at once."""
_READ = 65_536
"""Tokens that are read at least: starting threads must not count."""


def measure(
    encoder: Encoder,
    windows: Windows,
    selection: Selection,
    dtype: StateType,
    *,
    root: str | Path | None,
    store: Store | None = None,
    tokens_per_call: int = 0,
) -> Measured:
    """Rates of all ways that are possible: a store below `root`, where it is given, or `store` as it is there."""
    live = LiveStates(encoder, windows, tokens_per_call=tokens_per_call, selection=selection)
    sample = _sample(live)
    tokens = int(windows.lengths[sample].sum())
    # The first call loads libraries; on a GPU the second is captured.
    for warm_up in [sample, sample] if encoder.device.type == "cuda" else [sample[:1]]:
        live.read(warm_up)
    batch, seconds = _timed(lambda: live.read(sample), encoder)
    found = Measured(tokens, encode=tokens / seconds)
    kept = batch.states[:, batch.mask]  # (L, n, H)
    half = kept.to(torch.bfloat16 if kept.dtype == torch.bfloat16 else torch.float16)
    if bool(half.isfinite().all()):
        found = replace(found, memory=tokens / _gathering(half, encoder))
    if store is not None:
        return _with_store(found, store, encoder)
    if root is not None:
        with contextlib.suppress(_NotStored):
            return _with_sample(found, live, sample, dtype, root)
    return found


class _NotStored(Exception):
    """States cannot be stored; it was said why."""


def _gathering(half: torch.Tensor, encoder: Encoder) -> float:
    """Seconds to put all tokens (L, n, H) into another order, as heads want them."""
    order = torch.randperm(half.shape[1], device=half.device)

    def gather() -> torch.Tensor:
        states = torch.index_select(half, 1, order)
        return states.float() if encoder.precision == "fp32" else states

    gather()
    return _timed(gather, encoder)[1]


def _with_store(found: Measured, store: Store, encoder: Encoder) -> Measured:
    """Rates of a store that is there: as the system has it now, and again."""
    batches = head_batches(store.windows.lengths, _BATCH, seed=0, epoch=1)
    some = batches[: max(1, _READ // max(_tokens(store, batches[:1]), 1))]
    states = StoredStates(encoder, store)
    cold, warm = _reading(states, some), _reading(states, some)
    return replace(found, read_cold=cold, read_warm=warm)


def _with_sample(
    found: Measured, live: LiveStates, sample: NDArray[np.int64], dtype: StateType, root: str | Path
) -> Measured:
    """Rates of a store that is made of the sample, beside the real ones."""
    encoder = live.encoder
    identity = Identity(
        encoder="sample", configuration="", precision=encoder.precision, windows="", preprocessing={},
        layers=live.layers, hidden=encoder.hidden, positions=live.selection.positions, dtype=dtype,
    )  # fmt: skip
    folder = open_folder(root) / f".measure.tmp-{os.getpid()}"
    if isinstance(folder, LocalFolder):
        sweep(folder.path.parent)  # what a killed process left
    try:
        store = create_store(folder.address, identity, live.windows.take(sample), encoder="", data="")
        maker = StoredStates(encoder, store, tokens_per_call=live.tokens_per_call)
        began = time.perf_counter()
        for number in range(store.num_shards):
            maker.extractor.make(number)
        writing = time.perf_counter() - began - maker.times.encode
        _forget(store)
        batches = [np.arange(len(sample))[i : i + _BATCH] for i in range(0, len(sample), _BATCH)]
        states = StoredStates(encoder, open_store(store.folder))
        cold = _reading(states, batches)
        warm = _reading(states, batches * max(1, _READ // found.tokens))
    except (OutputError, ArtifactError, EncoderError) as error:
        logger.info("states are not stored: %s", error)
        raise _NotStored from error
    finally:
        with contextlib.suppress(OutputError):
            folder.delete()
    return replace(found, write=found.tokens / max(writing, 1e-6), read_cold=cold, read_warm=warm)


def _reading(states: StoredStates, batches: Sequence[NDArray[np.int64]]) -> float:
    """Tokens a second."""

    def read() -> None:
        for _ in states.stream(batches, reuse=True):
            pass

    return _tokens(states.store, batches) / _timed(read, states.encoder)[1]


def _tokens(store: Store, batches: Sequence[NDArray[np.int64]]) -> int:
    return int(sum(store.windows.lengths[batch].sum() for batch in batches))


def _sample(live: LiveStates) -> NDArray[np.int64]:
    """Windows of about the usual length, as many as the sample has room for."""
    budget = min(live.tokens_per_call, _SAMPLE) if live.encoder.device.type == "cpu" else live.tokens_per_call
    order = np.argsort(live.windows.lengths, kind="stable")
    middle = len(order) // 2
    typical = max(int(live.widths[order[middle]]), 1)
    count = max(1, min(len(order), budget // typical))
    begin = max(0, min(middle - count // 2, len(order) - count))
    return order[begin : begin + count]


def _timed(action: Callable[[], T], encoder: Encoder) -> tuple[T, float]:
    began = time.perf_counter()
    value = action()
    if encoder.device.type == "cuda":
        torch.cuda.synchronize(encoder.device)
    return value, max(time.perf_counter() - began, 1e-6)


def _forget(store: Store) -> None:
    """Ask the system to drop a store's files from memory, so that the next read comes from the disk."""
    if not (isinstance(store.folder, LocalFolder) and hasattr(os, "posix_fadvise")):
        return
    for path in store.folder.path.iterdir():
        with contextlib.suppress(OSError), path.open("rb") as handle:
            os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def free_memory(device: torch.device | None = None) -> int | None:
    """Bytes of memory that could still be taken, of the machine or of a device."""
    if device is not None and device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None
