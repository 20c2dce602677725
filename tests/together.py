"""Start the same work in several processes that know of each other, as torchrun does, but forked from a server that
has imported everything (tests/killing.py), so that they begin in a fraction of a second."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from killing import Work, _ensure_server, start


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def _environment(rank: int, world: int, port: int) -> Iterator[None]:
    values = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "MASTER_PORT": port}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (values | {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}).items():
            patch.setenv(name, str(value))
        yield


def logs(folder: Path, world: int = 2) -> list[Path]:
    """Where each rank's output goes."""
    return [folder / f"rank{rank}.log" for rank in range(world)]


def begin(work: Work, folder: Path, *, world: int = 2) -> list[BaseProcess]:
    """Start every rank; what it prints is in `logs(folder)`."""
    _ensure_server()  # outside: what it inherits now, everyone it ever forks has
    port, processes = free_port(), []
    for rank, log in enumerate(logs(folder, world)):
        with _environment(rank, world, port):
            log.unlink(missing_ok=True)
            processes.append(start(work, log))
    return processes


def finish_all(processes: list[BaseProcess], *, seconds: float = 60) -> list[int]:
    """Exit codes, in the order of the ranks; nobody may hang."""
    for process in processes:
        process.join(seconds)
    hanging = [process for process in processes if process.exitcode is None]
    for process in hanging:
        process.kill()
    assert not hanging, f"process {os.getpid()} waited {seconds} s for {len(hanging)} ranks in vain"
    return [int(process.exitcode or 0) for process in processes]


def run_together(work: Work, folder: Path, *, world: int = 2, seconds: float = 60) -> None:
    """Run every rank to a good end."""
    codes = finish_all(begin(work, folder, world=world), seconds=seconds)
    assert codes == [0] * world, [log.read_text() for log in logs(folder, world)]
