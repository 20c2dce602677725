"""`auto`: measure how fast states are encoded and read here, say what follows, and choose.

Heads cost the same wherever their states come from, so only the states are counted. With E seconds to encode all of
them once, W to write them, R to read them and p passes:

    live      p E            nothing is kept
    memory    E + (p - 1) R  they fit --feed.memory-gb
    stored    E + W + p R    the disk has room for them; the next run begins with R

E, W and R are estimated from a sample: some windows that are encoded, read from memory, written to the place of the
store and read again straight from the disk (where the system can be told to forget them). Stores that are larger than
the memory that is free are counted with the second, others with the first. Where nothing can be written, nothing is
stored.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from bertvision.data.windows import Windows
from bertvision.encoder.encoder import Encoder
from bertvision.errors import OutputError
from bertvision.feed.live import LiveFeed
from bertvision.feed.reading import Reading
from bertvision.store.codec import as_tensor, encode, load_into
from bertvision.store.folder import Folder, LocalFolder, open_folder
from bertvision.store.identity import BYTES, StateType

__all__ = ["Measured", "Source", "choose", "measure"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
Source = Literal["live", "memory", "stored"]

_SAMPLE = 2048
"""Tokens of the sample on a CPU; on a GPU it is one full encoder call."""
_ROOM = 0.9
"""Share of the free disk a store may take."""


@dataclass(frozen=True)
class Measured:
    """Whole tokens a second, on this machine and this disk."""

    tokens: int
    """Tokens of the sample."""
    encode: float
    read_warm: float
    """From memory."""
    read_cold: float = 0.0
    """From the disk."""
    write: float = 0.0
    """0 where nothing can be written."""


@dataclass(frozen=True)
class Case:
    """What there is to decide about."""

    label: str
    tokens: int
    stored_bytes: int
    memory_bytes: int
    memory_limit: float
    free_disk: int | None
    free_memory: int | None
    passes: int

    def seconds(self, measured: Measured) -> dict[Source, float]:
        """Expected cost of the states from each source that is possible."""
        encode = self.tokens / measured.encode
        fits = self.free_memory is None or self.stored_bytes < self.free_memory
        costs: dict[Source, float] = {"live": self.passes * encode}
        if self.memory_bytes <= self.memory_limit:
            costs["memory"] = encode + (self.passes - 1) * self.tokens / measured.read_warm
        if measured.write and (self.free_disk is None or self.stored_bytes <= _ROOM * self.free_disk):
            read = self.tokens / (measured.read_warm if fits else measured.read_cold)
            costs["stored"] = encode + self.tokens / measured.write + self.passes * read
        return costs


def choose(case: Case, measured: Measured) -> Source:
    """The source that is expected to take least time; says why."""
    costs = case.seconds(measured)
    best = min(costs, key=lambda source: costs[source])
    free = "an unknown amount" if case.free_disk is None else _gb(case.free_disk)
    logger.info(
        "%s: %s tokens, %s to store and %s in memory; the disk has %s free, --feed.memory-gb allows %s",
        case.label,
        f"{case.tokens:,}",
        _gb(case.stored_bytes),
        _gb(case.memory_bytes),
        free,
        _gb(case.memory_limit),
    )
    logger.info(
        "%s: measured on %s tokens: encoding %s tokens/s, writing %s, reading %s from the disk and %s from memory",
        case.label,
        f"{measured.tokens:,}",
        *(
            f"{rate:,.0f}"
            for rate in (measured.encode, measured.write, measured.read_cold, measured.read_warm)
        ),
    )
    expected = ", ".join(f"{source} {_seconds(cost)}" for source, cost in costs.items())
    passes = f"{case.passes} epoch{'s' if case.passes > 1 else ''}"
    logger.info("%s: expected for the states of %s: %s; chosen: %s", case.label, passes, expected, best)
    return best


def measure(
    encoder: Encoder,
    windows: Windows,
    reading: Reading,
    dtype: StateType,
    *,
    root: str | Path | None,
    tokens_per_call: int = 0,
) -> Measured:
    """Encode some windows and read them from memory; write them below `root`, if it is given, and read them again."""
    live = LiveFeed(encoder, windows, tokens_per_call=tokens_per_call, reading=reading)
    sample = _sample(live)
    tokens = int(windows.lengths[sample].sum())
    live.read(sample[:1])  # the first call loads libraries
    batch, encoding = _timed(lambda: live.read(sample), encoder)
    stored, scales, _ = encode(batch.states[:, batch.mask], dtype)
    target = torch.empty(stored.shape[1], stored.shape[0], stored.shape[2])
    factor = None if scales is None else torch.from_numpy(scales)

    def read(raw: NDArray[np.uint8]) -> None:
        load_into(target, as_tensor(raw.view(stored.dtype).reshape(stored.shape), dtype), factor)

    kept = stored.reshape(-1).view(np.uint8)
    read(kept)  # the target's own pages are there now
    _, warm = _timed(lambda: read(kept), encoder)
    found = Measured(tokens, encode=tokens / encoding, read_warm=tokens / max(warm, 1e-6))
    if root is None:
        return found
    try:
        writing, cold = _through_the_disk(open_folder(root) / f".measure.tmp-{os.getpid()}", kept, read)
    except OutputError as error:
        logger.info("states cannot be stored here: %s", error)
        return found
    return replace(found, read_cold=tokens / max(cold, 1e-6), write=tokens / max(writing, 1e-6))


def _through_the_disk(
    folder: Folder, content: NDArray[np.uint8], read: Callable[[NDArray[np.uint8]], None]
) -> tuple[float, float]:
    """Seconds to write something to a folder and to read it again; nothing of it stays."""
    began = time.perf_counter()
    try:
        with folder.write("sample") as file:
            file.write(content.data)
        writing = time.perf_counter() - began
        if isinstance(folder, LocalFolder):
            _forget(folder.path / "sample")
        began = time.perf_counter()
        read(_raw(folder, "sample"))
        return writing, time.perf_counter() - began
    finally:
        folder.delete()


def _raw(folder: Folder, name: str) -> NDArray[np.uint8]:
    mapped = folder.mapped(name)
    return np.frombuffer(bytearray(folder.read(name)), np.uint8) if mapped is None else mapped


def _sample(live: LiveFeed) -> np.ndarray:
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
    return value, time.perf_counter() - began


def _forget(path: Path) -> None:
    """Ask the system to drop a file from memory, so that the next read comes from the disk."""
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError), path.open("rb") as handle:
            os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def free_memory() -> int | None:
    """Bytes of memory the system could still give."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def stored_bytes(layers: int, hidden: int, tokens: int, dtype: StateType) -> int:
    """Bytes of the states of so many tokens; what a store has besides is below a thousandth."""
    return layers * tokens * (hidden * BYTES[dtype] + (4 if dtype == "int8" else 0))


def _gb(count: float) -> str:
    return f"{count / 1e9:.2f} GB"


def _seconds(count: float) -> str:
    return f"{count:.1f} s" if count < 120 else f"{count / 60:.1f} min"
