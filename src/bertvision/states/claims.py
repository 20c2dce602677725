"""Who makes which shard, when several processes write one store: locks that die with their process.

One hidden file, one byte a shard. Where the file system has no locks nobody is told, and two processes may make
the same shard: a waste, but no harm, because both write the same bytes to names of their own and rename.

Such locks belong to a process as a whole, and closing any handle of a file drops all that it has there. Its claims
therefore share one handle a file, whatever thread or object they come from, and the last of them closes it.
"""

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bertvision.states.folder import Folder, LocalFolder

__all__ = ["Claims"]


class Claims:
    """Shards this process is making."""

    def __init__(self, folder: Folder) -> None:
        self._folder, self._swept = folder, False

    @contextmanager
    def claim(self, number: int, *, wait: bool = False) -> Iterator[bool]:
        """Whether no other process is making the shard; `wait` until that is so."""
        if not self._swept:
            self._folder.sweep()
            self._swept = True
        with _lock_file(self._folder) as file:
            if file is None:
                yield True
            else:
                with file.hold(number, wait=wait) as ours:
                    yield ours


class _LockFile:
    """The one handle of a lock file in this process."""

    def __init__(self, handle: int) -> None:
        self.handle, self.users = handle, 0
        self._claims: Counter[int] = Counter()  # of each shard; not only one thread may make it

    @contextmanager
    def hold(self, number: int, *, wait: bool) -> Iterator[bool]:
        with _MUTEX:
            self._claims[number] += 1  # before the lock: another thread that lets go must leave it to us
        try:
            yield _lock(self.handle, number, wait=wait)
        finally:
            with _MUTEX:
                self._claims[number] -= 1
                if not self._claims[number]:
                    _unlock(self.handle, number)


_MUTEX = threading.Lock()
_OPEN: dict[tuple[int, int], _LockFile] = {}
"""Lock files that are open, by device and inode: one file may have several names."""


@contextmanager
def _lock_file(folder: Folder) -> Iterator[_LockFile | None]:
    """The lock file of a folder; None where there cannot be one."""
    if not isinstance(folder, LocalFolder):
        yield None
        return
    try:
        with _MUTEX:
            which, file = _opened(folder.path / ".lock")
            file.users += 1
    except OSError:
        yield None
        return
    try:
        yield file
    finally:
        with _MUTEX:
            file.users -= 1
            if not file.users:
                del _OPEN[which]
                os.close(file.handle)


def _opened(path: Path) -> tuple[tuple[int, int], _LockFile]:
    # Looked at before it is opened: a second handle could not be closed again without harm.
    with contextlib.suppress(FileNotFoundError):
        which = _inode(path.stat())
        if which in _OPEN:
            return which, _OPEN[which]
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    which = _inode(os.fstat(handle))
    return which, _OPEN.setdefault(which, _LockFile(handle))


def _inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _lock(handle: int, number: int, *, wait: bool) -> bool:
    """False: another process has it. True: ours, or there are no locks here."""
    try:
        import fcntl

        fcntl.lockf(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), 1, number)
    except (BlockingIOError, PermissionError):
        return False
    except (OSError, ImportError):
        return True
    return True


def _unlock(handle: int, number: int) -> None:
    with contextlib.suppress(OSError, ImportError):
        import fcntl

        fcntl.lockf(handle, fcntl.LOCK_UN, 1, number)
