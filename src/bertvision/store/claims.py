"""Who makes which shard, when several processes write one store: locks that die with their process.

One hidden file, one byte a shard. Where the file system has no locks nobody is told, and two processes may make
the same shard: a waste, but no harm, because both write the same bytes to names of their own and rename.
"""

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager

from bertvision.store.folder import Folder, LocalFolder

__all__ = ["Claims"]


class Claims:
    """Shards this process is making."""

    def __init__(self, folder: Folder) -> None:
        self._handle: int | None = None
        if isinstance(folder, LocalFolder) and folder.path.is_dir():
            with contextlib.suppress(OSError):
                self._handle = os.open(folder.path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)

    @contextmanager
    def claim(self, number: int, *, wait: bool = False) -> Iterator[bool]:
        """Whether nobody else is making the shard; `wait` until that is so."""
        held = self._take(number, wait=wait)
        try:
            yield held is not False
        finally:
            if held:
                self._give(number)

    def _take(self, number: int, *, wait: bool) -> bool | None:
        """True: ours. False: somebody else's. None: there are no locks here."""
        if self._handle is None:
            return None
        try:
            import fcntl

            fcntl.lockf(self._handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), 1, number)
        except (BlockingIOError, PermissionError):
            return False
        except (OSError, ImportError):
            return None
        return True

    def _give(self, number: int) -> None:
        import fcntl

        assert self._handle is not None
        fcntl.lockf(self._handle, fcntl.LOCK_UN, 1, number)

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
