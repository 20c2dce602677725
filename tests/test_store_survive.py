"""Stores that things happen to: kills, full disks, several processes, folders that vanish or are closed."""

import functools
import json
import os
import re
import resource
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from killing import finish, start
from store_cases import (  # noqa: F401 (fixtures)
    copied,
    epoch_states,
    extract,
    extraction,
    fixture_encoder,
    fixture_whole,
    fixture_windows,
    marks,
    nobody,
    shard_bytes,
    toy_store,
    windows_of,
)

from bertvision.data.windows import Windows, pack_windows
from bertvision.encoder.encoder import Encoder
from bertvision.errors import OutputError
from bertvision.states.store import PLAN, Origin
from bertvision.states.stored import StoredStates


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


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupt_in_the_middle_of_a_shard(
    error: Any, tmp_path: Path, encoder: Encoder, windows: Windows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C, or an error of the encoder: nothing is left, the lock is free, and it goes on."""
    store = toy_store(tmp_path, encoder, windows)
    states = StoredStates(encoder, store, tokens_per_call=60)
    answers = [states.read(store.shards[2][:1]) for _ in range(3)]
    monkeypatch.setattr(StoredStates, "read", Mock(side_effect=[*answers, error]))
    with pytest.raises(error):
        states._make(2)
    assert not list(tmp_path.glob("*/*shard*"))
    monkeypatch.undo()
    extract(store, encoder)
    assert not store.missing()


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
    first, second = together(work, tmp_path, {"pause": 0.02}, {"pause": 0.02})
    if killed:
        wait_for(lambda: made_by(tmp_path, 0) or not second.is_alive())
        first.kill()
    first.join(60)
    second.join(60)
    assert (first.exitcode == 0) != killed
    assert second.exitcode == 0
    folder = next((tmp_path / "states").iterdir())
    assert shard_bytes(folder) == shard_bytes(whole["fp32"])
    made = made_by(tmp_path, 0) + made_by(tmp_path, 1)
    assert killed or sorted(made) == list(range(len(list(folder.glob("shard-*")))))


def test_of_two_plans_the_first_counts(
    tmp_path: Path, encoder: Encoder, windows: Windows, work: functools.partial[None]
) -> None:
    for process in together(work, tmp_path, {"shard_tokens": 300}, {"shard_tokens": 500}):
        process.join(60)
        assert process.exitcode == 0
    folder = next((tmp_path / "states").iterdir())
    chosen = json.loads((folder / PLAN).read_text())["shard_tokens"]
    alone = toy_store(tmp_path / "alone", encoder, windows, shard_tokens=chosen)
    extract(alone, encoder)
    assert shard_bytes(folder) == shard_bytes(alone.folder)


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
            with pytest.raises(OutputError, match="permission is denied"):
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
