"""What the tests of stores share: windows and states made by hand, and the toy data as a store."""

import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bertvision.data.cutting import make_windows
from bertvision.data.examples import read_squad
from bertvision.data.windows import WindowConfig, Windows, unpack_windows
from bertvision.encoder.encoder import Encoder
from bertvision.errors import BertvisionError
from bertvision.states.config import EVERYTHING, Selection, StateType
from bertvision.states.store import Identity, Origin, Store, open_store
from bertvision.states.stored import StoredStates, encode, write_shard

IDENTITY = Identity("e", "c", "fp32", "w", {"stride": 1}, (0, 1, 2), hidden=4, positions="all", dtype="fp32")
ORIGIN = Origin(fingerprint="toy", preprocessing={}, name="toy")


def windows_of(lengths: list[int], seed: int = 0) -> Windows:
    """Windows of these lengths: the null token somewhere, the paragraph somewhere, perhaps of no token."""
    rng = np.random.default_rng(seed)
    count, total = len(lengths), sum(lengths)
    top = np.array(lengths, np.int64)
    context = np.sort(rng.integers(0, top[:, None] + 1, (count, 2)), axis=1).astype(np.int32)
    labels = np.sort(rng.integers(0, top[:, None], (count, 2)), axis=1).astype(np.int32)
    return Windows(
        ids=rng.integers(5, 60, total).astype(np.int32),
        types=np.zeros(total, np.uint8),
        chars=np.arange(2 * total, dtype=np.int32).reshape(-1, 2),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        example=np.arange(count, dtype=np.int32),
        context=context,
        labels=labels,
        null=rng.integers(0, top).astype(np.int32),
        best=np.zeros(total, np.bool_),
    )


def random_states(store: Store, seed: int = 0) -> list[Tensor]:
    """For each window (n, L, H) of what is kept, among them tokens of nothing but zeros and huge and tiny ones."""
    generator = torch.Generator().manual_seed(seed)
    layers, hidden = len(store.identity.layers), store.identity.hidden
    states = []
    for tokens in store.lengths.tolist():
        scale = 10.0 ** torch.randint(-3, 4, (tokens, layers, 1), generator=generator)
        scale[torch.rand(tokens, layers, 1, generator=generator) < 0.1] = 0
        states.append(torch.randn(tokens, layers, hidden, generator=generator) * scale)
    return states


def fill(store: Store, states: list[Tensor], numbers: list[int] | None = None, at_once: int = 2) -> None:
    """Write shards from the states of all windows, some windows a call."""
    for number in range(store.num_shards) if numbers is None else numbers:
        windows = store.shards[number].tolist()
        parts = [windows[begin : begin + at_once] for begin in range(0, len(windows), at_once)]
        joined = (torch.cat([states[w] for w in part]).transpose(0, 1) for part in parts)
        write_shard(store, number, (encode(part, store.identity.dtype) for part in joined))


def shard_bytes(folder: Path) -> dict[str, bytes]:
    """All that a store consists of, by name."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != ".lock"}


def marks(store: Store) -> dict[str, tuple[int, int]]:
    """Inode and time of every shard: whether it was written again."""
    return {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in store.folder.glob("shard-*")}


def flip(path: Path, position: int, bit: int = 0) -> None:
    """Turn one bit of a file over, in place."""
    with path.open("r+b") as handle:
        handle.seek(position)
        byte = handle.read(1)[0]
        handle.seek(position)
        handle.write(bytes([byte ^ (1 << bit)]))


@contextmanager
def nobody() -> Iterator[None]:
    """Without the rights of root, if we have them."""
    root = os.geteuid() == 0
    try:
        if root:
            os.seteuid(65534)
        yield
    finally:
        if root:
            os.seteuid(0)


def toy_store(
    root: str | Path,
    encoder: Encoder,
    windows: Windows,
    *,
    selection: Selection = EVERYTHING,
    dtype: StateType = "fp32",
    shard_tokens: int = 400,
    origin: Origin = ORIGIN,
) -> Store:
    """The store of toy windows, empty unless it was there."""
    which = Identity.of(encoder, origin, selection, dtype)
    return begun(Path(root) / which.key, which, windows, shard_tokens)


def begun(folder: Path, identity: Identity, windows: Windows, shard_tokens: int) -> Store:
    """A store on the disk, with small shards."""
    store = Store(folder, identity, windows, encoder="some encoder", data="some data")
    if not store.begun:
        store.shard_tokens = shard_tokens
    return store.begin()


def extract(store: Store, encoder: Encoder, *, tokens_per_call: int = 200) -> None:
    """Fill a store from the encoder."""
    StoredStates(encoder, store, tokens_per_call=tokens_per_call).fill()


def extraction(
    root: Path, encoder: Path, windows: Path, made: Path, *, wait_for: Path | None = None, pause: float = 0.0,
    **options: Any,
) -> None:  # fmt: skip
    """For a process of its own: extract a store and write down which shards were made; every error is one line."""
    real = StoredStates._encode_shard

    def encode_shard(self: StoredStates, number: int) -> None:
        real(self, number)
        time.sleep(pause)
        with open(made, "a") as file:  # not one of the operations that are counted
            file.write(f"{number}\n")

    StoredStates._encode_shard = encode_shard
    loaded = Encoder.load(str(encoder))
    found = unpack_windows(windows.read_bytes())
    assert found is not None
    if wait_for is not None:
        os.close(os.open(f"{made}.ready", os.O_CREAT | os.O_WRONLY))
        while not wait_for.exists():
            time.sleep(0.002)
    try:
        extract(toy_store(root, loaded, found, **options), loaded)
    except BertvisionError as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        sys.exit(error.exit_code)


# Fixtures, imported by the files that use them.


@pytest.fixture(scope="module", name="encoder")
def fixture_encoder(tiny_bert: Path) -> Encoder:
    return Encoder.load(str(tiny_bert))


@pytest.fixture(scope="module", name="windows")
def fixture_windows(encoder: Encoder, toy_squad: Path) -> Windows:
    config = WindowConfig(max_seq_length=48, max_query_length=16, doc_stride=16)
    return make_windows(read_squad(toy_squad), encoder.tokenizer, config)


@pytest.fixture(scope="module", name="whole")
def fixture_whole(
    encoder: Encoder, windows: Windows, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Path]]:
    """A finished store of each dtype, not to be touched: copy it."""
    found = {}
    for dtype in ("fp32", "int8"):
        store = toy_store(tmp_path_factory.mktemp(dtype), encoder, windows, dtype=dtype)
        extract(store, encoder)
        found[dtype] = store.folder
    before = {dtype: shard_bytes(folder) for dtype, folder in found.items()}
    yield found
    assert before == {dtype: shard_bytes(folder) for dtype, folder in found.items()}


def copied(whole: Path, root: Path) -> Store:
    """The store at `root`/KEY, as a process finds it that never looked at it before."""
    return open_store(shutil.copytree(whole, root / whole.name))


def epoch_states(states: StoredStates) -> dict[int, torch.Tensor]:
    """The states of every window, from batches of an epoch."""
    found = {}
    for batch in states.epoch(0, batch_size=4, seed=0):
        for row, window in enumerate(batch.windows.tolist()):
            found[window] = batch.states[:, row, batch.mask[row]].clone()
    return found


def same_states(source: StoredStates, right: Store) -> bool:
    found = epoch_states(source)
    assert sorted(found) == list(range(len(right.windows)))
    for window, states in found.items():
        raw, scales = right.read(window)
        wanted = raw.float().transpose(0, 1)
        wanted = wanted if scales is None else wanted * scales.T[..., None]
        if not torch.equal(states, wanted):
            return False
    return True
