"""A run folder belongs to one process at a time, and to nobody once that process is gone."""

import fcntl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bertvision.errors import OutputError
from bertvision.train.run_folder import LOCK, RunFolder

KEY = {"lr": 1}
_WORKS = """
import sys
from pathlib import Path
from bertvision.train.run_folder import RunFolder
stage = RunFolder(Path(sys.argv[1]), {"lr": 1})
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


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "fit"
    with another(folder) as process:
        before = (folder / "stage.json").read_bytes()
        for overwrite in (False, True):  # replacing another's work is no way out either
            with pytest.raises(OutputError, match=f"another process works in {folder}: wait for it or stop"):
                RunFolder(folder, KEY | {"lr": 2 if overwrite else 1}, overwrite=overwrite)
        assert (folder / "stage.json").read_bytes() == before
        assert sorted(path.name for path in folder.iterdir()) == [LOCK, "stage.json"]
        assert not RunFolder(tmp_path / "other", KEY).done  # a folder beside it has nothing to do with it
        process.kill()
        process.wait()
        assert not RunFolder(folder, KEY).done


def test_finished_work_is_everybodys(tmp_path: Path) -> None:
    folder = tmp_path / "fit"
    with another(folder) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("finish\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"
        found = RunFolder(folder, KEY)  # the other one lives on
        assert (found.done, found.results) == (True, {"score": 2})


def test_the_lock_ends_with_its_last_holder(tmp_path: Path) -> None:
    one, two = RunFolder(tmp_path, KEY), RunFolder(tmp_path, KEY)
    one.finish({})
    with (tmp_path / LOCK).open() as opened:
        with pytest.raises(BlockingIOError):
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as another process would
        del one, two
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(OutputError, match="another process"):
            RunFolder(tmp_path, KEY | {"lr": 2}, overwrite=True)


@pytest.mark.parametrize("error", [OSError(95, "not supported"), OSError(9, "bad file descriptor")])
def test_without_locks_everybody_may_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert RunFolder(tmp_path / "fit", KEY).results == {}
