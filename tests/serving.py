"""A real `bertvision serve` process for tests, and small packages to serve.

    with serving(folder, "--queue", "4") as server:
        answer = server.post("/v1/predict", {"question": "Who?", "context": "Ada came."})

The process listens at a port of its own choice and is stopped with SIGTERM; its exit code must be 0.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from serve_cases import ALIKE, COLOUR, SAME, save_span, save_system

from bertvision.encoder.encoder import Encoder

__all__ = ["Server", "save_package", "serving", "start_server"]

_SECONDS = 120
"""To start or to stop: only a broken server takes as long."""


@dataclass
class Server:
    """A running process and where it answers."""

    process: subprocess.Popen[str]
    url: str = ""
    err: list[str] = field(default_factory=list)
    """What it wrote to stderr."""
    headers: dict[str, str] = field(default_factory=dict)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, headers=self.headers, timeout=60)

    def post(self, path: str, body: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, headers=self.headers, timeout=60)

    @property
    def log(self) -> str:
        return "".join(self.err)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


def start_server(folder: Path | str, *flags: str, **environment: str) -> Server:
    """Start `bertvision serve FOLDER` at a free port and wait until it answers."""
    command = [sys.executable, "-m", "bertvision", "serve", str(folder), "--port", "0", *flags]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
    )
    server = Server(process)
    assert process.stdout is not None
    assert process.stderr is not None
    # Somebody has to read stderr, or a talkative server would stand still.
    threading.Thread(target=server.err.extend, args=(process.stderr,), daemon=True).start()
    slow = threading.Timer(_SECONDS, process.kill)
    slow.start()
    line = process.stdout.readline()  # written when it is ready; empty when it ended
    slow.cancel()
    if not line:
        process.wait()
        raise AssertionError(f"the server did not start: {server.log}")
    server.url = line.split()[-1]
    return server


@contextlib.contextmanager
def serving(folder: Path | str, *flags: str, **environment: str) -> Iterator[Server]:
    """A server for the length of a block, which ends with exit code 0."""
    server = start_server(folder, *flags, **environment)
    try:
        yield server
    finally:
        code = server.stop()
        assert server.process.stdout is not None
        server.process.stdout.close()
    assert code == 0, server.log


def save_package(folder: Path, encoder_folder: Path) -> Path:
    """A folder with heads of every kind over one encoder: spans, labels of texts and of pairs, scores."""
    encoder = Encoder.load(str(encoder_folder))
    save_span(folder / "span", encoder, "learned_pooling")
    save_system(folder / "colour", encoder, "cls_linear", COLOUR)
    save_system(folder / "same", encoder, "cls_linear", SAME, seed=1)
    save_system(folder / "alike", encoder, "cls_linear", ALIKE, seed=2)
    return folder
