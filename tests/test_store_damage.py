"""Stores that were damaged: every flipped bit is found, and a feed mends just the shard it was in."""

import logging
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from store_cases import (  # noqa: F401 (fixtures)
    copied,
    epoch_states,
    extract,
    fill,
    fixture_encoder,
    fixture_whole,
    fixture_windows,
    flip,
    marks,
    random_states,
    same_states,
    shard_bytes,
    toy_store,
)
from test_store import make

from bertvision.data.windows import Windows
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError, EncoderError
from bertvision.states.folder import LocalFolder
from bertvision.states.shard import DamagedShard, ShardLayout, shard_name
from bertvision.states.store import Store, open_store
from bertvision.states.stored import StoredStates


def parts_of(layout: ShardLayout) -> dict[str, tuple[int, int]]:
    """Where everything stands in a shard's file."""
    found, at = (
        {"length": (0, 8), "header": (8, len(layout.header)), "states": (len(layout.header), layout.tail_at)},
        layout.tail_at,
    )
    for name, part in layout.tail_parts.items():
        found[name] = (at, at + part.nbytes)
        at += part.nbytes
    assert at == layout.nbytes
    return {name: place for name, place in found.items() if place[1] > place[0]}


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
@pytest.mark.parametrize("finished", [True, False], ids=["finished", "unfinished"])
def test_every_flipped_byte_is_found(tmp_path: Path, dtype: str, finished: bool) -> None:
    """All of them, one after another, on first read and by `verify`, also before there is an info.json."""
    store = make(tmp_path, [3, 5, 2], dtype=dtype, hidden=3, layers=(1,))
    assert store.num_shards == 1
    fill(store, random_states(store))
    if finished:
        store.finish()
    path, warm = Path(store.path(0)), open_store(store.folder)
    for window in range(3):
        warm.read(window)
    for position in range(path.stat().st_size):
        flip(path, position, position % 8)
        cold = open_store(store.folder)
        for check in (lambda cold=cold: cold.verify(0), lambda: warm.verify(0)):
            with pytest.raises(DamagedShard, match=r"shard-00000\.safetensors"):
                check()
        with pytest.raises(DamagedShard, match=r"shard-00000\.safetensors"):
            read_all(open_store(store.folder))
        flip(path, position, position % 8)
    warm.verify(0)


def read_all(store: Store) -> None:
    for window in range(len(store.windows)):
        store.read(window)


@pytest.mark.parametrize("dtype", ["fp32", "int8"])
@pytest.mark.parametrize(
    "what",
    ["length", "header", "states", "windows", "offsets", "moments", "scales", "crc", "seal", "cut", "empty", "gone"],
)  # fmt: skip
def test_a_feed_mends_just_what_is_damaged(
    tmp_path: Path, encoder: Encoder, whole: dict[str, Path], dtype: str, what: str, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    store = copied(whole[dtype], tmp_path)
    number, path = 2, Path(store.path(2))
    places = parts_of(store.layout(number))
    if what in places:
        begin, end = places[what]
        flip(path, (begin + end) // 2, 3)
    elif what == "scales":
        return  # only int8 has them
    elif what == "gone":
        path.unlink()
    else:
        os.truncate(path, 0 if what == "empty" else path.stat().st_size // 2)
    before = marks(store)
    with pytest.raises(DamagedShard, match=r"shard-00002\.safetensors"):
        read_all(open_store(store.folder))
    states = StoredStates(encoder, open_store(store.folder), tokens_per_call=200)
    with caplog.at_level(logging.WARNING, "bertvision"):
        assert same_states(states, open_store(whole[dtype]))
    warned = [record.getMessage() for record in caplog.records]
    if what != "gone":
        assert len(warned) == 1, "made once, however many batches wanted it"
        assert path.name in warned[0]
    after = marks(store)
    assert {name for name in after if after[name] != before.get(name)} == {path.name}
    assert shard_bytes(Path(store.folder.address)) == shard_bytes(whole[dtype])
    assert same_states(states, open_store(whole[dtype])), "and again"


def test_all_shards_damaged_at_once(tmp_path: Path, encoder: Encoder, whole: dict[str, Path]) -> None:
    store = copied(whole["fp32"], tmp_path)
    for number in range(store.num_shards):
        flip(Path(store.path(number)), store.layout(number).nbytes // 2)
    assert same_states(StoredStates(encoder, store, tokens_per_call=200), open_store(whole["fp32"]))
    assert shard_bytes(Path(store.folder.address)) == shard_bytes(whole["fp32"])


def test_a_disk_that_keeps_nothing_ends_the_run(
    tmp_path: Path, encoder: Encoder, windows: Windows, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LocalFolder.write

    def forgetful(self: LocalFolder, name: str) -> Any:
        context = real(self, name)
        if name == shard_name(1):
            leave = context.__exit__

            def exit_and_flip(*details: Any) -> Any:
                result = leave(*details)
                flip(self.path / name, 2000)
                return result

            context.__exit__ = exit_and_flip  # pyright: ignore[reportAttributeAccessIssue]
            return _Exits(context, exit_and_flip)
        return context

    monkeypatch.setattr(LocalFolder, "write", forgetful)
    states = StoredStates(encoder, toy_store(tmp_path, encoder, windows), tokens_per_call=200)
    with pytest.raises(ArtifactError, match=r"shard-00001\.safetensors does not keep what is written"):
        epoch_states(states)


class _Exits:
    def __init__(self, context: Any, leave: Any) -> None:
        self._context, self._leave = context, leave

    def __enter__(self) -> Any:
        return self._context.__enter__()

    def __exit__(self, *details: Any) -> Any:
        return self._leave(*details)


def test_states_that_are_no_numbers(tmp_path: Path, tiny_bert: Path, windows: Windows) -> None:
    cases: list[tuple[float, Any, str]] = [
        (torch.nan, "fp32", "no finite numbers"),
        (torch.nan, "int8", "no finite numbers"),
        (1e6, "fp16", "beyond fp16: store them with --states.dtype bf16 or fp32"),
    ]
    for value, dtype, said in cases:
        encoder = Encoder.load(str(tiny_bert))
        with torch.no_grad():
            encoder.model.encoder.layer[-1].output.LayerNorm.weight.fill_(value)
        store = toy_store(tmp_path, encoder, windows, dtype=dtype)
        with pytest.raises(EncoderError, match=said):
            extract(store, encoder)
        assert not list(tmp_path.glob("*/*shard*")), "nothing is left"
