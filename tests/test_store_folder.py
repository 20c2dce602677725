"""Folders and claims of stores: one sentence for every refusal, one look for all sizes, locks that outlast others."""

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from store_cases import fill, random_states
from test_store import folders, make

from bertvision.errors import ArtifactError, OutputError
from bertvision.states.about import WINDOWS_FILE
from bertvision.states.claims import Claims
from bertvision.states.folder import Folder, LocalFolder, RemoteFolder
from bertvision.states.store import open_store

# ---- folders


class Refusing(MemoryFileSystem):
    """A file system that lets nobody do anything."""

    cachable = False
    error: OSError = PermissionError(errno.EACCES, "Forbidden")

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise self.error

    ls = info = modified = cat_file = rm = makedirs = open = _refuse


READING: list[Callable[[Folder], object]] = [
    lambda folder: folder.names(),
    lambda folder: folder.files(),
    lambda folder: folder.size("x"),
    lambda folder: folder.age("x"),
    lambda folder: folder.read("x"),
]
WRITING: list[Callable[[Folder], object]] = [
    lambda folder: folder.remove("x"),
    lambda folder: folder.delete(),
    lambda folder: folder.write("x").__enter__(),
]


@pytest.mark.parametrize("error", [PermissionError(errno.EACCES, "no"), OSError("Forbidden"), TimeoutError()])
@pytest.mark.parametrize("call", [*READING, *WRITING])
def test_a_refusal_elsewhere_is_one_sentence(call: Callable[[Folder], object], error: OSError) -> None:
    system = Refusing()
    system.error = error
    kind, verb = (ArtifactError, "read") if call in READING else (OutputError, "(write|remove)")
    with pytest.raises(kind, match=rf"^cannot {verb} s3://bucket/states[^\n]*\([^()\n]+\): check [^\n]*$"):
        call(RemoteFolder(system, "/bucket/states", "s3://bucket/states"))


def test_what_is_not_there_elsewhere_is_no_refusal() -> None:
    system = Refusing()
    system.error = FileNotFoundError(errno.ENOENT, "nothing")
    folder = RemoteFolder(system, "/bucket/states", "s3://bucket/states")
    assert (folder.names(), folder.files(), folder.size("x"), folder.age("x")) == ([], {}, None, None)
    folder.remove("x")
    folder.delete()
    with pytest.raises(FileNotFoundError):
        folder.read("x")


def test_names_with_sizes(tmp_path: Path) -> None:
    for folder in folders(tmp_path):
        assert folder.files() == {}
        for name, content in (("b", b"12345"), ("a", b"")):
            folder.create(name, content)
        (folder / "c").create("inner", b"123")
        assert folder.files() == {"a": 0, "b": 5, "c": 0}
        assert list(folder.files()) == folder.names() == ["a", "b", "c"]
        assert (folder / "b").files() == {}, "a file is no folder"
    (tmp_path / "plain" / "d").symlink_to("nowhere")
    assert LocalFolder(tmp_path / "plain").files() == {"a": 0, "b": 5, "c": 0, "d": 0}


# ---- stores


def test_windows_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, asked = LocalFolder.read, []

    def read(self: LocalFolder, name: str, *place: Any) -> bytes:
        asked.append(name)
        return real(self, name, *place)

    monkeypatch.setattr(LocalFolder, "read", read)
    for _ in ("new", "there"):
        make(tmp_path, [7, 30, 2])
        assert asked.count(WINDOWS_FILE) == 1
        asked.clear()


def test_a_store_asked_for_by_its_key_must_be_that_one(tmp_path: Path) -> None:
    one, other = (make(tmp_path, [7, 30, 2, 18], encoder=name) for name in "xy")
    for store in (one, other):
        fill(store, random_states(store))
        store.finish()
    for path in Path(other.folder.address).iterdir():
        path.unlink()
    for path in Path(one.folder.address).iterdir():
        (Path(other.folder.address) / path.name).write_bytes(path.read_bytes())
    with pytest.raises(
        ArtifactError, match=rf"damaged \(plan.json belongs to the store {one.key}\).*cache rm"
    ):
        make(tmp_path, [7, 30, 2, 18], encoder="y")
    assert open_store(other.folder).key == one.key


# ---- claims

TRY = """
import sys
from pathlib import Path
from bertvision.states.claims import Claims
from bertvision.states.folder import LocalFolder
for number in map(int, sys.argv[2:]):
    with Claims(LocalFolder(Path(sys.argv[1]))).claim(number) as ours:
        print(int(ours), end="")
"""


def free(folder: Path, *numbers: int) -> str:
    """Which shards a second process could claim: 1 or 0 for each."""
    words = [sys.executable, "-c", TRY, str(folder), *map(str, numbers)]
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout


def handles() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_claims_of_one_process_do_not_lose_each_other(tmp_path: Path) -> None:
    before, folder = handles(), tmp_path / "stores"
    folder.mkdir()
    (tmp_path / "again").symlink_to(folder)
    mine, other = Claims(LocalFolder(folder)), Claims(LocalFolder(tmp_path / "again"))
    with mine.claim(1) as first:
        with other.claim(2) as second, mine.claim(1) as again:
            assert first
            assert second
            assert again
            assert free(folder, 1, 2, 3) == "001"
        assert free(folder, 1, 2, 3) == "011", "the end of a claim ends no other"
    assert free(folder, 1, 2, 3) == "111"
    assert handles() == before


def test_claims_of_threads_do_not_lose_each_other(tmp_path: Path) -> None:
    held, leave = threading.Barrier(3), [threading.Event() for _ in range(2)]

    def hold(number: int) -> None:
        with Claims(LocalFolder(tmp_path)).claim(number, wait=True):
            held.wait(60)
            leave[number].wait(60)

    threads = [threading.Thread(target=hold, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    held.wait(60)
    assert free(tmp_path, 0, 1) == "00"
    leave[0].set()
    threads[0].join()
    assert free(tmp_path, 0, 1) == "10"
    leave[1].set()
    threads[1].join()
    assert free(tmp_path, 0, 1) == "11"


def test_a_failing_sweep_leaves_no_handle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sweep(_: LocalFolder) -> None:
        raise OutputError("no")

    before = handles()
    monkeypatch.setattr(LocalFolder, "sweep", sweep)
    for _ in range(3):
        with pytest.raises(OutputError), Claims(LocalFolder(tmp_path)).claim(1):
            pass
    assert handles() == before
