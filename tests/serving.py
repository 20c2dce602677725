"""A real `bertvision serve` process for tests, and a small folder to serve.

    with serving(folder, "--queue", "4") as server:
        answer = server.post("/v1/predict", {"question": "Who?", "context": "Ada came."})

Forked from the server of tests/killing.py, which has imported everything heavy already.
"""

import contextlib
import functools
import os
import re
import signal
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import httpx
import killing
from serve_cases import ALIKE, COLOUR, SAME, save_span, save_system

from bertvision.encoder.encoder import Encoder

_SECONDS = 150
"""To start or to stop: only a broken server takes as long."""

_TLS = ssl.create_default_context()
"""Made once: httpx would read all certificates anew for every request, though none is needed here."""


@dataclass
class Server:
    """A running process and where it answers."""

    process: BaseProcess
    output: Path
    url: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    """Sent with every request."""

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, headers=self.headers, timeout=60, verify=_TLS)

    def post(self, path: str, body: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, headers=self.headers, timeout=60, verify=_TLS)

    def connect(self) -> socket.socket:
        host, port = self.url.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=60)

    @property
    def log(self) -> str:
        """All it wrote to stdout and stderr."""
        return self.output.read_text(encoding="utf-8")

    def wait(self) -> int | None:
        """Its exit code; a process that does not end is killed."""
        self.process.join(_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        return self.process.exitcode

    def stop(self) -> int | None:
        """SIGTERM; the exit code."""
        assert self.process.pid is not None
        if self.process.is_alive():
            os.kill(self.process.pid, signal.SIGTERM)
        return self.wait()


def start_server(
    folder: Path | str, *flags: str, gate: Path | None = None, environment: dict[str, str] | None = None
) -> Server:
    """Start `bertvision serve FOLDER` at a free port and wait until it answers.

    With a gate, "wait ..." as a text is computed only when that file exists, "break ..." raises an error that speaks
    of a folder; everything else is the real thing.
    """
    words = ["serve", str(folder), "--port", "0", *flags]
    work = functools.partial(_serve, words, gate, environment or {})
    handle, name = tempfile.mkstemp(prefix="bertvision-serve-", suffix=".log")
    os.close(handle)
    server = Server(killing.start(work, Path(name)), Path(name))
    until = time.monotonic() + _SECONDS
    while server.process.is_alive() and time.monotonic() < until:
        if found := re.search(r" at (http://\S+)\n", server.log):  # told when it is ready
            server.url = found[1]
            return server
        time.sleep(0.01)
    server.process.kill()
    server.process.join()
    raise AssertionError(f"the server did not start: {server.log}")


def _serve(words: list[str], gate: Path | None, environment: dict[str, str]) -> None:
    """In the process: run the command line to its end, and say which threads are left."""
    from bertvision.cli import main
    from bertvision.model.model import Model

    os.environ.update(environment)
    real: Any = Model.__call__

    def predict(self: Model, first: Any, *args: Any, **options: Any) -> Any:
        if any(text.startswith("break") for text in first):
            raise ValueError(f"a defect in {gate}")
        while gate and any(text.startswith("wait") for text in first) and not gate.exists():
            time.sleep(0.005)
        return real(self, first, *args, **options)

    if gate is not None:
        setattr(Model, "__call__", predict)  # noqa: B010 (no method of its type)
    try:
        main(words)
    finally:
        left = sorted(thread.name for thread in threading.enumerate())
        sys.stdout.write(f"threads: {', '.join(left)}\n")


@contextlib.contextmanager
def serving(folder: Path | str, *flags: str, **options: Any) -> Iterator[Server]:
    """A server for the length of a block, which ends with exit code 0."""
    server = start_server(folder, *flags, **options)
    try:
        yield server
    finally:
        code = server.stop()
    assert code == 0, server.log
    for path in (server.output, Path(f"{server.output}.count")):
        path.unlink(missing_ok=True)


def save_package(folder: Path, encoder_folder: Path) -> Path:
    """A folder with heads of every kind over one encoder: spans, labels of texts and of pairs, scores."""
    encoder = Encoder.load(str(encoder_folder))
    save_span(folder / "span", encoder, "learned_pooling")
    save_system(folder / "colour", encoder, "cls_linear", COLOUR)
    save_system(folder / "same", encoder, "cls_linear", SAME, seed=1)
    save_system(folder / "alike", encoder, "cls_linear", ALIKE, seed=2)
    return folder
