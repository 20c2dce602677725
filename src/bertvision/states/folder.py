"""Where a store lies: a local folder, or any address that fsspec knows (s3://, gs://, memory:// ...).

A file is seen whole or not at all. Locally it is written to a temporary name, flushed and renamed; elsewhere
inside a transaction of fsspec, which shows it when it is closed (object storage does the same by itself).

A temporary name tells machine, process and number of the write: machines that share a disk may have processes of
equal numbers, and two threads may write the same file.
"""

import contextlib
import ctypes
import itertools
import mmap
import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from bertvision.artifacts import alive, disk_trouble, remove
from bertvision.errors import ArtifactError, ConfigError, OutputError

__all__ = ["Folder", "LocalFolder", "RemoteFolder", "open_folder", "will_need"]

_MARK = ".tmp-"
_DEAD = 3600
"""Seconds after which a file that another machine began and never went on with is nobody's."""
_WRITES = itertools.count()


class Folder(Protocol):
    """Named files, each written once and whole."""

    address: str

    def __truediv__(self, name: str) -> "Folder": ...

    def names(self) -> list[str]:
        """Files and folders in it, sorted; none where there is no such folder."""
        ...

    def files(self) -> dict[str, int]:
        """The same names with the bytes of each (0 for a folder), from one look at it."""
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

    def sweep(self) -> None:
        """Delete what processes that were killed left half-written."""
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
        return LocalFolder(Path(rest).expanduser())
    import fsspec

    try:
        # One of our own: transactions belong to the object, which fsspec would share with everybody.
        system, path = fsspec.core.url_to_fs(text, skip_instance_cache=True)
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
        with _readable(self.path):
            return sorted(path.name for path in self.path.iterdir())
        return []

    def files(self) -> dict[str, int]:
        found = {}
        with _readable(self.path), os.scandir(self.path) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                with contextlib.suppress(FileNotFoundError):  # gone in the meantime, or a link to nothing
                    found[entry.name] = 0  # which is there all the same
                    found[entry.name] = 0 if entry.is_dir() else entry.stat().st_size
        return found

    def size(self, name: str) -> int | None:
        with _readable(self.path / name):
            return (self.path / name).stat().st_size
        return None

    def age(self, name: str) -> float | None:
        with _readable(self.path / name):
            return time.time() - (self.path / name).stat().st_mtime
        return None

    def read(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        path = self.path / name
        with _readable(path), path.open("rb") as handle:
            handle.seek(begin)
            return handle.read(-1 if end is None else end - begin)
        raise FileNotFoundError(path)

    def mapped(self, name: str) -> NDArray[np.uint8] | None:
        import torch

        path, size = self.path / name, self.size(name)
        try:
            # Torch maps without keeping the file open, so that many can be; private and writable, because torch
            # warns about memory it must not write to. Nobody writes.
            return torch.from_file(str(path), False, size, dtype=torch.uint8).numpy()
        except (RuntimeError, TypeError) as error:
            with _readable(path):
                path.open("rb").close()  # says better what is wrong
            raise FileNotFoundError(path) from error

    @contextmanager
    def write(self, name: str) -> Iterator[BinaryIO]:
        with self._whole(name) as temporary:
            with temporary.open("wb") as handle:
                yield handle
                handle.flush()
                os.fsync(handle.fileno())
            temporary.replace(self.path / name)

    def create(self, name: str, content: bytes) -> bool:
        target = self.path / name
        with self._whole(name) as temporary:
            with temporary.open("wb") as handle:
                handle.write(content)
                handle.flush()
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

    @contextmanager
    def _whole(self, name: str) -> Iterator[Path]:
        """A temporary name that is gone when the block ends, and the disk's troubles as one sentence."""
        temporary = self.path / f".{name}{_MARK}{socket.gethostname()}.{os.getpid()}.{next(_WRITES)}"
        with disk_trouble(self.path / name):
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                yield temporary
            finally:
                temporary.unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        with disk_trouble(self.path / name):
            remove(self.path / name)

    def sweep(self) -> None:
        for name in self.names():
            maker = name.rpartition(_MARK)[2]
            process = maker.rpartition(".")[0].rpartition(".")[2]
            if maker == name or not process.isdigit():
                continue
            # Of processes elsewhere nobody knows here, but whoever lives goes on writing.
            here = maker.startswith(f"{socket.gethostname()}.{process}.")
            dead = not alive(int(process)) if here else (self.age(name) or 0) > _DEAD
            if dead:
                self.remove(name)

    def delete(self) -> None:
        # Aside first: a kill in the middle leaves nothing that looks like a store.
        real = self.path.resolve()  # somebody may have moved it to a larger disk and left a link
        aside = real.with_name(f".{real.name}.tmp-{os.getpid()}")
        with disk_trouble(self.path), contextlib.suppress(FileNotFoundError):
            real.rename(aside)
            self.path.unlink(missing_ok=True)
        remove(aside)

    def free(self) -> int | None:
        nearest = next(folder for folder in (self.path, *self.path.absolute().parents) if folder.exists())
        return shutil.disk_usage(nearest).free


@contextmanager
def _readable(address: str | Path) -> Iterator[None]:
    """End the block quietly where there is no such file, and with one sentence where it cannot be read."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise ArtifactError(
            f"cannot read {address} ({_reason(error)}): check the disk and your rights there"
        ) from error


@contextmanager
def _writable(address: str, verb: str = "write") -> Iterator[None]:
    """The refusal of a file system elsewhere to write or remove something, as one sentence."""
    try:
        yield
    except (OSError, NotImplementedError) as error:
        raise OutputError(
            f"cannot {verb} {address} ({_reason(error)}): check the address and your rights there, "
            "then run the same command again"
        ) from error


def _reason(error: OSError | NotImplementedError) -> str:
    """Why, in the system's words or, where it has none, in those of the file system."""
    known = isinstance(error, OSError) and error.errno
    return os.strerror(known) if known else str(error) or type(error).__name__


_WILL_NEED = 3  # of madvise


@cache
def _madvise() -> Any:
    """The system's own, where it has one."""
    return getattr(ctypes.CDLL(None), "madvise", None) if os.name == "posix" else None


def will_need(array: NDArray[Any]) -> None:
    """Have the pages of a mapped array fetched ahead, without waiting for them."""
    if (advise := _madvise()) is None or not array.nbytes:
        return
    address = array.ctypes.data
    begin = address - address % mmap.PAGESIZE
    advise(ctypes.c_void_p(begin), ctypes.c_size_t(address + array.nbytes - begin), _WILL_NEED)


class RemoteFolder:
    """A folder on a file system of fsspec."""

    def __init__(self, system: Any, path: str, address: str) -> None:
        self.system, self.path, self.address = system, path.rstrip("/"), address.rstrip("/")

    def __truediv__(self, name: str) -> "RemoteFolder":
        return RemoteFolder(self.system, f"{self.path}/{name}", f"{self.address}/{name}")

    def _at(self, name: str) -> str:
        return f"{self.path}/{name}"

    def names(self) -> list[str]:
        return list(self.files())

    def files(self) -> dict[str, int]:
        found: list[dict[str, Any]] = []
        with _readable(self.address):
            self.system.invalidate_cache(self.path)
            found = self.system.ls(self.path, detail=True)
        paths = {str(one["name"]).rstrip("/"): int(one.get("size") or 0) for one in found}
        paths.pop(self.path, None)  # some list a folder, or what is a file, as a part of itself
        folders = {str(one["name"]).rstrip("/") for one in found if one.get("type") == "directory"}
        return {path.rpartition("/")[2]: 0 if path in folders else paths[path] for path in sorted(paths)}

    def size(self, name: str) -> int | None:
        with _readable(f"{self.address}/{name}"):
            self.system.invalidate_cache(self.path)  # another process may have written it just now
            return int(self.system.info(self._at(name))["size"] or 0)
        return None

    def age(self, name: str) -> float | None:
        with _readable(f"{self.address}/{name}"), contextlib.suppress(NotImplementedError):
            return time.time() - self.system.modified(self._at(name)).timestamp()
        return None

    def read(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        with _readable(f"{self.address}/{name}"):
            return self.system.cat_file(self._at(name), start=begin, end=end)
        raise FileNotFoundError(f"{self.address}/{name}")

    def mapped(self, name: str) -> NDArray[np.uint8] | None:
        return None

    @contextmanager
    def write(self, name: str) -> Iterator[BinaryIO]:
        with _writable(f"{self.address}/{name}"):
            self.system.makedirs(self.path, exist_ok=True)
            with self.system.transaction, self.system.open(self._at(name), "wb") as handle:
                yield cast(BinaryIO, handle)

    def create(self, name: str, content: bytes) -> bool:
        if self.size(name) is not None:
            return False
        with self.write(name) as handle:
            handle.write(content)
        return True

    def remove(self, name: str) -> None:
        with _writable(f"{self.address}/{name}", "remove"), contextlib.suppress(FileNotFoundError):
            self.system.rm(self._at(name))

    def sweep(self) -> None:
        pass  # a transaction leaves nothing

    def delete(self) -> None:
        with _writable(self.address, "remove"), contextlib.suppress(FileNotFoundError):
            self.system.rm(self.path, recursive=True)

    def free(self) -> int | None:
        return None
