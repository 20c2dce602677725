"""Run the command line in a process of its own and let it be killed with SIGKILL, at any moment or at a precise one.

The processes are forked from a server that has imported everything already, so that each starts in a fraction of
a second; they share nothing else with the tests.

A precise moment is counted in operations on files: number n is done by half (a write) or not at all (a rename, a
removal, a new folder), and then the process kills itself as hard as anyone else could.
"""

import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

# For the server, which imports this file before it forks.
import torch
from transformers import AutoModel, AutoTokenizer, BertModel  # noqa: F401

import bertvision.cli.finetune
import bertvision.cli.fit
import bertvision.cli.run
import bertvision.train.zoo

__all__ = ["finish", "kill_when", "start"]

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["killing"])


def _ensure_server() -> None:
    """Start the server where it can import this file: it looks for preloaded modules on PYTHONPATH only."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), before]))
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def start(argv: list[str], log: Path, *, die_at: int | None = None) -> BaseProcess:
    """Start `bertvision ARGV`; its output goes to `log`, the number of its file operations to `log`.count."""
    _ensure_server()
    process = _CONTEXT.Process(target=_run, args=(argv, str(log), die_at, dict(os.environ)))
    process.start()
    return process


def finish(argv: list[str], log: Path, *, die_at: int | None = None, seconds: float = 240) -> int:
    """Run to the end and return the exit code, -9 for killed."""
    process = start(argv, log, die_at=die_at)
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        raise AssertionError(f"still running after {seconds} s: {log.read_text()}")
    return process.exitcode


def kill_when(argv: list[str], log: Path, ready: Callable[[], bool], *, delay: float = 0.0) -> int:
    """Start, wait until `ready`, and kill; returns -9, or the exit code of a process that was faster."""
    process = start(argv, log)
    until = time.monotonic() + 240
    while process.is_alive() and not ready() and time.monotonic() < until:
        time.sleep(0.001)
    time.sleep(delay)
    process.kill()  # SIGKILL
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def _run(argv: list[str], log: str, die_at: int | None, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
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
        (shutil, "rmtree"),
    ):
        setattr(owner, name, counter.before(getattr(owner, name)))
    sys.argv = ["bertvision", *argv]
    code = 0
    try:
        bertvision.cli.main(argv)
    except SystemExit as error:
        code = int(error.code or 0)
    os.write(os.open(log + ".count", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), str(counter.count).encode())
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

    def before(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def act(*args: Any, **options: Any) -> Any:
            if self._due():
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)

        return act
