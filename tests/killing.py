"""Run the command line, or a function, in a process of its own and let it be killed with SIGKILL, at any moment or
at a precise one.

The processes are forked from a server that has imported everything already, so that each starts in a fraction of
a second; they share nothing else with the tests. `begin` and `run_together` start the same work in several processes
that know of each other, as torchrun does.

A precise moment is counted in operations on files: number n is done by half (a write) or not at all (a rename, a
removal, a new folder), and then the process kills itself as hard as anyone else could.
"""

import functools
import io
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest import mock

# For the server, which imports this file before it forks.
import torch
from transformers import AutoModel, AutoTokenizer, BertModel  # noqa: F401

import bertvision.cli.flags
import bertvision.pipeline.run
import bertvision.pipeline.train
import bertvision.train.zoo

Work = list[str] | functools.partial[None]
"""Arguments of the command line, or a function of a module that a process can import."""

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["killing"])


def _ensure_server() -> None:
    """Start the server where it can import this file: it looks for preloaded modules on PYTHONPATH only."""
    places = [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]
    with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, places))):
        forkserver.ensure_running()


def start(work: Work, log: Path, *, die_at: int | None = None) -> BaseProcess:
    """Start `bertvision ARGV` or a function; output goes to `log`, the number of its file operations to `log`.count."""
    _ensure_server()
    process = _CONTEXT.Process(target=_run, args=(work, str(log), die_at, dict(os.environ)))
    process.start()
    return process


def finish(work: Work, log: Path, *, die_at: int | None = None, seconds: float = 240) -> int:
    """Run to the end and return the exit code, -9 for killed."""
    process = start(work, log, die_at=die_at)
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        raise AssertionError(f"still running after {seconds} s: {log.read_text()}")
    return process.exitcode


def kill_when(work: Work, log: Path, ready: Callable[[], bool], *, delay: float = 0.0) -> int:
    """Start, wait until `ready`, and kill; returns -9, or the exit code of a process that was faster."""
    process = start(work, log)
    until = time.monotonic() + 240
    while process.is_alive() and not ready() and time.monotonic() < until:
        time.sleep(0.001)
    time.sleep(delay)
    process.kill()  # SIGKILL
    process.join()
    assert process.exitcode is not None
    return process.exitcode


# ---- several ranks


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def logs(folder: Path, world: int = 2) -> list[Path]:
    """Where each rank's output goes."""
    return [folder / f"rank{rank}.log" for rank in range(world)]


def begin(work: Work, folder: Path, *, world: int = 2) -> list[BaseProcess]:
    """Start every rank; what it prints is in `logs(folder)`."""
    _ensure_server()  # outside: what it inherits now, everyone it ever forks has
    same = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = []
    for rank, log in enumerate(logs(folder, world)):
        log.unlink(missing_ok=True)
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"}
        with mock.patch.dict(os.environ, same | own):
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


# ---- inside the process


def _run(work: Work, log: str, die_at: int | None, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    count = os.open(log + ".count", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    torch.set_num_threads(1)
    counter = _Counter(die_at)
    for owner, name in ((Path, "write_bytes"), (Path, "write_text")):
        setattr(owner, name, counter.half(getattr(owner, name)))
    for owner, name in (
        (Path, "replace"),
        (Path, "rename"),
        (Path, "unlink"),
        (Path, "mkdir"),
        (os, "link"),
        (shutil, "rmtree"),
    ):
        setattr(owner, name, counter.before(getattr(owner, name)))
    setattr(Path, "open", counter.opening(Path.open))  # noqa: B010 (as above)
    code = 0
    try:
        if isinstance(work, list):
            sys.argv = ["bertvision", *work]
            bertvision.cli.main(work)
        else:
            work()
    except SystemExit as error:
        code = int(error.code or 0)
    os.write(count, str(counter.count).encode())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class _Counter:
    """Counts operations and dies in the middle of number `die_at`."""

    def __init__(self, die_at: int | None) -> None:
        self.count, self.die_at = 0, die_at

    def _due(self) -> bool:
        self.count += 1
        return self.count == self.die_at

    def half(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def write(path: Path, content: Any, *args: Any, **options: Any) -> Any:
            if self._due():
                real(path, content[: len(content) // 2], *args, **options)
                os.kill(os.getpid(), signal.SIGKILL)
            return real(path, content, *args, **options)

        return write

    def opening(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Files that are written piece by piece: each piece is an operation."""
        counter = self

        class Pieces(io.BufferedWriter):
            def write(self, content: Any) -> int:
                if counter._due():
                    super().write(memoryview(content).cast("B")[: memoryview(content).nbytes // 2])
                    super().flush()
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().write(content)

        def open_file(path: Path, mode: str = "r", *args: Any, **options: Any) -> Any:
            file = real(path, mode, *args, **options)
            return Pieces(file.detach()) if mode == "wb" else file

        return open_file

    def before(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def act(*args: Any, **options: Any) -> Any:
            if self._due():
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)

        return act
