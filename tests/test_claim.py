"""A stage's folder belongs to one process at a time, and to nobody once that process is gone."""

import fcntl
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bertvision.errors import OutputError
from bertvision.train import claim as claims
from bertvision.train.claim import claim
from bertvision.train.stage import Stage

KEY = {"lr": 1}
_WORKS = """
import sys
from pathlib import Path
from bertvision.train.stage import Stage
stage = Stage(Path(sys.argv[1]), {"lr": 1})
print("works", flush=True)
for line in sys.stdin:
    stage.finish({"score": 2})
    print("done", flush=True)
"""


@contextmanager
def another(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process in the middle of its work there."""
    command = [sys.executable, "-c", _WORKS, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "works\n"
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def os_folder(folder: Path) -> Iterator[int]:
    opened = os.open(folder, os.O_RDONLY)
    try:
        yield opened
    finally:
        os.close(opened)


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "fit"
    with another(folder) as process:
        before = (folder / "stage.json").read_bytes()
        for overwrite in (False, True):  # replacing another's work is no way out either
            with pytest.raises(OutputError, match=f"another process works in {folder}: wait for it or stop"):
                Stage(folder, KEY | {"lr": 2 if overwrite else 1}, overwrite=overwrite)
        assert (folder / "stage.json").read_bytes() == before
        assert sorted(path.name for path in folder.iterdir()) == ["stage.json"]
        assert not Stage(tmp_path / "other", KEY).done  # a folder beside it has nothing to do with it
        process.kill()
        process.wait()
        assert not Stage(folder, KEY).done


def test_finished_work_is_everybodys(tmp_path: Path) -> None:
    folder = tmp_path / "fit"
    with another(folder) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("finish\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"
        found = Stage(folder, KEY)  # the other one lives on
        assert (found.done, found.results) == (True, {"score": 2})


def test_a_process_may_begin_its_own_work_again(tmp_path: Path) -> None:
    first = Stage(tmp_path / "fit", KEY)
    again = Stage(tmp_path / "fit", KEY)
    replaced = Stage(tmp_path / "fit", KEY | {"lr": 2}, overwrite=True)
    replaced.finish({})
    assert not first.done
    assert not again.done
    assert Stage(tmp_path / "fit", KEY | {"lr": 2}).done


def test_a_claim_ends_with_its_last_holder(tmp_path: Path) -> None:
    one, two = claim(tmp_path), claim(tmp_path)
    assert one is two
    gone = weakref.ref(one)
    del one, two
    assert gone() is None
    with os_folder(tmp_path) as opened:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as another process would
        with pytest.raises(OutputError, match="another process"):
            claim(tmp_path)


@pytest.mark.parametrize("error", [OSError(95, "not supported"), OSError(9, "bad file descriptor")])
def test_without_locks_everybody_may_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    def refuse(*_: object) -> None:
        raise error

    assert claims.fcntl is not None
    monkeypatch.setattr(claims.fcntl, "flock", refuse)
    assert Stage(tmp_path / "fit", KEY).results == {}
    monkeypatch.setattr(claims, "fcntl", None)
    assert Stage(tmp_path / "more", KEY).results == {}
