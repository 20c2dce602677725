"""`bertvision serve` itself: what it refuses before it serves, its key, and what a bare installation says."""

import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from cli_runner import bertvision
from serving import save_package

from bertvision.errors import ConfigError
from bertvision.serve.config import ServeConfig, read_key

KEY = "correct-horse-battery"


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
        (("--port", "70000"), "--port must be from 0 to 65535, not 70000"),
        (("--host", "a..b"), "cannot listen at --host a..b"),
        (("--host", "192.0.2.1"), "cannot listen at --host 192.0.2.1 --port 0"),
        (("--max-body", "much"), "--max-body cannot be 'much': give a size such as 1MB or 500kB"),
        (("--max-body", "0"), "--max-body must be at least one byte, not 0"),
        (("--queue", "8"), "--queue must hold a whole batch (--max-batch 64), not 8 inputs"),
        (("--timeout", "nan"), "--timeout must be from"),
        (("--batch-wait-ms", "-1"), "--batch-wait-ms must be from 0 to 10000, not -1"),
        ((), "there is no folder"),
    ],
)
def test_settings_that_cannot_work(tmp_path: Path, flags: tuple[str, ...], words: str) -> None:
    outcome = bertvision(
        "serve", tmp_path / "none", *(flags if "--port" in flags else ("--port", "0", *flags))
    )
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
    assert (outcome.code, outcome.err) == (
        2,
        "error: serving needs uvicorn: run `pip install 'bertvision[serve]'`\n",
    )


def test_the_flags_need_nothing_of_the_extra() -> None:
    """--help must work where FastAPI is not installed."""

    code = (
        "import sys\nsys.modules.update(dict.fromkeys(['fastapi', 'uvicorn', 'prometheus_client', 'pydantic']))\n"
        "from bertvision.cli import main\nmain(['serve', '--help'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    for flag in ("--max-body", "--api-key-file", "--batch-wait-ms", "FOLDER"):
        assert flag in done.stdout


@pytest.mark.parametrize(("text", "size"), [("1MB", 10**6), ("500kB", 500_000), ("2 MiB", 2**21), ("7", 7)])
def test_sizes(text: str, size: int) -> None:
    assert ServeConfig(max_body=text).body_bytes == size


def test_keys_are_read_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BERTVISION_API_KEY", raising=False)
    assert read_key(None) is None
    monkeypatch.setenv("BERTVISION_API_KEY", "from-the-environment")
    assert read_key(None) == "from-the-environment"
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    assert read_key(file) == KEY
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
