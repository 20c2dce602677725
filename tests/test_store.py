"""Stores: written and read, damaged, killed, on full disks, by several processes; keys tell them apart."""

import dataclasses
import functools
import json
import os
import re
import resource
import shutil
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from killing import finish, start
from safetensors import safe_open
from safetensors.torch import load_file
from store_cases import (  # noqa: F401 (fixtures)
    IDENTITY,
    ORIGIN,
    begun,
    copied,
    epoch_states,
    extract,
    extraction,
    fill,
    fixture_encoder,
    fixture_whole,
    fixture_windows,
    flip,
    marks,
    nobody,
    random_states,
    same_states,
    shard_bytes,
    toy_store,
    windows_of,
)

from bertvision.data.windows import Windows, pack_windows
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError, EncoderError, OutputError
from bertvision.states.config import Selection
from bertvision.states.plan import shuffled_order, tokens_cut
from bertvision.states.store import LOCK, PLAN, SCHEMA, Identity, Origin, Store, local_root, open_store
from bertvision.states.stored import STORED, StoredStates, encode, load_into

LENGTHS = st.lists(st.integers(1, 40), min_size=0, max_size=40)
DTYPES = ("fp32", "bf16", "fp16", "int8")
quickly = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def make(root: str | Path, lengths: list[int], shard_tokens: int = 60, **identity: Any) -> Store:
    which = dataclasses.replace(IDENTITY, **identity)
    return begun(local_root(str(root)) / which.key, which, windows_of(lengths), shard_tokens)


def read_all(store: Store) -> None:
    for window in range(len(store.windows)):
        store.read(window)


# ---- round trips


@quickly
@given(
    lengths=LENGTHS,
    dtype=st.sampled_from(DTYPES),
    layers=st.lists(st.integers(0, 12), min_size=1, max_size=4, unique=True).map(tuple),
    hidden=st.integers(1, 9),
    positions=st.sampled_from(["all", "cls"]),
    shard_tokens=st.integers(1, 300),
    at_once=st.integers(1, 5),
)
def test_what_is_written_is_read(
    tmp_path: Path, lengths: list[int], shard_tokens: int, at_once: int, **identity: Any
) -> None:
    """Also by somebody who has neither the data nor the encoder, and by safetensors alone."""
    store = make(tmp_path / uuid.uuid4().hex, lengths, shard_tokens, **identity)
    states = random_states(store)
    fill(store, states, at_once=at_once)
    assert store.missing() == []
    again, dtype = open_store(store.folder), store.identity.dtype
    assert pack_windows(again.windows) == pack_windows(store.windows)
    assert (again.encoder, again.data, again.identity) == ("some encoder", "some data", store.identity)
    for window, wanted in enumerate(states):
        numbers, scales = again.read(window)
        assert numbers.dtype == STORED[dtype]
        if dtype != "int8":
            assert scales is None
            assert torch.equal(numbers, wanted.to(STORED[dtype]))
            continue
        assert scales is not None
        assert torch.equal(scales, wanted.abs().amax(-1) / 127)
        read = torch.empty(wanted.transpose(0, 1).shape)
        load_into(read, numbers, scales)
        error = (read.transpose(0, 1) - wanted).abs()
        assert (error <= scales[..., None] * (0.5 + 1e-4)).all()
    # Sizes are known before anything is written.
    sizes = [path.stat().st_size for path in store.folder.glob("shard-*")]
    assert len(sizes) == store.num_shards
    assert 0 <= sum(sizes) - store.nbytes < 400 * len(sizes) + 1, "all but the headers"
    plan = json.loads((store.folder / PLAN).read_text())
    assert (plan["shards"], plan["bytes"], plan["tokens"]) == (len(sizes), store.nbytes, sum(lengths))
    for number, windows in enumerate(store.shards):
        with safe_open(store.path(number), framework="pt") as handle:
            assert handle.metadata() == {"format": "pt", "bertvision": store.key, "shard": str(number)}
        parts = load_file(store.path(number))
        assert set(parts) == {"states", "crc", *(["scales"] if dtype == "int8" else [])}
        read = [again.read(window)[0] for window in windows.tolist()]
        assert torch.equal(parts["states"], torch.cat(read))


def test_the_smallest_numbers_survive_int8() -> None:
    """A scale that would be no normal number is none: numbers must not wrap around."""
    states = torch.tensor([[[2e-43, -2e-43], [3e-38, -1e-38], [0.0, 0.0], [254.0, 2.0]]])
    stored, scales = encode(states, "int8")
    assert scales is not None
    read = stored * scales[..., None]
    assert torch.allclose(read.transpose(0, 1), states, rtol=0.01, atol=1e-36)
    assert scales[:, 0].tolist() == [0.0, 0.0, 0.0, 2.0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_a_dtype_cannot_hold_is_refused(
    dtype: Any, tmp_path: Path, tiny_bert: Path, windows: Windows
) -> None:
    for value in (1e6, torch.nan, torch.inf):
        if value != 1e6 or dtype == "fp16":
            with pytest.raises(EncoderError, match="beyond fp16" if value == 1e6 else "no finite numbers"):
                encode(torch.tensor([[[1.0, value]]]), dtype)
    encoder = Encoder.load(str(tiny_bert))
    value, said = (
        (1e6, "beyond fp16: store them with --states.dtype") if dtype == "fp16" else (torch.nan, "finite")
    )
    with torch.no_grad():
        encoder.model.encoder.layer[-1].output.LayerNorm.weight.fill_(value)
    store = toy_store(tmp_path, encoder, windows, dtype=dtype)
    with pytest.raises(
        EncoderError
    ) as caught:  # its traceback keeps the lock: it must be let go, not collected
        extract(store, encoder)
    assert not list(tmp_path.glob("*/*shard*")), "nothing is left"
    FileLock(store.folder / LOCK).acquire(timeout=1)
    assert re.search(said, str(caught.value))


# ---- plans and keys


def test_the_order_of_windows_never_changes() -> None:
    """By hand: SplitMix64 of 1, 2, 3 ..., as every machine and version must compute it."""

    def splitmix(value: int) -> int:
        mask = 2**64 - 1
        value = (value * 0x9E3779B97F4A7C15) & mask
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
        return value ^ (value >> 31)

    assert splitmix(1) == 0xE220A8397B1DCDAF, "the first number of the published generator, seed 0"
    assert shuffled_order(10).tolist() == [2, 4, 6, 8, 5, 1, 7, 0, 9, 3]
    for count in (0, 1, 10, 1000):
        assert shuffled_order(count).tolist() == sorted(range(count), key=lambda i: splitmix(i + 1))


@settings(max_examples=80, deadline=None)
@given(LENGTHS, st.integers(1, 200))
def test_every_window_has_one_shard(lengths: list[int], shard_tokens: int) -> None:
    array = np.array(lengths, np.int64)
    store = Store(Path("nowhere"), IDENTITY, windows_of(lengths), encoder="", data="")
    store.shard_tokens = shard_tokens
    assert sorted(w for shard in store.shards for w in shard.tolist()) == list(range(len(lengths)))
    for number, windows in enumerate(store.shards):
        own = array[windows]
        assert len(own)
        assert own.sum() < shard_tokens + own.max()
        assert own.tolist() == sorted(own, reverse=True)
        for row, window in enumerate(windows.tolist()):
            assert store.places[window].tolist() == [number, row]
    # Brute force: windows in their order, a new shard wherever the tokens before a window pass a multiple.
    expected: dict[int, list[int]] = {}
    before = 0
    for window in shuffled_order(len(lengths)).tolist():
        expected.setdefault(before // shard_tokens, []).append(window)
        before += lengths[window]
    cut = tokens_cut(array, shard_tokens)
    assert [shard.tolist() for shard in cut] == list(expected.values())


def test_every_field_counts() -> None:
    changes: dict[str, Any] = {
        "encoder": "f", "configuration": "d", "precision": "bf16", "windows": "v", "preprocessing": {"stride": 2},
        "layers": (0, 2, 1), "hidden": 5, "positions": "cls", "dtype": "fp16", "schema": SCHEMA + 1,
    }  # fmt: skip
    assert changes.keys() == {f.name for f in dataclasses.fields(IDENTITY)}
    keys = {dataclasses.replace(IDENTITY, **{name: value}).key for name, value in changes.items()}
    assert len(keys | {IDENTITY.key}) == len(changes) + 1


def test_equal_weights_under_another_activation_have_another_key(tiny_bert: Path, tmp_path: Path) -> None:
    renamed = shutil.copytree(tiny_bert, tmp_path / "renamed")

    def key(precision: Any = "fp32") -> str:
        encoder = Encoder.load(str(renamed), precision=precision)
        return Identity.of(encoder, ORIGIN, Selection(), "fp16").key

    found = [key(), key("bf16")]
    assert found[0] == Identity.of(Encoder.load(str(tiny_bert)), ORIGIN, Selection(), "fp16").key, "names"
    path = renamed / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hidden_act": "relu"}))
    assert len({*found, key()}) == 3


# ---- damage


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_every_flipped_byte_is_found(tmp_path: Path, dtype: str) -> None:
    """All of them, one after another, when it is first read and by `verify`."""
    store = make(tmp_path, [3, 5, 2], dtype=dtype, hidden=3, layers=(1,))
    assert store.num_shards == 1
    fill(store, random_states(store))
    path = store.path(0)
    read_all(store)
    for position in range(path.stat().st_size):
        flip(path, position, position % 8)
        for check in (lambda: read_all(open_store(store.folder)), lambda: store.verify(0)):
            with pytest.raises(ArtifactError, match=r"shard-00000\.safetensors"):
                check()
        flip(path, position, position % 8)
    store.verify(0)
    other = make(tmp_path, [3, 5, 2], dtype=dtype, hidden=3, layers=(1,), encoder="another")
    shutil.copy(path, other.path(0))
    with pytest.raises(ArtifactError, match="its header"):
        read_all(other)


def test_a_fit_ends_at_a_damaged_shard(tmp_path: Path, encoder: Encoder, whole: dict[str, Path]) -> None:
    """`cache verify --drop` (test_cache.py) removes it; only that one is made again."""
    store = copied(whole["int8"], tmp_path)
    path = store.path(2)
    for length in (0, path.stat().st_size // 2):
        os.truncate(path, length)
        with pytest.raises(
            ArtifactError, match=r"shard-00002\.safetensors is damaged .* `bertvision cache verify --drop`"
        ):
            epoch_states(StoredStates(encoder, open_store(store.folder), tokens_per_call=200))
    path.unlink()
    before = marks(store)
    assert same_states(StoredStates(encoder, store, tokens_per_call=200), open_store(whole["int8"]))
    after = marks(store)
    assert {name for name in after if after[name] != before.get(name)} == {path.name}
    assert shard_bytes(store.folder) == shard_bytes(whole["int8"])


def test_what_is_missing_is_not_made_in_another_precision(
    tmp_path: Path, tiny_bert: Path, windows: Windows, encoder: Encoder
) -> None:
    half = Encoder.load(str(tiny_bert), precision="bf16")
    store = toy_store(tmp_path, half, windows)
    with pytest.raises(ArtifactError, match=r"computed in bf16: .* use --precision bf16"):
        epoch_states(StoredStates(encoder, store))
    extract(store, half)
    assert len(epoch_states(StoredStates(encoder, store))) == len(windows), "reading is another matter"


def test_a_broken_plan_is_one_sentence(tmp_path: Path) -> None:
    store = make(tmp_path, [7, 30, 2, 18])
    path = store.folder / PLAN
    right = path.read_text()
    about = json.loads(right)
    wrong = [
        "", "{", "[]", "{}", "3", "null", right.replace('"e"', '"f"'), right.replace("60", "61"),
        *(json.dumps({k: v for k, v in about.items() if k != name}) for name in about),
    ]  # fmt: skip
    for text in wrong:
        path.write_text(text)
        with pytest.raises(ArtifactError, match=r"^[^\n]*cache rm[^\n]*$"):
            open_store(store.folder)
    path.unlink()
    with pytest.raises(ArtifactError, match="holds no stored states"):
        open_store(store.folder)
    assert make(tmp_path, [7, 30, 2, 18]).num_shards == store.num_shards, "made again"


# ---- where a store may lie


def test_many_shards_keep_no_file_open(tmp_path: Path) -> None:
    store = make(tmp_path, [5] * 120, shard_tokens=5)
    fill(store, random_states(store))
    before = len(os.listdir("/proc/self/fd"))
    read_all(store)
    assert store.shard.cache_info().currsize == 120
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def work(tmp_path: Path, tiny_bert: Path, windows: Windows) -> functools.partial[None]:
    """Extraction in a process of its own, into tmp_path/states."""
    (tmp_path / "windows").write_bytes(pack_windows(windows))
    return functools.partial(
        extraction, tmp_path / "states", tiny_bert, tmp_path / "windows", tmp_path / "made"
    )


def wait_for(ready: Any, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not ready() and time.monotonic() < until:
        time.sleep(0.002)


# ---- killed


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_every_operation_it_ends_the_same(
    tmp_path: Path, encoder: Encoder, windows: Windows, work: functools.partial[None], stride: int
) -> None:
    """At most one shard is lost, whatever was being written, and what was finished is not made again.

    An extraction and a fit go on in turn.
    """
    assert finish(functools.partial(work, shard_tokens=900), tmp_path / "log") == 0
    root = tmp_path / "states"
    right = shard_bytes(next(root.iterdir()))
    operations = int((tmp_path / "log.count").read_text())
    assert operations > 3 * sum(name.startswith("shard-") for name in right)
    for number in range(1, operations + 1, stride):
        shutil.rmtree(root)
        (tmp_path / "made").unlink(missing_ok=True)
        assert finish(functools.partial(work, shard_tokens=900), tmp_path / "log", die_at=number) == -9
        begun = len((tmp_path / "made").read_text().split()) if (tmp_path / "made").exists() else 0
        store = toy_store(root, encoder, windows, shard_tokens=900)
        before = marks(store)
        assert len(before) in (begun, begun + 1)
        extract(store, encoder) if number % 2 else epoch_states(
            StoredStates(encoder, store, tokens_per_call=200)
        )
        after = marks(store)
        assert {name: after[name] for name in before} == before
        assert shard_bytes(store.folder) == right, f"killed at operation {number}"


# ---- a disk that is full


def limited_extraction(work: functools.partial[None], limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    work()


def test_a_disk_that_takes_no_more(
    tmp_path: Path, whole: dict[str, Path], work: functools.partial[None]
) -> None:
    """The system itself refuses to let a shard grow: one sentence, and with room it goes on from what is there."""
    sizes = {path.name: path.stat().st_size for path in sorted(whole["fp32"].glob("shard-*"))}
    limit, log = sorted(sizes.values())[-3] - 100, tmp_path / "log"
    assert finish(functools.partial(limited_extraction, work, limit), log) == 2
    said, first = log.read_text().splitlines()[-1], min(name for name, size in sizes.items() if size > limit)
    there = sorted(sizes).index(first)
    assert re.match(
        rf"OutputError: cannot write \S+{first}: .*\({there} of {len(sizes)} shards are there", said
    )
    folder = next((tmp_path / "states").iterdir())
    assert sorted(path.name for path in folder.iterdir() if "shard" in path.name) == sorted(sizes)[:there]
    before = {path: path.stat().st_mtime_ns for path in folder.glob("shard-*")}
    assert finish(work, log) == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert shard_bytes(folder) == shard_bytes(whole["fp32"])


# ---- several at once


def together(work: functools.partial[None], tmp_path: Path, *options: dict[str, Any]) -> list[Any]:
    """Start processes, let them load, and let them go at once."""
    go, started = tmp_path / "go", []
    for i, chosen in enumerate(options):
        one = functools.partial(extraction, *work.args[:3], tmp_path / f"made{i}", wait_for=go, **chosen)
        started.append(start(one, tmp_path / f"log{i}"))
    wait_for(lambda: len(list(tmp_path.glob("made*.ready"))) == len(options))
    go.touch()
    return started


def made_by(tmp_path: Path, number: int) -> list[int]:
    path = tmp_path / f"made{number}"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


@pytest.mark.parametrize("killed", [False, True])
def test_two_processes_make_each_shard_once(
    killed: bool, tmp_path: Path, whole: dict[str, Path], work: functools.partial[None]
) -> None:
    """The lock of a process that is killed dies with it."""
    both = together(work, tmp_path, *[{"pause": 0.2 if killed else 0.01}] * 2)
    if killed:
        wait_for(lambda: made_by(tmp_path, 0) or made_by(tmp_path, 1))
        both[0 if made_by(tmp_path, 0) else 1].kill()
    for process in both:
        process.join(60)
    assert sorted(process.exitcode for process in both) == ([-9, 0] if killed else [0, 0])
    folder = next((tmp_path / "states").iterdir())
    assert shard_bytes(folder) == shard_bytes(whole["fp32"])
    made = made_by(tmp_path, 0) + made_by(tmp_path, 1)
    assert killed or sorted(made) == list(range(len(list(folder.glob("shard-*")))))


# ---- what else happens to folders


def test_a_finished_store_that_nobody_may_write_to(
    encoder: Encoder, windows: Windows, whole: dict[str, Path]
) -> None:
    """It is read all the same; another cannot be begun beside it."""
    with tempfile.TemporaryDirectory() as root:  # pytest's own folders are closed to others
        store = copied(whole["fp32"], Path(root))
        (store.folder / ".lock").unlink(missing_ok=True)
        for path in (store.folder, Path(root)):
            path.chmod(0o555)
        before = sorted(os.listdir(store.folder))
        with nobody():
            states = StoredStates(encoder, toy_store(root, encoder, windows), tokens_per_call=200)
            assert len(epoch_states(states)) == len(windows)
            with pytest.raises(OutputError, match="permission denied"):
                toy_store(root, encoder, windows, dtype="fp16")
        assert sorted(os.listdir(store.folder)) == before
        for path in (Path(root), store.folder):
            path.chmod(0o755)


def test_no_window_and_windows_longer_than_a_shard(tmp_path: Path, encoder: Encoder) -> None:
    for lengths in ([], [40, 50, 60, 3], [1]):
        store = toy_store(
            tmp_path, encoder, windows_of(lengths), shard_tokens=10, origin=Origin(str(lengths), {}, "")
        )
        states = StoredStates(encoder, store, tokens_per_call=50)
        assert len(epoch_states(states)) == len(lengths)
        assert not store.missing()
