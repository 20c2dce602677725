"""The files of a folder, on this machine or at any address that fsspec knows (s3://, gs://, memory:// ...).

Whole files are read and written, nothing else: what is read in parts lies on a local disk (store.py).
"""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertvision.errors import ArtifactError, ConfigError, OutputError


class Files:
    """One folder, by its path or by what fsspec calls a URL."""

    def __init__(self, address: str | Path) -> None:
        from fsspec.core import url_to_fs
        from fsspec.implementations.local import LocalFileSystem

        try:
            self._system, path = url_to_fs(str(address))
        except (ValueError, ImportError) as error:
            raise ConfigError(
                f"states cannot be stored at {address} ({error}): give a folder, or install what that address needs"
            ) from error
        self._path = path.rstrip("/") or "/"
        self.local = Path(self._path) if isinstance(self._system, LocalFileSystem) else None
        """Its path, if it is on this machine."""
        self.address = self._path if self.local else str(address).rstrip("/")

    def __truediv__(self, name: str) -> "Files":
        return Files(f"{self.address}/{name}")

    @property
    def name(self) -> str:
        return self._path.rpartition("/")[2]

    def names(self) -> dict[str, int]:
        """Files and folders in it with their bytes (0 for a folder), sorted; empty where there is no such folder."""
        found: list[dict[str, Any]] = []
        with self._refused("read"), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            self._system.invalidate_cache(self._path)  # another process may have written just now
            found = self._system.ls(self._path, detail=True)
        sizes = {str(one["name"]).rstrip("/"): one for one in found}
        sizes.pop(self._path, None)  # some systems list a folder, or a file, as a part of itself
        return {
            path.rpartition("/")[2]: 0 if one["type"] == "directory" else int(one.get("size") or 0)
            for path, one in sorted(sizes.items())
        }

    def age(self, name: str) -> float | None:
        """Seconds since a file was last changed or marked as used, where that is known."""
        with self._refused("read", name), contextlib.suppress(FileNotFoundError, NotImplementedError):
            return time.time() - self._system.modified(f"{self._path}/{name}").timestamp()
        return None

    def read(self, name: str) -> bytes:
        """A file's content; FileNotFoundError where there is none."""
        with self._refused("read", name):
            return self._system.cat_file(f"{self._path}/{name}")

    def put(self, source: Path) -> None:
        """Copy a local file here, under its own name."""
        with self._refused("write", source.name):
            self._system.makedirs(self._path, exist_ok=True)
            self._system.put_file(str(source), f"{self._path}/{source.name}")

    def remove(self, name: str) -> None:
        """Delete a file that may not exist."""
        with self._refused("remove", name), contextlib.suppress(FileNotFoundError):
            self._system.rm(f"{self._path}/{name}")

    def delete(self) -> None:
        """Delete the folder with everything in it."""
        with self._refused("remove"), contextlib.suppress(FileNotFoundError):
            if self.local and self.local.is_symlink():  # somebody moved it to a larger disk and left a link
                shutil.rmtree(self.local.resolve())
                self.local.unlink()
            else:
                self._system.rm(self._path, recursive=True)

    def free(self) -> int | None:
        """Bytes that can still be written, where that is known."""
        if self.local is None:
            return None
        nearest = next(folder for folder in (self.local, *self.local.parents) if folder.exists())
        return shutil.disk_usage(nearest).free

    @contextmanager
    def _refused(self, verb: str, name: str = "") -> Iterator[None]:
        """Turn a refusal of the file system into one sentence; that there is no such file is none."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError) as error:
            raise FileNotFoundError(f"{self.address}/{name}") from error
        except (OSError, NotImplementedError) as error:
            known = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
            raise (ArtifactError if verb == "read" else OutputError)(
                f"cannot {verb} {'/'.join(filter(None, [self.address, name]))} ({known or type(error).__name__}): "
                "check the disk and your rights there"
            ) from error
