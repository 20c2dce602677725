"""Who makes which shard, when several processes write one store: locks that die with their process.

One hidden file, one byte a shard. Where the file system has no locks nobody is told, and two processes may make
the same shard: a waste, but no harm, because both write the same bytes to names of their own and rename.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from bertvision.store.folder import Folder, LocalFolder

__all__ = ["Claims"]


class Claims:
    """Shards this process is making."""

    def __init__(self, folder: Folder) -> None:
        self._folder, self._swept = folder, False

    @contextmanager
    def claim(self, number: int, *, wait: bool = False) -> Iterator[bool]:
        """Whether nobody else is making the shard; `wait` until that is so."""
        handle = self._open()
        if not self._swept:
            self._folder.sweep()
            self._swept = True
        try:
            held = None if handle is None else _lock(handle, number, wait=wait)
            yield held is not False
        finally:
            if handle is not None:
                os.close(handle)  # and with it goes the lock

    def _open(self) -> int | None:
        if not isinstance(self._folder, LocalFolder):
            return None
        try:
            self._folder.path.mkdir(parents=True, exist_ok=True)
            return os.open(self._folder.path / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        except OSError:
            return None


def _lock(handle: int, number: int, *, wait: bool) -> bool | None:
    """True: ours. False: somebody else's. None: there are no locks here."""
    try:
        import fcntl

        fcntl.lockf(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), 1, number)
    except (BlockingIOError, PermissionError):
        return False
    except (OSError, ImportError):
        return None
    return True
