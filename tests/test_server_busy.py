"""A server under pressure: places in the queue, clocks, clients that go away, defects, and the end; and what
`bertvision serve` refuses before it serves.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from cli_runner import bertvision
from serving import Server, save_package, start_server

from bertvision.errors import ConfigError
from bertvision.serve.config import read_key

QUEUE = 4


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> Path:
    return save_package(tmp_path_factory.mktemp("busy") / "package", tiny_bert)


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "gate"


@pytest.fixture
def start(package: Path, gate: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers whose model waits for the gate; whatever a test did, they end well."""
    running: list[Server] = []

    def begin(*flags: str) -> Server:
        # Refusals here are of places, not of seconds: the model waits as long as a test wants.
        words = ("--queue", str(QUEUE), "--max-batch", "2", "--max-wait", "900", "--timeout", "1800", *flags)
        running.append(start_server(package, *words, gate=gate))
        return running[-1]

    yield begin
    gate.touch()
    for server in running:
        assert server.stop() == 0, server.log


def until(server: Server, **expected: float) -> None:
    """Wait until the server's counters say so."""
    last: dict[str, float] = {}
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found = dict(re.findall(r"^bertvision_(\w+) (\S+)$", server.get("/metrics").text, re.MULTILINE))
        last = {name: float(found[name]) for name in expected}
        if last == expected:
            return
        time.sleep(0.02)
    raise AssertionError(f"{last} and not {expected}")


def ask(server: Server, text: str) -> httpx.Response:
    return server.post("/v1/predict", {"text": text})


def connect(server: Server, text: str) -> socket.socket:
    """A client that has asked and does not read the answer."""
    line = server.connect()
    body = json.dumps({"text": text})
    head = "POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    line.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    return line


def test_a_full_queue_refuses_and_what_it_holds_is_answered(start: Any, gate: Path) -> None:
    server = start()
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(ask, server, "wait here")
        until(server, running_inputs=1)
        waiting = [pool.submit(ask, server, f"text {i}") for i in range(QUEUE)]
        until(server, queue_inputs=QUEUE)
        refused = ask(server, "one more")
        assert refused.status_code == 429
        assert refused.json()["error"].startswith("too many inputs wait already: ask again in ")
        assert int(refused.headers["retry-after"]) >= 1
        batch = server.post("/v1/predict/batch", {"inputs": [{"text": "a"}, {"text": "b"}]})
        assert batch.status_code == 429, "all of a batch or nothing"
        assert server.get("/health").status_code == 200
        gate.touch()
        assert {one.result().status_code for one in (first, *waiting)} == {200}
    assert ask(server, "one more").status_code == 200


def test_time_that_is_over_and_clients_that_are_gone_free_their_places(start: Any, gate: Path) -> None:
    server = start("--timeout", "4")
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(ask, server, "wait here")
        until(server, running_inputs=1)
        second = pool.submit(ask, server, "in time for nothing")
        lines = [connect(server, f"text {i}") for i in range(QUEUE - 1)]
        until(server, queue_inputs=QUEUE)
        for line in lines:
            line.close()
        until(server, queue_inputs=1, given_up_inputs_total=QUEUE - 1)
        assert first.result().status_code == second.result().status_code == 504
        assert second.result().json()["error"].startswith("there was no answer within 4 s: ")
    until(server, queue_inputs=0, given_up_inputs_total=QUEUE + 1)
    late = ask(server, "nobody knows how long it will take")
    assert late.status_code == 429, "let in it would have waited for nothing"
    gate.touch()
    until(server, running_inputs=0)
    assert ask(server, "again").status_code == 200
    assert 'status="499"' in server.get("/metrics").text


def test_clients_that_send_slowly_are_left(start: Any) -> None:
    """Nothing at all, half of the headers, half of the body; also after a request that was whole."""
    server = start("--timeout", "1")
    whole = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    body = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    body += b"Content-Length: 99\r\n\r\n{"
    lines = [server.connect() for _ in range(4)]
    lines[2].sendall(whole)
    first = b""
    while not first.endswith(b'{"status":"alive"}'):
        first += lines[2].recv(4096)
    for line, sent in zip(lines, (b"", whole[:30], whole[:30], body), strict=True):
        line.sendall(sent)
    heard = [b"".join(iter(lambda line=line: line.recv(4096), b"")) for line in lines]  # until it is closed
    assert heard[:3] == [b"", b"", b""]
    assert heard[3].startswith(b"HTTP/1.1 408 ")
    assert ask(server, "somebody else").status_code == 200
    for line in lines:
        line.close()


def test_a_defect_is_an_id_and_harms_no_neighbour(start: Any, gate: Path) -> None:
    server = start()
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(ask, server, "wait here")
        until(server, running_inputs=1)
        # These two are one micro-batch.
        bad, good = pool.submit(ask, server, "break it"), pool.submit(ask, server, "a neighbour")
        until(server, queue_inputs=2)
        gate.touch()
        assert first.result().status_code == good.result().status_code == 200
    told = bad.result()
    assert told.status_code == 500
    assert list(told.json()) == ["error"]
    name = told.json()["error"].rpartition(" ")[2]
    assert len(name) == 8
    assert str(gate) not in told.text
    assert f"request failed, id {name}" in server.log
    assert f"a defect in {gate}" in server.log
    assert ask(server, "again").status_code == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_what_runs_and_takes_no_more(
    start: Any, gate: Path, number: signal.Signals
) -> None:
    server = start()
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(ask, server, "wait here")
        until(server, running_inputs=1)
        waiting = pool.submit(ask, server, "behind it")
        until(server, queue_inputs=1)
        os.kill(server.process.pid, number)
        time.sleep(1)  # the server looks for signals ten times a second
        with pytest.raises(httpx.ConnectError):
            ask(server, "too late")
        assert server.process.is_alive(), "it waits for its answers"
        gate.touch()
        assert first.result().status_code == waiting.result().status_code == 200
    assert server.wait() == 0
    assert "Traceback" not in server.log
    assert server.log.endswith("threads: MainThread\n")


def test_a_client_that_does_not_read_is_left(start: Any) -> None:
    """Its answers fill all buffers on the way; then the connection is closed, and others are answered."""
    server = start("--timeout", "1")
    request = b"GET /page.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with server.connect() as line:
        line.setblocking(False)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                line.send(request * 50)
            except BlockingIOError:
                time.sleep(0.05)
            except (BrokenPipeError, ConnectionResetError):
                break
        else:
            raise AssertionError("the server still waits for a client that reads nothing")
    assert server.get("/health").status_code == 200


def test_connections_beyond_the_cap_are_closed(start: Any) -> None:
    server = start("--max-connections", "8")
    lines, closed = [server.connect() for _ in range(12)], 0
    for line in lines:
        line.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            closed += line.recv(1) == b""
    assert closed == 4
    for line in lines:
        line.close()
    assert ask(server, "somebody else").status_code == 200


# ---- the verb


def test_a_port_in_use_is_told_before_anything_is_loaded(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        outcome = bertvision("serve", tmp_path / "no such folder", "--port", port)
    assert outcome.code == 2
    assert outcome.err == f"error: port {port} is in use: give another with --port, or 0 for any\n"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--host", "192.0.2.1"), "cannot listen at --host 192.0.2.1 --port 0"),
        (("--max-body", "much"), "--max-body cannot be 'much': give a size such as 1MB or 500kB"),
        (("--queue", "8"), "--queue must hold a whole batch (--max-batch 64), not 8 inputs"),
        (("--timeout", "nan"), "--timeout must be from"),
        ((), "there is no folder"),
    ],
)
def test_settings_that_cannot_work(tmp_path: Path, flags: tuple[str, ...], words: str) -> None:
    outcome = bertvision("serve", tmp_path / "none", "--port", "0", *flags)
    assert outcome.code == 2
    assert outcome.err.startswith(f"error: {words}")
    assert outcome.err.count("\n") == 1


def test_a_signal_while_it_loads_ends_it_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 0)):
            load = partial(signal.raise_signal, number)
            monkeypatch.setattr("bertvision.model.load.load", lambda *_, load=load, **__: load())
            assert bertvision("serve", tmp_path, "--port", "0").code == code
    finally:
        signal.signal(signal.SIGTERM, before)


def test_without_the_extra_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else real(name))
    outcome = bertvision("serve", tmp_path, "--port", "0")
    assert outcome.code == 2
    assert outcome.err == "error: serving needs uvicorn: run `pip install 'bertvision[serve]'`\n"


def test_the_flags_need_nothing_of_the_extra() -> None:
    """--help must work where FastAPI is not installed."""
    code = (
        "import sys\nsys.modules.update(dict.fromkeys(['fastapi', 'uvicorn', 'prometheus_client', 'pydantic']))\n"
        "from bertvision.cli import main\nmain(['serve', '--help'])"
    )
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "--max-body" in done.stdout


def test_keys_are_read_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BERTVISION_API_KEY", raising=False)
    assert read_key(None) is None
    monkeypatch.setenv("BERTVISION_API_KEY", "from-the-environment")
    assert read_key(None) == "from-the-environment"
    file = tmp_path / "key"
    file.write_text("correct-horse-battery\n")
    assert read_key(file) == "correct-horse-battery"
    for content in (b"", b"\n", b"short", b"two words here", "schl\u00fcssel-lang".encode(), b"\xff" * 20):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match=r"^--api-key-file .*: (write one line|name a text file)"):
            read_key(file)
    with pytest.raises(ConfigError, match="cannot be read: name a text file"):
        read_key(tmp_path)
    monkeypatch.setenv("BERTVISION_API_KEY", "")
    with pytest.raises(ConfigError, match="BERTVISION_API_KEY does not hold a key"):
        read_key(None)


def test_it_ends_though_nobody_reads_what_it_prints(tmp_path: Path, tiny_bert: Path) -> None:
    package = save_package(tmp_path / "package", tiny_bert)
    words = [sys.executable, "-m", "bertvision", "serve", str(package), "--port", "0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    assert " at http://127.0.0.1:" in process.stdout.readline()
    process.stdout.close()
    process.terminate()
    try:
        assert process.wait(60) == 0
    finally:
        process.kill()
