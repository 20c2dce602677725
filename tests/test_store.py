"""Stores on their own: what is written is read, planned sizes are the files', keys tell apart what differs."""

import contextlib
import dataclasses
import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file
from store_cases import IDENTITY, ORIGIN, fill, flip, random_states, shard_bytes, windows_of

from bertvision.data.kept import kept_tokens
from bertvision.data.windows import WindowConfig
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError, ConfigError, OutputError
from bertvision.states.codec import STORED, as_tensor, encode, load_into
from bertvision.states.config import Selection
from bertvision.states.extract import store_identity
from bertvision.states.folder import Folder, LocalFolder, RemoteFolder, open_folder
from bertvision.states.identity import SCHEMA
from bertvision.states.layout import ShardPlan, shuffled_order, tokens_cut
from bertvision.states.shard import DamagedShard
from bertvision.states.store import Store, create_store, open_store
from bertvision.train.splits import load_split

LENGTHS = st.lists(st.integers(1, 40), min_size=0, max_size=40)
DTYPES = ("fp32", "bf16", "fp16", "int8")


def make(root: str | Path, lengths: list[int], shard_tokens: int = 60, **identity: Any) -> Store:
    which = dataclasses.replace(IDENTITY, **identity)
    return create_store(
        root, which, windows_of(lengths), encoder="some encoder", data="some data", shard_tokens=shard_tokens
    )


# ---- round trips


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=LENGTHS,
    dtype=st.sampled_from(DTYPES),
    layers=st.lists(st.integers(0, 12), min_size=1, max_size=4, unique=True).map(tuple),
    hidden=st.integers(1, 9),
    positions=st.sampled_from(["all", "cls", "context"]),
    shard_tokens=st.integers(1, 300),
    at_once=st.integers(1, 5),
)
def test_what_is_written_is_read(
    tmp_path: Path, lengths: list[int], shard_tokens: int, at_once: int, **identity: Any
) -> None:
    store = make(tmp_path / uuid.uuid4().hex, lengths, shard_tokens, **identity)
    states = random_states(store)
    fill(store, states, at_once=at_once)
    assert store.finish()
    assert store.info is not None
    again, dtype = open_store(store.folder.address), store.identity.dtype
    assert again.windows.equals(store.windows)
    for window, wanted in enumerate(states):
        raw, scales = again.read(window)
        numbers = as_tensor(raw, dtype)
        assert numbers.dtype == STORED[dtype]
        if dtype != "int8":
            assert scales is None
            assert torch.equal(numbers, wanted.to(STORED[dtype]))
            continue
        assert scales is not None
        assert np.array_equal(scales, (wanted.abs().amax(-1) / 127).numpy())
        read = torch.empty(wanted.transpose(0, 1).shape)
        load_into(read, numbers, torch.from_numpy(scales))
        error = (read.transpose(0, 1) - wanted).abs().numpy()
        assert (error <= scales[..., None] * (0.5 + 1e-4)).all()
    # Sizes are known before anything is written.
    sizes = [path.stat().st_size for path in Path(store.folder.address).glob("shard-*")]
    assert (len(sizes), sum(sizes)) == (store.num_shards, store.nbytes)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=12),
    st.sampled_from(DTYPES),
    st.integers(1, 9),
    st.integers(1, 3),
)
def test_anyone_can_open_a_shard(
    tmp_path: Path, lengths: list[int], dtype: str, hidden: int, layers: int
) -> None:
    """With safetensors alone: also where numbers of odd size stand before those of eight bytes."""
    store = make(
        tmp_path / uuid.uuid4().hex, lengths, hidden=hidden, dtype=dtype, layers=tuple(range(layers))
    )
    states = random_states(store)
    fill(store, states)
    for number, windows in enumerate(store.plan.shards):
        path = Path(store.path(number))
        whole = load_file(path)
        with safe_open(path, framework="pt") as handle:
            assert handle.metadata() == {"bertvision": store.key, "shard": str(number)}
            for name, tensor in whole.items():
                assert torch.equal(handle.get_tensor(name), tensor)
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        for name, tensor in whole.items():
            place = 8 + length + header[name]["data_offsets"][0]
            assert place % tensor.itemsize == 0, f"{name} can be read where it stands"
        assert whole["states"].dtype == STORED[dtype]
        assert whole["windows"].tolist() == windows.tolist()
        for row, window in enumerate(windows.tolist()):
            begin, end = whole["offsets"][row : row + 2].tolist()
            stored, scales = store.read(window)
            assert torch.equal(whole["states"][begin:end], as_tensor(stored, dtype))
            if scales is not None:
                assert torch.equal(whole["scales"][begin:end], torch.from_numpy(scales))
        parts = torch.cat([states[w] for w in windows.tolist()]).double()
        moments = torch.stack([parts.sum((0, 2)), parts.square().sum((0, 2))])
        # Sums may cancel: what they are exact to follows from what was added, not from what is left of it.
        added = torch.stack([parts.abs().sum((0, 2)), parts.square().sum((0, 2))])
        assert ((whole["moments"] - moments).abs() <= 1e-5 * added + 1e-5).all()


def test_the_smallest_numbers_survive_int8() -> None:
    """A scale that would be no normal number is none: numbers must not wrap around."""
    states = torch.tensor([[[2e-43, -2e-43], [3e-38, -1e-38], [0.0, 0.0], [254.0, 2.0]]])
    stored, scales, _ = encode(states, "int8")
    assert scales is not None
    read = torch.from_numpy(stored) * torch.from_numpy(scales)[..., None]
    assert torch.allclose(read.transpose(0, 1), states, rtol=0.01, atol=1e-36)
    assert scales[:, 0].tolist() == [0.0, 0.0, 0.0, 2.0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_a_dtype_cannot_hold_is_refused(dtype: Any) -> None:
    beyond = torch.full((1, 2, 3), 1e6)
    if dtype == "fp16":
        with pytest.raises(OverflowError, match="fp16"):
            encode(beyond, dtype)
    else:
        encode(beyond, dtype)
    for nonsense in (torch.nan, torch.inf):
        with pytest.raises(FloatingPointError):
            encode(torch.tensor([[[1.0, nonsense]]]), dtype)


# ---- plans


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
    plan = ShardPlan(array, np.maximum(array // 2, 1), shard_tokens)
    assert sorted(w for shard in plan.shards for w in shard.tolist()) == list(range(len(lengths)))
    for number, windows in enumerate(plan.shards):
        own = array[windows]
        assert len(own)
        assert own.sum() < shard_tokens + own.max()
        assert own.tolist() == sorted(own, reverse=True)
        assert plan.offsets(number).tolist() == [0, *np.cumsum(plan.kept[windows]).tolist()]
        for row, window in enumerate(windows.tolist()):
            assert (plan.shard_of[window], plan.row_of[window]) == (number, row)
    if lengths:
        assert len(plan.shards) <= sum(lengths) // shard_tokens + 1
    # Brute force: windows in their order, a new shard wherever the tokens before a window pass a multiple.
    expected: dict[int, list[int]] = {}
    before = 0
    for window in shuffled_order(len(lengths)).tolist():
        expected.setdefault(before // shard_tokens, []).append(window)
        before += lengths[window]
    cut = tokens_cut(array, shard_tokens)
    assert [shard.tolist() for shard in cut] == list(expected.values())


def test_a_large_plan_is_made_by_arrays() -> None:
    """As many windows as SQuAD has: some hundred shards, each of one size."""
    lengths = np.random.default_rng(0).integers(40, 385, 130_000)
    plan = ShardPlan(lengths, lengths)
    sizes = np.array([lengths[shard].sum() for shard in plan.shards])
    assert len(sizes) == -(-int(lengths.sum()) // plan.shard_tokens)
    assert (abs(sizes[:-1] - plan.shard_tokens) < 385).all()
    assert np.bincount(plan.shard_of).sum() == 130_000


# ---- info.json


@pytest.mark.parametrize("dtype", DTYPES)
def test_info_describes_what_is_there(tmp_path: Path, dtype: str) -> None:
    store = make(tmp_path, [7, 30, 2, 18, 18, 5, 40], dtype=dtype)
    states = random_states(store)
    assert not store.finish(), "nothing is there yet"
    assert store.info is None
    fill(store, states, [1])
    assert (store.missing(), store.finished()) == ([0, *range(2, store.num_shards)], {1})
    fill(store, states, store.missing())
    assert store.finish()
    assert store.missing() == []
    info = json.loads((Path(store.folder.address) / "info.json").read_text())
    everything = torch.cat(states).double().numpy()  # (N, L, H)
    assert np.allclose(info["mean"], everything.mean((0, 2)), rtol=1e-5, atol=1e-4)
    assert np.allclose(info["std"], everything.std((0, 2)), rtol=1e-5)
    assert (info["schema"], info["key"]) == (SCHEMA, store.identity.key)
    assert (info["encoder"], info["data"], info["windows"], info["tokens"]) == (
        "some encoder", "some data", 7, 120,
    )  # fmt: skip
    assert sum(shard["tokens"] for shard in info["shards"]) == 120
    for number, shard in enumerate(info["shards"]):
        path = Path(store.path(number))
        assert (shard["file"], shard["bytes"]) == (path.name, path.stat().st_size)
        assert shard["checksum"] == int(load_file(path)["seal"].view(torch.int32)[0]) % 2**32
    json.loads(json.dumps(info), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_a_damaged_info_is_written_again(tmp_path: Path) -> None:
    store = make(tmp_path, [7, 30, 2, 18])
    fill(store, random_states(store))
    assert store.finish()
    path = Path(store.folder.address) / "info.json"
    right = path.read_bytes()
    for wrong in (b"", b"{}", b"[1]", b"\xff", right[:-20], right.replace(b'"checksum"', b'"chicksum"')):
        path.write_bytes(wrong)
        other = open_store(store.folder)
        assert other.info is None
        other.read(0)
        assert other.finish()
        assert path.read_bytes() == right


# ---- identity


@pytest.mark.parametrize(
    "change",
    [
        {"encoder": "f"},
        {"configuration": "d"},
        {"precision": "bf16"},
        {"windows": "v"},
        {"preprocessing": {"stride": 2}},
        {"layers": (0, 2, 1)},
        {"layers": (0, 1)},
        {"hidden": 5},
        {"positions": "cls"},
        {"dtype": "fp16"},
        {"schema": SCHEMA + 1},
    ],
    ids=str,
)
def test_every_field_counts(change: dict[str, Any]) -> None:
    assert dataclasses.replace(IDENTITY, **change).key != IDENTITY.key


def test_the_fields_above_are_all_there_are() -> None:
    tested = {"encoder", "configuration", "precision", "windows", "preprocessing", "layers", "hidden"}
    assert {field.name for field in dataclasses.fields(IDENTITY)} == tested | {
        "positions", "dtype", "schema",
    }  # fmt: skip


def key_of(folder: Path, data: Path, stride: int = 24, edit: Callable[[Any], None] | None = None) -> str:
    encoder = Encoder.load(str(folder), precision="fp32")
    if edit is not None:
        edit(encoder)
        encoder.changed()
    config = WindowConfig(max_seq_length=64, max_query_length=16, doc_stride=stride)
    split = load_split(str(data), encoder, config)
    return store_identity(encoder, split.origin, Selection(), "fp16").key


def test_no_snapshot_reads_the_store_of_another(tiny_bert: Path, toy_squad: Path, tmp_path: Path) -> None:
    key = key_of(tiny_bert, toy_squad)
    renamed = shutil.copytree(tiny_bert, tmp_path / "renamed")
    assert key_of(renamed, toy_squad) == key, "names never count"
    data = shutil.copy(toy_squad, tmp_path / "other name.json")
    assert key_of(tiny_bert, Path(data)) == key

    def tune(encoder: Encoder) -> None:
        with torch.no_grad():
            next(encoder.model.parameters()).view(-1)[7] += 1e-6

    settings_path = renamed / "config.json"
    config = json.loads(settings_path.read_text())
    settings_path.write_text(json.dumps(config | {"hidden_act": "relu"}))
    keys = {
        key,
        key_of(tiny_bert, toy_squad, edit=tune),
        key_of(tiny_bert, toy_squad, stride=16),
        key_of(renamed, toy_squad),
    }
    assert len(keys) == 4
    encoder = Encoder.load(str(tiny_bert), precision="bf16")
    assert store_identity(encoder, ORIGIN, Selection(), "fp16").precision == "bf16"


# ---- where a store may lie


def test_a_store_needs_neither_data_nor_encoder(tmp_path: Path) -> None:
    store = make(tmp_path / "here", [7, 30, 2, 18], positions="context")
    states = random_states(store)
    fill(store, states)
    store.finish()
    elsewhere = shutil.copytree(store.folder.address, tmp_path / "elsewhere" / "any name")
    shutil.rmtree(tmp_path / "here")
    other = open_store(elsewhere)
    assert other.windows.equals(windows_of([7, 30, 2, 18]))
    kept = kept_tokens(other.windows, "context")
    assert other.kept.num_tokens == kept.sum()
    for window, wanted in enumerate(states):
        assert torch.equal(torch.from_numpy(other.read(window)[0]), wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_file_system_holds_the_same_bytes(tmp_path: Path, dtype: str) -> None:
    address = f"memory://{uuid.uuid4().hex}/states"
    local, remote = (make(root, [7, 30, 2, 18, 9], 20, dtype=dtype) for root in (tmp_path, address))
    assert isinstance(remote.folder, RemoteFolder)
    for store in (local, remote):
        assert store.missing() == list(range(store.num_shards))
        fill(store, random_states(store))
        assert store.finish()
    kept = shard_bytes(Path(local.folder.address))
    assert remote.folder.names() == sorted(kept)
    for name, content in kept.items():
        assert remote.folder.read(name) == content
        assert remote.folder.size(name) == len(content)
        assert (remote.folder.age(name) or 0) < 1000
    again = open_store(remote.folder.address)
    for number in range(again.num_shards):
        again.verify(number)
    for window in range(5):
        for mine, other in zip(local.read(window), again.read(window), strict=True):
            assert mine is other is None or np.array_equal(mine, other)  # pyright: ignore
    again.drop(1)
    assert again.missing() == [1]
    assert again.info is None
    again.folder.delete()
    assert again.folder.names() == []


def begin_and_fail(store: Store, states: list[torch.Tensor], error: type[BaseException]) -> None:
    with store.write(0) as writer:
        stored, _, moments = encode(states[int(store.plan.shards[0][0])].transpose(0, 1), "fp32")
        writer.append(stored, moments)
        raise error


def folders(root: Path) -> list[Folder]:
    """One of each kind: of this machine, in memory, and the local one as fsspec sees it."""
    system = fsspec.filesystem("file", skip_instance_cache=True)
    path = str(root / "fsspec")
    return [
        open_folder(root / "plain"),
        open_folder(f"memory://{root.name}"),
        RemoteFolder(system, path, path),
    ]


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_a_failing_write_leaves_nothing(tmp_path: Path, kind: int) -> None:
    store = make(tmp_path, [7, 30, 2, 18])
    store.folder = folders(tmp_path)[kind]
    states, before = random_states(store), store.folder.names()
    for error in (RuntimeError, KeyboardInterrupt):
        with pytest.raises(error):
            begin_and_fail(store, states, error)
        assert store.folder.names() == before
        assert store.finished() == set()
    fill(store, states)
    assert store.finish(), "and the next write does well"


def test_a_file_is_not_seen_before_it_is_whole(tmp_path: Path) -> None:
    for folder in folders(tmp_path):
        assert folder.names() == []
        with folder.write("file") as file:
            file.write(b"begun")
            assert folder.size("file") is None
            assert "file" not in folder.names()
        assert folder.read("file") == b"begun"
        assert not folder.create("file", b"another"), "the first one counts"
        assert folder.create("second", b"second")
        assert folder.names() == ["file", "second"]
        assert (folder.read("file", 1, 3), folder.read("second", 4)) == (b"eg", b"nd")
        folder.remove("file")
        folder.remove("file")
        assert folder.names() == ["second"]
        with pytest.raises(FileNotFoundError):
            folder.read("file")


def test_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for address in (
        "~/real",
        "real",
        "link",
        f"file://{tmp_path}/real",
        Path("real"),
        "./real",
        "file://~/real",
    ):
        folder = open_folder(address)
        assert isinstance(folder, LocalFolder)
        store = make(address, [3, 4])
        assert os.path.samefile(store.folder.address, tmp_path / "real" / IDENTITY.key)
        assert (store.folder.free() or 0) > 0
        fill(store, random_states(store))
        assert store.finish()
        store.folder.delete()
        assert folder.names() == []
        assert sorted(os.listdir(tmp_path)) == ["link", "real"]
    with pytest.raises(ConfigError, match=r"nonsense://x .*give a folder"):
        open_folder("nonsense://x")


def test_a_store_behind_a_link_is_deleted_there(tmp_path: Path) -> None:
    store = make(tmp_path / "large disk", [3, 4])
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / store.key).symlink_to(store.folder.address)
    open_store(tmp_path / "here" / store.key).folder.delete()
    assert {path.name for path in tmp_path.rglob("*")} == {"large disk", "here"}


# ---- what is broken


def test_a_broken_plan_is_one_sentence(tmp_path: Path) -> None:
    store = make(tmp_path, [7, 30, 2, 18])
    path = Path(store.folder.address) / "plan.json"
    right = path.read_text()
    about = json.loads(right)
    without = [
        {k: v for k, v in about.items() if k != name}
        for name in ("key", "identity", "windows", "shard_tokens")
    ]
    wrong = [
        "", "{", "[]", "{}", "3", "null", right.replace('"e"', '"f"'),
        *map(json.dumps, without),
        *(json.dumps(about | {"shard_tokens": value}) for value in (0, -3, "many", None)),
        json.dumps(about | {"identity": 3}), json.dumps(about | {"identity": {"layers": 3}}),
        json.dumps(about | {"schema": SCHEMA + 1}),
    ]  # fmt: skip
    for text in wrong:
        path.write_text(text)
        with pytest.raises(ArtifactError, match=r"^[^\n]*cache rm[^\n]*$"):
            open_store(store.folder)
    path.unlink()
    with pytest.raises(ArtifactError, match="holds no stored states"):
        open_store(store.folder)
    assert make(tmp_path, [7, 30, 2, 18]).num_shards == store.num_shards, "made again"


def test_broken_windows(tmp_path: Path) -> None:
    """Without the data they are one sentence; with it they are written again, and the shards stay."""
    store = make(tmp_path, [7, 30, 2, 18])
    fill(store, random_states(store))
    store.finish()
    path = Path(store.folder.address) / "windows.safetensors"
    right, blob = shard_bytes(path.parent), path.read_bytes()
    for position in range(0, path.stat().st_size, 23):
        flip(path, position)
        # Some flips change nothing, such as that of a blank in the header.
        with contextlib.suppress(ArtifactError):
            assert open_store(store.folder).windows.equals(store.windows)
        flip(path, position)
    path.unlink()
    with pytest.raises(ArtifactError, match="cache rm"):
        open_store(store.folder)
    path.write_bytes(blob[:-5])
    make(tmp_path, [7, 30, 2, 18])
    assert shard_bytes(path.parent) == right
    assert open_store(store.folder).windows.equals(store.windows)


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        make(tmp_path / "file" / "states", [3])


def test_no_window_at_all(tmp_path: Path) -> None:
    store = make(tmp_path, [], positions="context")
    assert (store.num_shards, store.nbytes, store.missing()) == (0, 0, [])
    assert store.finish()
    assert open_store(store.folder).windows.num_tokens == 0


def test_the_number_of_open_shards_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bertvision.states import store as module

    monkeypatch.setattr(module, "_OPEN", 2)
    store = make(tmp_path, [5] * 60, shard_tokens=10, dtype="int8")
    states = random_states(store)
    fill(store, states)
    assert store.num_shards == 30
    held = [store.read(window) for window in range(60)]
    assert len(store._open) == 2
    for (raw, scales), wanted in zip(held, states, strict=True):
        assert scales is not None, "and what was read before stays what it was"
        assert np.allclose(raw * scales[..., None], wanted.numpy(), atol=float(scales.max()) * 0.51)


def test_many_shards_keep_no_file_open(tmp_path: Path) -> None:
    store = make(tmp_path, [5] * 120, shard_tokens=5)
    fill(store, random_states(store))
    before = len(os.listdir("/proc/self/fd"))
    for window in range(120):
        store.read(window)
    assert len(store._open) == 120
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_shard_of_another_store_is_not_taken_for_its_own(tmp_path: Path) -> None:
    one, other = (make(tmp_path, [7, 30, 2, 18], encoder=name) for name in "xy")
    for seed, store in enumerate((one, other)):
        fill(store, random_states(store, seed))
        store.finish()
    shutil.copy(one.path(0), other.path(0))
    with pytest.raises(DamagedShard, match=r"shard-00000\.safetensors: its header"):
        open_store(other.folder).read(int(other.plan.shards[0][0]))
