"""Ctrl-C, and what a person sees on a terminal."""

import codecs
import errno
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from cli_runner import bertvision, tree

from bertvision.train import group, steps


def interrupt_at(step: int, monkeypatch: pytest.MonkeyPatch, module: object, function: str) -> None:
    """Send this process a real SIGINT in the middle of training step `step`."""
    original, calls = getattr(module, function), 0

    def update(*args: object, **options: object) -> None:
        nonlocal calls
        calls += 1
        if calls == step:
            os.kill(os.getpid(), signal.SIGINT)
        original(*args, **options)

    monkeypatch.setattr(module, function, update)


@pytest.mark.parametrize("verb", ["finetune", "fit"])
def test_an_interrupted_stage_goes_on_to_the_same_result(
    verb: str, tiny_bert: Path, toy_squad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--train", toy_squad, "--max-seq-length", "96", "--epochs", "3", "--batch-size", "8",
             "--checkpoint-seconds", "0")  # fmt: skip
    if verb == "finetune":
        words, place = ("finetune", "--encoder", tiny_bert, *flags), (steps.Steps, "update")
    else:
        words, place = ("fit", tiny_bert, "--heads", "learned_pooling", *flags), (group, "apply_gradients")
    assert bertvision(*words, "--out", tmp_path / "whole").code == 0
    with monkeypatch.context() as patch:
        interrupt_at(6, patch, *place)
        outcome = bertvision(*words, "--out", tmp_path / "again")
    assert outcome.code == 130
    assert outcome.out == ""
    *_, last = outcome.err.splitlines()
    assert last == "error: interrupted: run the same command again to go on"
    assert "Traceback" not in outcome.err
    assert not [path for path in (tmp_path / "again").rglob(".*tmp*")], "half-written files are left"
    outcome = bertvision(*words, "--out", tmp_path / "again")
    assert outcome.code == 0, outcome.err
    assert "continues at" in outcome.err
    whole, again = (
        {name: content for name, content in tree(tmp_path / folder).items() if name.endswith(".safetensors")}
        for folder in ("whole", "again")
    )
    assert whole == again


class Terminal:
    """A command on a pseudo-terminal of 120 columns."""

    def __init__(self, words: list[str]) -> None:
        self._side, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "CI")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bertvision", *words],
            stdin=side, stdout=side, stderr=side, close_fds=True, start_new_session=True,
            env=environment | {"TERM": "xterm-256color"}, preexec_fn=_own_terminal,
        )  # fmt: skip
        os.close(side)
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self.shown = ""

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._side)

    def read(self, until: str | None = None) -> None:
        """Read until a pattern is shown, or until the command ends."""
        end = time.monotonic() + 90
        while until is None or not re.search(until, self.shown):
            assert time.monotonic() < end, self.shown[-2000:]
            if not select.select([self._side], [], [], 1)[0]:
                continue
            try:
                data = os.read(self._side, 1 << 16)
            except OSError as error:
                if error.errno != errno.EIO:  # what Linux says when the other side is closed
                    raise
                data = b""
            if not data:
                assert until is None, f"it ended without showing {until}: {self.shown[-2000:]}"
                return
            self.shown += re.sub(r"\x1b\[[\d;]*m", "", self._decoder.decode(data))  # without colours

    def press_ctrl_c(self) -> None:
        os.write(self._side, b"\x03")

    def code(self) -> int:
        return self._process.wait(timeout=60)


def _own_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_bars_on_a_terminal_and_ctrl_c(tiny_bert: Path, toy_squad: Path, tmp_path: Path) -> None:
    words = [
        "run", "--encoder", str(tiny_bert), "--train", str(toy_squad), "--dev", str(toy_squad),
        "--out", str(tmp_path / "run"), "--max-seq-length", "96", "--fit.heads", "learned_pooling",
        "--finetune.epochs", "40", "--finetune.batch-size", "8", "--finetune.checkpoint-seconds", "0.2",
    ]  # fmt: skip
    with Terminal(words) as first:
        first.read(until=r"fine-tune.* [1-9]\d*/\d+ ")
        while not (tmp_path / "run" / "finetune" / "checkpoint.safetensors").exists():
            time.sleep(0.02)
        first.press_ctrl_c()
        first.read()
        assert first.code() == 130, first.shown
    assert "Traceback" not in first.shown
    assert first.shown.count("error: interrupted: run the same command again") == 1
    assert first.shown.endswith("\n"), "the last line is not finished"

    with Terminal(words) as second:
        second.read()
        assert second.code() == 0, second.shown
    assert re.search(r"fine-tuning continues at step [1-9]", second.shown)
    for stage in ("fine-tune", "fit 1 heads", "evaluate dev"):
        # Done of total, time so far and time left.
        assert re.search(stage + r":.* \d+/\d+ \[0\d:\d\d<", second.shown), stage
    assert re.search(r"fine-tune.* steps/s, loss=", second.shown)
    assert "report.html" in re.sub(r"\s", "", second.shown)
