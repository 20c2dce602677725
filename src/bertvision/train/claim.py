"""Who works in a folder: a lock that other processes see, and that ends with its process however that ends.

It lies on the folder itself (flock), so that nothing is left behind to clean up. Where the system or the file system
knows no such locks, everybody may work everywhere.
"""

import contextlib
import os
import weakref
from pathlib import Path

from bertvision.errors import OutputError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

__all__ = ["Claim", "claim"]


class Claim:
    """A folder that is this process's until the claim is let go, by hand or with its last holder."""

    def __init__(self, opened: int | None) -> None:
        self.let_go = weakref.finalize(self, _close, opened)


_HELD: "weakref.WeakValueDictionary[tuple[int, int], Claim]" = weakref.WeakValueDictionary()
"""Of this process, by device and inode of the folder: it may begin its own work again."""


def claim(folder: Path) -> Claim:
    """Take a folder for this process.

    Raises:
        OutputError: another process works there.
    """
    if fcntl is None:
        return Claim(None)
    place = os.stat(folder)
    key = (place.st_dev, place.st_ino)
    held = _HELD.get(key)
    if held is not None and held.let_go.alive:
        return held
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(opened)
        raise OutputError(
            f"another process works in {folder}: wait for it or stop it, or choose another --out"
        ) from None
    except OSError:  # a file system without locks
        os.close(opened)
        return Claim(None)
    _HELD[key] = made = Claim(opened)
    return made


def _close(opened: int | None) -> None:
    if opened is not None:
        with contextlib.suppress(OSError):  # at the end of the interpreter it may be closed already
            os.close(opened)
