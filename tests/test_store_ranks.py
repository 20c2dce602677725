"""Several processes fill one store: the same bytes as one process writes, whatever their number and order."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed
from cli_runner import bertvision, tree
from torch.multiprocessing.spawn import spawn

from bertvision.encoder.device import choose_device
from bertvision.encoder.encoder import Encoder
from bertvision.errors import OutputError
from bertvision.states.extract import Extractor
from bertvision.states.live import LiveStates
from bertvision.states.ranks import rank_and_world
from bertvision.states.shard import shard_name
from bertvision.states.store import INFO, open_store

CUT = ("--max-seq-length", "64", "--max-query-length", "16", "--doc-stride", "24", "--shard-tokens", "300")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


def extract(encoder: Path, data: Path, root: Path) -> list[str]:
    return [
        str(word) for word in ("cache", "extract", encoder, "--data", data, "--store", root, *CUT, "--json")
    ]


def files(folder: Path) -> dict[str, bytes | None]:
    """Everything in a store but the locks, which hold nothing."""
    return {name: content for name, content in tree(folder).items() if name != ".lock"}


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path, toy_squad: Path) -> Path:
    """The store that one process makes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERTVISION_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        outcome = bertvision(*extract(tiny_bert, toy_squad, tmp_path_factory.mktemp("single")))
    assert outcome.code == 0, outcome.err
    folder = Path(json.loads(outcome.out)["store"])
    shards = [name for name in tree(folder) if name.startswith("shard-")]
    assert len(shards) >= 5
    assert INFO in tree(folder)
    return folder


# ---- torchrun


@pytest.mark.slow
def test_torchrun_writes_the_same_bytes(
    single: Path, tmp_path: Path, tiny_bert: Path, toy_squad: Path
) -> None:
    words = extract(tiny_bert, toy_squad, tmp_path)
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
    launcher += ["--master-port", str(_free_port()), "-m", "bertvision"]
    done = subprocess.run(
        [sys.executable, *launcher, *words], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)  # of rank 0 alone
    assert result["key"] == single.name
    assert "rank 1 of 2: " in done.stderr
    assert files(tmp_path / single.name) == files(single)


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# ---- ranks by environment


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_ranks_one_after_another_in_any_order(
    order: tuple[int, ...],
    single: Path,
    tmp_path: Path,
    tiny_bert: Path,
    toy_squad: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    total = len([name for name in tree(single) if name.startswith("shard-")])
    expected: set[str] = set()
    for turn, rank in enumerate(order):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "3")
        outcome = bertvision(*extract(tiny_bert, toy_squad, tmp_path))
        assert outcome.code == 0, outcome.err
        expected |= {shard_name(number) for number in range(rank, total, 3)}
        there = files(tmp_path / single.name)
        assert {name for name in there if name.startswith("shard-")} == expected
        assert (INFO in there) == (turn == 2)
        if rank:
            assert outcome.out == ""
            assert f"rank {rank} of 3" in outcome.err
        else:
            result = json.loads(outcome.out)
            assert result["finished"] == (turn == 2)
            assert result["missing"] == total - len(expected)
    assert files(tmp_path / single.name) == files(single)


def test_the_report_of_rank_0_says_what_is_missing(
    tmp_path: Path, tiny_bert: Path, toy_squad: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    outcome = bertvision(*extract(tiny_bert, toy_squad, tmp_path)[:-1])
    assert outcome.code == 0, outcome.err
    assert "unfinished: 3 of 6 shards are there" in outcome.out


@pytest.mark.parametrize(
    ("rank", "world", "known"), [("1", "4", (1, 4)), ("4", "4", (0, 1)), ("x", "4", (0, 1)), ("", "", (0, 1))]
)
def test_rank_by_environment(
    rank: str, world: str, known: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world)
    assert rank_and_world() == known


@pytest.mark.parametrize(
    ("local", "devices", "taken"),
    [("", 2, "cuda"), ("1", 1, "cuda"), ("1", 2, "cuda:1"), ("5", 4, "cuda:1"), ("0", 2, "cuda:0")],
)
def test_every_rank_takes_a_gpu_of_its_own(
    local: str, devices: int, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    current: list[torch.device] = []
    monkeypatch.setenv("LOCAL_RANK", local)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    assert choose_device("auto") == torch.device(taken)
    assert current == ([torch.device(taken)] if ":" in taken else [])


# ---- ranks of a process group


def _rank_of_a_group(rank: int, folder: str, encoder: str, rendezvous: str, told: str, fail: bool) -> None:
    """One process: fill a store together with the others and tell what it found when it was let go."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    store = open_store(folder)
    assert rank_and_world() == (rank, 2)
    extractor = Extractor(store, LiveStates(Encoder.load(encoder), store.windows))
    if rank == 1:
        # It begins when rank 0 has nothing left to do: without the barrier rank 0 would be gone before the end.
        real, others = extractor.make, set(range(0, store.num_shards, 2))

        def make(number: int, *, wait: bool = True) -> bool:
            until = time.monotonic() + 60
            while others - store.finished() and time.monotonic() < until:
                time.sleep(0.01)
            time.sleep(0.1)
            if fail:
                raise OutputError("the disk is full")
            return real(number, wait=wait)

        extractor.make = make
    try:
        extractor.make_all(rank=rank, world=2)
        found = "finished" if store.info is not None and not store.missing() else "unfinished"
    except OutputError as error:
        found = str(error)
    Path(f"{told}-{rank}").write_text(found)
    torch.distributed.destroy_process_group()


def _together(single: Path, encoder: Path, tmp_path: Path, *, fail: bool) -> tuple[Path, list[str]]:
    """Two ranks fill a store that one process began; returns it and what they told."""
    folder = tmp_path / single.name
    folder.mkdir()
    for name in ("plan.json", "windows.safetensors"):
        (folder / name).write_bytes((single / name).read_bytes())
    told = tmp_path / "told"
    arguments = (str(folder), str(encoder), str(tmp_path / "rendezvous"), str(told), fail)
    spawn(_rank_of_a_group, arguments, nprocs=2)
    return folder, [Path(f"{told}-{rank}").read_text() for rank in range(2)]


@pytest.mark.slow
def test_ranks_of_a_group_return_when_the_store_is_finished(
    single: Path, tmp_path: Path, tiny_bert: Path
) -> None:
    folder, told = _together(single, tiny_bert, tmp_path, fail=False)
    assert told == ["finished", "finished"]
    assert files(folder) == files(single)


@pytest.mark.slow
def test_a_rank_that_fails_does_not_leave_the_others_waiting(
    single: Path, tmp_path: Path, tiny_bert: Path
) -> None:
    folder, told = _together(single, tiny_bert, tmp_path, fail=True)
    assert told[1] == "the disk is full"
    assert told[0].startswith("another rank ended before its shards were done")
    there = files(folder)
    assert INFO not in there
    assert shard_name(0) in there, "what rank 0 made is kept"
    assert shard_name(1) not in there
