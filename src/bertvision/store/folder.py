"""Where a store lies: a local folder, or any address that fsspec knows (s3://, gs://, memory:// ...).

A file is seen whole or not at all. Locally it is written to a temporary name, flushed and renamed; elsewhere
inside a transaction of fsspec, which shows it when it is closed (object storage does the same by itself).
"""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from bertvision.artifacts import atomic_file, disk_trouble, remove, sweep
from bertvision.errors import ConfigError, OutputError

__all__ = ["Folder", "LocalFolder", "RemoteFolder", "open_folder"]


class Folder(Protocol):
    """Named files, each written once and whole."""

    address: str

    def __truediv__(self, name: str) -> "Folder": ...

    def names(self) -> list[str]:
        """Files and folders in it, sorted; none where there is no such folder."""
        ...

    def size(self, name: str) -> int | None:
        """Bytes of a file, or None where there is none."""
        ...

    def age(self, name: str) -> float | None:
        """Seconds since a file was written, where that is known."""
        ...

    def read(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        """Bytes `begin` to `end` of a file; FileNotFoundError where there is none."""
        ...

    def mapped(self, name: str) -> NDArray[np.uint8] | None:
        """The file in memory, read when it is touched; None where that cannot be done."""
        ...

    def write(self, name: str) -> AbstractContextManager[BinaryIO]:
        """A file to append to; it stands under its name when the block ends well, and leaves nothing when not."""
        ...

    def create(self, name: str, content: bytes) -> bool:
        """Write a file unless there is one; False where somebody else was first."""
        ...

    def remove(self, name: str) -> None:
        """Delete a file; none is no mistake."""
        ...

    def delete(self) -> None:
        """Delete the folder with everything in it."""
        ...

    def free(self) -> int | None:
        """Bytes that can still be written, where that is known."""
        ...


def open_folder(address: str | Path) -> Folder:
    """A folder by its path, or by an address with a protocol."""
    text = str(address)
    protocol, mark, rest = text.partition("://")
    if not mark:
        return LocalFolder(Path(text).expanduser())
    if protocol in ("file", "local"):
        return LocalFolder(Path(rest))
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(text)
    except (ValueError, ImportError) as error:
        raise ConfigError(
            f"states cannot be stored at {text} ({error}): give a folder, or install what that address needs"
        ) from error
    return RemoteFolder(system, path, text)


class LocalFolder:
    """A folder of this machine."""

    def __init__(self, path: Path) -> None:
        self.path, self.address = path, str(path)

    def __truediv__(self, name: str) -> "LocalFolder":
        return LocalFolder(self.path / name)

    def names(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return sorted(path.name for path in self.path.iterdir())
        return []

    def size(self, name: str) -> int | None:
        path = self.path / name
        return path.stat().st_size if path.is_file() else None

    def age(self, name: str) -> float | None:
        path = self.path / name
        return time.time() - path.stat().st_mtime if path.exists() else None

    def read(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        with (self.path / name).open("rb") as handle:
            handle.seek(begin)
            return handle.read(-1 if end is None else end - begin)

    def mapped(self, name: str) -> NDArray[np.uint8] | None:
        # Private and writable: torch warns about memory it must not write to, and nobody writes.
        return np.asarray(np.memmap(self.path / name, dtype=np.uint8, mode="c"))

    @contextmanager
    def write(self, name: str) -> Iterator[BinaryIO]:
        with atomic_file(self.path / name) as temporary, temporary.open("wb") as handle:
            yield handle

    def create(self, name: str, content: bytes) -> bool:
        target = self.path / name
        with disk_trouble(target):
            self.path.mkdir(parents=True, exist_ok=True)
            sweep(self.path)
            temporary = target.with_name(f".{name}.tmp-{os.getpid()}")
            try:
                temporary.write_bytes(content)
                with temporary.open("rb") as handle:
                    os.fsync(handle.fileno())
                try:
                    os.link(temporary, target)  # unlike a rename it fails where the name is taken
                except FileExistsError:
                    return False
                except OSError:  # a file system without links
                    if target.exists():
                        return False
                    temporary.replace(target)
                return True
            finally:
                temporary.unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        remove(self.path / name)

    def delete(self) -> None:
        # Aside first: a kill in the middle leaves nothing that looks like a store.
        aside = self.path.with_name(f".{self.path.name}.tmp-{os.getpid()}")
        with contextlib.suppress(FileNotFoundError):
            self.path.rename(aside)
        remove(aside)

    def free(self) -> int | None:
        nearest = next(folder for folder in (self.path, *self.path.absolute().parents) if folder.exists())
        return shutil.disk_usage(nearest).free


class RemoteFolder:
    """A folder on a file system of fsspec."""

    def __init__(self, system: Any, path: str, address: str) -> None:
        self.system, self.path, self.address = system, path.rstrip("/"), address.rstrip("/")

    def __truediv__(self, name: str) -> "RemoteFolder":
        return RemoteFolder(self.system, f"{self.path}/{name}", f"{self.address}/{name}")

    def _at(self, name: str) -> str:
        return f"{self.path}/{name}"

    def names(self) -> list[str]:
        try:
            self.system.invalidate_cache(self.path)
            found = self.system.ls(self.path, detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(path.rstrip("/").rpartition("/")[2] for path in found)

    def size(self, name: str) -> int | None:
        try:
            return int(self.system.info(self._at(name))["size"] or 0)
        except FileNotFoundError:
            return None

    def age(self, name: str) -> float | None:
        try:
            return time.time() - self.system.modified(self._at(name)).timestamp()
        except (FileNotFoundError, NotImplementedError):
            return None

    def read(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        return self.system.cat_file(self._at(name), start=begin, end=end)

    def mapped(self, name: str) -> NDArray[np.uint8] | None:
        return None

    @contextmanager
    def write(self, name: str) -> Iterator[BinaryIO]:
        try:
            self.system.makedirs(self.path, exist_ok=True)
            handle = self.system.open(self._at(name), "wb", autocommit=False)
            try:
                with handle:
                    yield cast(BinaryIO, handle)
            except BaseException:
                handle.discard()
                raise
            handle.commit()
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)
            raise OutputError(
                f"cannot write {self.address}/{name} ({why}): check the address and your rights there, "
                "then run the same command again"
            ) from error

    def create(self, name: str, content: bytes) -> bool:
        if self.size(name) is not None:
            return False
        with self.write(name) as handle:
            handle.write(content)
        return True

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.system.rm(self._at(name))

    def delete(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.system.rm(self.path, recursive=True)

    def free(self) -> int | None:
        return None
