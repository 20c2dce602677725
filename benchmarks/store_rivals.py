"""The same states on disk in several ways, and readers that put the same batches together from each.

    raw      states.f16, (N, L, H) float16, mapped: N tokens of all windows one after another, offsets in memory
    hdf5     (W, L, 386, H) float32, padded to 386 tokens, one window a chunk, no compression: the papers' layout
    zarr     padded: (W, 386, L, H) float16, one window a chunk, with zarr's own compression and without
             ragged: (N, L, H) float16 in chunks of some tokens, no compression: zarr has no ragged arrays, so a
             window is one slice of the flat array and touches a few chunks
    store    bertvision's, in each of its dtypes

Numbers are random in half precision, so that all but int8 and bf16 must give equal batches. Every reader makes
(L, B, T, H) float32 batches, pads zero, in memory it uses again; only the naive one takes fresh memory for each.
The rivals read in the one thread that asks, as a plain loop does. The store reads in one background thread, which is
the only one that works here: nobody computes anything beside it.
"""

import gc
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import new_store
from numpy.typing import NDArray
from torch import Tensor

from bertvision.data.windows import Windows
from bertvision.encoder.encoder import Encoder
from bertvision.states.config import StateType
from bertvision.states.plan import head_batches
from bertvision.states.store import open_store
from bertvision.states.stored import StoredStates, encode, write_shard

PADDED = 386
"""Tokens the papers pad a window to."""

_RAGGED_CHUNK = 64
"""Tokens of a chunk of the ragged zarr: large enough to be few, small enough to read little in vain."""

_AT_ONCE = 8192
"""Tokens of random states that are made at a time."""

Batches = Iterator[tuple[NDArray[np.int64], Tensor]]
"""Windows and their states (L, B, T, H)."""
Reader = Callable[[], Batches]
"""One pass over all windows."""


@dataclass(frozen=True)
class Case:
    """What is stored and in which batches it is read."""

    folder: Path
    encoder: Encoder  # gives the shape; it computes nothing
    windows: Windows
    batch_size: int

    @property
    def shape(self) -> tuple[int, int]:
        """L and H."""
        return self.encoder.num_states, self.encoder.hidden

    def batches(self) -> list[NDArray[np.int64]]:
        """Those of a fit's second epoch: random windows, of similar length in a batch."""
        return head_batches(self.windows.lengths, self.batch_size, seed=0, epoch=1)

    def raw(self) -> NDArray[np.float16]:
        """(N, L, H) all states, mapped; private and writable as torch likes it."""
        return np.memmap(self.folder / "states.f16", np.float16, "c").reshape(-1, *self.shape)

    def span(self, window: int) -> slice:
        """Where a window's tokens stand among all."""
        return slice(*self.windows.offsets[window : window + 2].tolist())


@dataclass(frozen=True)
class Way:
    """One layout with one way to read it."""

    name: str
    place: str  # file or folder below the case's folder; ways may share one
    write: Callable[[Case, Path], None]
    open: Callable[[Case, Path], Reader]
    exact: bool = True  # whether it keeps every bit of half precision
    threads: int = 1  # threads torch may use in the loop that asks; 0 = all

    @property
    def library(self) -> str:
        """What must be installed for it."""
        return {"HDF5": "h5py", "zarr": "zarr"}.get(self.name.split()[0], "")

    def prepare(self, case: Case) -> None:
        """Write it unless another way has."""
        path = case.folder / self.place
        if not path.exists():
            self.write(case, path)
            for file in files_of(path):
                with file.open("rb") as handle:
                    os.fsync(handle.fileno())


def files_of(path: Path) -> list[Path]:
    return [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]


def forget(path: Path) -> None:
    """Ask the system to drop files from memory; those still mapped would stay."""
    gc.collect()
    for file in files_of(path):
        with file.open("rb") as handle:
            os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def disk_bytes() -> int:
    """What this process has read from disks, where the system counts it."""
    path = Path("/proc/self/io")
    lines = path.read_text().splitlines() if path.exists() else []
    return sum(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def check(case: Case, way: Way) -> None:
    """Its batches are those of the raw states, pads included; half a step of int8 or bf16 apart at most."""
    wanted = open_raw(case, case.folder / way.place)()
    found = way.open(case, case.folder / way.place)()
    for (windows, states), (same, expected) in zip(found, wanted, strict=True):
        assert np.array_equal(windows, same), way.name
        if way.exact:
            assert torch.equal(states, expected), way.name
        else:
            assert (states - expected).abs().max() < 0.04, way.name


def one_pass_of(case: Case, way: Way) -> Callable[[], int]:
    """Open a way; the function passes over all windows and returns the real tokens it was handed."""
    reader, lengths = way.open(case, case.folder / way.place), case.windows.lengths
    threads = torch.get_num_threads()

    def one_pass() -> int:
        torch.set_num_threads(way.threads or threads)
        try:
            return sum(int(lengths[windows].sum()) for windows, _ in reader())
        finally:
            torch.set_num_threads(threads)

    return one_pass


# ---- readers: a loop over batches and rows that all rivals share


def assemble(case: Case, fetch: Callable[[int, Tensor], None], *, fresh: bool = False) -> Reader:
    """Batches whose rows `fetch(window, target)` fills; target (L, n, H) is a view into the batch."""
    batches, lengths = case.batches(), case.windows.lengths
    layers, hidden = case.shape
    most = max(len(batch) * int(lengths[batch].max()) for batch in batches)
    memory = torch.empty(0 if fresh else layers * most * hidden)

    def one_pass() -> Batches:
        for indices in batches:
            tokens = lengths[indices].tolist()
            shape = (layers, len(indices), max(tokens), hidden)
            states = torch.zeros(shape) if fresh else memory[: prod(shape)].view(shape)
            for row, (window, count) in enumerate(zip(indices.tolist(), tokens, strict=True)):
                fetch(window, states[:, row, :count])
                if not fresh:
                    states[:, row, count:] = 0
            yield indices, states

    return one_pass


def write_raw(case: Case, path: Path) -> None:
    torch.manual_seed(0)
    with path.open("wb") as file:
        for begin in range(0, case.windows.num_tokens, _AT_ONCE):
            tokens = min(_AT_ONCE, case.windows.num_tokens - begin)
            file.write(torch.randn(tokens, *case.shape).half().numpy().data)


def open_raw(case: Case, path: Path) -> Reader:
    flat, offsets = torch.from_numpy(case.raw()), case.windows.offsets.tolist()

    def fetch(window: int, target: Tensor) -> None:
        target.copy_(flat[offsets[window] : offsets[window + 1]].transpose(0, 1))

    return assemble(case, fetch)


def open_raw_naive(case: Case, path: Path) -> Reader:
    flat, offsets = case.raw(), case.windows.offsets.tolist()

    def fetch(window: int, target: Tensor) -> None:
        target.numpy()[...] = flat[offsets[window] : offsets[window + 1]].transpose(1, 0, 2)

    return assemble(case, fetch, fresh=True)


def write_hdf5(case: Case, path: Path) -> None:
    import h5py  # pyright: ignore[reportMissingImports]

    layers, hidden = case.shape
    flat, shape = case.raw(), (len(case.windows), layers, PADDED, hidden)
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("states", shape, np.float32, chunks=(1, *shape[1:]))
        padded = np.zeros(shape[1:], np.float32)
        for window in range(len(case.windows)):
            states = flat[case.span(window)].transpose(1, 0, 2)
            padded[:, : states.shape[1]] = states
            padded[:, states.shape[1] :] = 0
            dataset[window] = padded


def open_hdf5(case: Case, path: Path) -> Reader:
    """`dataset[window]`, as one writes it."""
    dataset = _hdf5(path)

    def fetch(window: int, target: Tensor) -> None:
        target.copy_(torch.from_numpy(dataset[window])[:, : target.shape[1]])

    return assemble(case, fetch)


def open_hdf5_part(case: Case, path: Path) -> Reader:
    """Only the real tokens of a chunk. (Reading straight into a row of the batch takes HDF5 fifty times as long.)"""
    dataset = _hdf5(path)

    def fetch(window: int, target: Tensor) -> None:
        target.copy_(torch.from_numpy(dataset[window, :, : target.shape[1]]))

    return assemble(case, fetch)


def _hdf5(path: Path) -> Any:
    import h5py  # pyright: ignore[reportMissingImports]

    return h5py.File(path, "r")["states"]


def write_zarr(compressed: bool, ragged: bool) -> Callable[[Case, Path], None]:
    def write(case: Case, path: Path) -> None:
        import zarr  # pyright: ignore[reportMissingImports]

        flat, row = case.raw(), case.shape
        shape = flat.shape if ragged else (len(case.windows), PADDED, *row)
        chunks = (_RAGGED_CHUNK, *row) if ragged else (1, *shape[1:])
        packing: dict[str, Any] = {} if compressed else {"compressors": None}
        array = zarr.create_array(str(path), shape=shape, chunks=chunks, dtype="float16", **packing)
        if ragged:
            for begin in range(0, len(flat), _RAGGED_CHUNK * 64):
                array[begin : begin + _RAGGED_CHUNK * 64] = flat[begin : begin + _RAGGED_CHUNK * 64]
            return
        for window in range(len(case.windows)):
            states = flat[case.span(window)]
            array[window, : len(states)] = states

    return write


def open_zarr(ragged: bool) -> Callable[[Case, Path], Reader]:
    def open_(case: Case, path: Path) -> Reader:
        import zarr  # pyright: ignore[reportMissingImports]

        array: Any = zarr.open_array(str(path), mode="r")
        offsets = case.windows.offsets.tolist()

        def fetch(window: int, target: Tensor) -> None:
            if ragged:
                states = array[offsets[window] : offsets[window + 1]]
            else:
                states = array[window, : target.shape[1]]
            target.copy_(torch.from_numpy(states).transpose(0, 1))

        return assemble(case, fetch)

    return open_


# ---- bertvision


def write_store(dtype: StateType) -> Callable[[Case, Path], None]:
    def write(case: Case, path: Path) -> None:
        flat = torch.from_numpy(case.raw())
        store = new_store(path, case.encoder, case.windows, dtype)
        for number, windows in enumerate(store.shards):
            own = (flat[case.span(window)].transpose(0, 1) for window in windows.tolist())
            write_shard(store, number, (encode(states, dtype) for states in own))
        assert not store.missing()

    return write


def open_stored(case: Case, path: Path) -> Reader:
    """States as a fit opens it; each pass is an epoch as a fit reads it."""
    (folder,) = path.iterdir()
    states = StoredStates(case.encoder, open_store(folder))

    def one_pass() -> Batches:
        for batch in states.epoch(1, batch_size=case.batch_size, seed=0):
            yield batch.windows, batch.states

    return one_pass


def open_stored_anew(case: Case, path: Path) -> Reader:
    """Opened in every pass, which checks all checksums."""
    return lambda: open_stored(case, path)()


OURS, RAW = "store fp16", "raw memmap"
HDF5, HDF5_PART = "HDF5 padded fp32, dataset[window]", "HDF5 padded fp32, only real tokens"
ZARR = "zarr ragged fp16, no compression"

RAW_WAY = Way(RAW, "states.f16", write_raw, open_raw)
WAYS = [
    RAW_WAY,
    Way("raw memmap, all cores", "states.f16", write_raw, open_raw, threads=0),
    Way("raw memmap, numpy, fresh zeros", "states.f16", write_raw, open_raw_naive),
    Way(OURS, "fp16", write_store("fp16"), open_stored),
    Way("store fp16, opened anew and checked", "fp16", write_store("fp16"), open_stored_anew),
    Way("store int8", "int8", write_store("int8"), open_stored, exact=False),
    Way("store bf16", "bf16", write_store("bf16"), open_stored, exact=False),
    Way("store fp32", "fp32", write_store("fp32"), open_stored),
    Way(HDF5, "states.h5", write_hdf5, open_hdf5),
    Way(HDF5_PART, "states.h5", write_hdf5, open_hdf5_part),
    Way("zarr padded fp16, zstd (its default)", "padded-zstd", write_zarr(True, False), open_zarr(False)),
    Way("zarr padded fp16, no compression", "padded", write_zarr(False, False), open_zarr(False)),
    Way(ZARR, "ragged", write_zarr(False, True), open_zarr(True)),
]
"""The raw states first: the others are written from them."""
