"""An export that is killed, interrupted or has no room leaves no half of a package; the same command again works."""

import os
import signal
import time
from pathlib import Path

import pytest
from cli_runner import bertvision, tree
from killing import finish, start
from serve_cases import save_span

from bertvision.artifacts import remove
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError
from bertvision.model.load import gather, read, read_package
from bertvision.model.trained import is_package


@pytest.fixture(scope="module")
def head(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_span(tmp_path_factory.mktemp("heads") / "qa", encoder)


def operations(log: Path) -> int:
    return int(log.with_name(f"{log.name}.count").read_text())


def test_a_killed_export_leaves_nothing_that_loads(head: Path, tmp_path: Path) -> None:
    """Killed in the middle, in the midst of package.json, and when all is written but not yet in its place."""
    home, log = tmp_path / "home", tmp_path / "log"
    home.mkdir()
    command = ["export", str(head), "--out", str(home / "pkg")]
    assert finish(command, log) == 0, log.read_text()
    whole, count = tree(home), operations(log)
    remove(home / "pkg")
    # At the end: package.json written, renamed, tidied up; nothing older removed; the folder renamed; tidied up twice.
    written = []
    for moment in (count // 2, count - 6, count - 2):
        assert finish(command, log, die_at=moment) == -9, log.read_text()
        (left,) = home.iterdir()  # each sweeps up what the one before it left
        written.append(is_package(left))
        for reads in (read_package, read, lambda folder: gather([("", folder)])):
            with pytest.raises(ArtifactError, match="was left by a command that was killed: run that"):
                reads(left)
    assert written == [False, False, True]
    assert finish(command, log) == 0, log.read_text()
    assert tree(home) == whole


def test_a_killed_replacement_keeps_the_old_package(head: Path, tmp_path: Path) -> None:
    """Killed between the two renames that exchange them, the one moment when nothing stands at --out."""
    out, log = tmp_path / "pkg", tmp_path / "log"

    def command(name: str) -> list[str]:
        return ["export", f"{name}={head}", "--out", str(out)]

    assert bertvision(*command("first")).code == 0
    assert finish(command("second"), log) == 0, log.read_text()
    assert finish(command("third"), log, die_at=operations(log) - 2) == -9
    assert not out.exists()
    assert read_package(out)["tasks"] == ["second"]
    assert bertvision(*command("third")).code == 0
    assert read_package(out)["tasks"] == ["third"]
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["pkg"]


def test_ctrl_c_leaves_nothing(head: Path, tmp_path: Path) -> None:
    home, log = tmp_path / "home", tmp_path / "log"
    home.mkdir()
    process = start(["export", str(head), "--out", str(home / "pkg"), "--onnx"], log)
    until = time.monotonic() + 100
    while process.is_alive() and not list(home.glob(".pkg.tmp-*/heads/*/model.safetensors")):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)
    process.join(100)
    assert process.exitcode == 130, log.read_text()
    assert log.read_text().splitlines()[-1] == "error: interrupted: run the same command again to go on"
    assert list(home.iterdir()) == []


def test_no_room_and_no_right_are_one_sentence(head: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk, a file for a folder that cannot be written."""
    resource = pytest.importorskip("resource")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    for _ in ("nothing there", "an older package"):
        before = tree(tmp_path)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limit[1]))
            outcome = bertvision("export", head, "--out", tmp_path / "pkg")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        assert outcome.code == 2
        assert outcome.err.startswith("error: cannot write the encoder")
        assert tree(tmp_path) == before, "neither half a package nor the older one gone"
        assert bertvision("export", head, "--out", tmp_path / "pkg").code == 0
    remove(tmp_path / "pkg")
    (tmp_path / "file").write_text("mine")
    for out in ("file", "file/below", "file/far/below"):
        outcome = bertvision("export", head, "--out", tmp_path / out)
        assert outcome.code == 2
        assert outcome.err.count("\n") == 1
        assert "choose another folder" in outcome.err
    assert tree(tmp_path) == {"file": b"mine"}
