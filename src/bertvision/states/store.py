"""A store: the states of all windows of one dataset under one encoder, in shards.

    ROOT/KEY/plan.json             what it holds
             windows.safetensors   the windows with their labels: a store opens without the data it was made from
             shard-00000.safetensors ...
             .lock                 held by the process that writes

A store is finished when all its shards are there; each of them can be read before. A store at another file system
(s3://...) also has a local folder, below the default root: shards are made and read there, and copied as whole files.
"""

import contextlib
import json
import os
import threading
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from bertvision.artifacts import atomic_file, disk_trouble, sweep, write_json
from bertvision.data.cutting import default_cache_dir
from bertvision.data.windows import Windows, kept_tokens, pack_windows, unpack_windows
from bertvision.errors import ArtifactError, OutputError
from bertvision.states.files import Files
from bertvision.states.identity import SCHEMA, Identity, is_key
from bertvision.states.plan import SHARD_TOKENS
from bertvision.states.shard import (
    DamagedShard,
    Encoded,
    Shard,
    ShardLayout,
    ShardPlan,
    shard_name,
    write_shard,
)

PLAN, WINDOWS_FILE, LOCK = "plan.json", "windows.safetensors", ".lock"
_OPEN = 4096
"""Shards held open: systems allow some ten thousand files to be mapped."""


def default_root() -> Path:
    """Where stores lie by default: CACHE/states."""
    return default_cache_dir() / "states"


class Store:
    """Reads and writes the shards of one store."""

    def __init__(
        self,
        files: Files,
        identity: Identity,
        windows: Windows,
        *,
        encoder: str,
        data: str,
        shard_tokens: int = SHARD_TOKENS,
    ) -> None:
        """`files` is where it belongs; `encoder` and `data` are names for people."""
        self.files, self.identity, self.windows = files, identity, windows
        self.encoder, self.data = encoder, data
        self.folder = files.local or default_root() / identity.key
        kept = kept_tokens(windows, identity.positions)
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept)])
        self.plan = ShardPlan(windows.lengths, np.diff(before[windows.offsets]), shard_tokens)
        self._writing = threading.Lock()  # of threads, which would take the same temporary name
        self.shard = lru_cache(_OPEN)(self._open)
        """A shard by its number, its header checked; `DamagedShard` where it is missing or not what was written."""

    @property
    def key(self) -> str:
        return self.identity.key

    @property
    def begun(self) -> bool:
        """Whether it is on the disk."""
        return PLAN in self.files.names()

    @property
    def num_shards(self) -> int:
        return len(self.plan.shards)

    @property
    def nbytes(self) -> int:
        """Bytes of all shards once they are there, exactly."""
        return self.bytes_of(range(self.num_shards))

    def bytes_of(self, numbers: Iterable[int]) -> int:
        return sum(self.layout(number).nbytes for number in numbers)

    def layout(self, number: int) -> ShardLayout:
        return ShardLayout(self.identity, self.plan, number)

    def path(self, number: int) -> Path:
        """A shard's local file."""
        return self.folder / shard_name(number)

    def missing(self) -> list[int]:
        """Shards that are not there yet."""
        names = self.files.names()
        return [number for number in range(self.num_shards) if shard_name(number) not in names]

    # ---- reading

    def _open(self, number: int) -> Shard:
        import torch

        path, content = self.path(number), np.zeros(0, np.uint8)
        try:
            if self.files.local is None:
                self._fetch(path.name)
            if size := path.stat().st_size:
                # Torch maps without keeping the file open, so that many can be; privately, because it warns about
                # memory that must not be written to.
                content = torch.from_file(str(path), False, size, dtype=torch.uint8).numpy()
        except FileNotFoundError as error:
            raise DamagedShard(number, "the file is missing") from error
        return Shard(self.layout(number), content)

    def _fetch(self, name: str) -> None:
        """Copy a file to the local folder, where it is not there."""
        with self._writing:
            if not (self.folder / name).exists():
                with atomic_file(self.folder / name) as temporary:
                    temporary.write_bytes(self.files.read(name))

    def read(self, window: int) -> Encoded:
        """The states (n, L, H) of a window in the dtype they are stored in, and the scales (n, L) of int8."""
        number, row = self.plan.places[window].tolist()
        shard = self.shard(number)
        first, last = shard.place(row)
        return shard.states[first:last], None if shard.scales is None else shard.scales[first:last]

    def verify(self, number: int) -> None:
        """Check every byte of a shard as it is now; `DamagedShard` where something is wrong."""
        self.shard.cache_clear()
        try:
            content = self.files.read(shard_name(number))
        except FileNotFoundError as error:
            raise DamagedShard(number, "the file is missing") from error
        Shard(self.layout(number), np.frombuffer(content, np.uint8)).verify()

    def mark_used(self) -> None:
        """Note that it is in use: the least recently used stores are deleted first."""
        with contextlib.suppress(OSError):  # a disk that is only read
            os.utime(self.folder / PLAN)

    # ---- writing

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Write alone: other processes wait until the block ends, or until this process does."""
        from filelock import FileLock

        lock = FileLock(self.folder / LOCK)
        with disk_trouble(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire()
            except NotImplementedError as error:
                raise OutputError(
                    f"{self.folder} lies on a disk without locks: choose another --states.store"
                ) from error
        try:
            sweep(self.folder)  # what a killed process left
            yield
        finally:
            lock.release()

    def begin(self) -> "Store":
        """This store on the disk, cut into shards as whoever began it did."""
        if _read_windows(Files(self.folder)) is None or not (self.folder / PLAN).exists():
            with self.locked():
                if self.begun and self.files.local is None:
                    self._fetch(PLAN)
                # The windows first: where a plan is, windows are.
                with atomic_file(self.folder / WINDOWS_FILE) as temporary:
                    temporary.write_bytes(pack_windows(self.windows))
                if not (self.folder / PLAN).exists():
                    about = self._about()
                    write_json(self.folder / PLAN, about | {"checksum": _checksum(about)})
                self._publish(WINDOWS_FILE, PLAN)
        return plan_store(self.files, self.identity, self.windows, encoder=self.encoder, data=self.data)

    def _about(self) -> dict[str, Any]:
        """What plan.json says."""
        return {
            "schema": SCHEMA,
            "key": self.key,
            "encoder": self.encoder,
            "data": self.data,
            "windows": len(self.windows),
            "tokens": self.windows.num_tokens,
            "shards": self.num_shards,
            "bytes": self.nbytes,
            "shard_tokens": self.plan.shard_tokens,
            "identity": asdict(self.identity) | {"layers": list(self.identity.layers)},
        }

    def write(self, number: int, parts: Iterable[Encoded]) -> None:
        """Write a shard from the states of its windows in their order, any number of windows a part."""
        with self._writing, atomic_file(self.path(number)) as temporary, temporary.open("wb") as file:
            write_shard(self.layout(number), file, parts)
        self._publish(shard_name(number))

    def _publish(self, *names: str) -> None:
        """Copy files from the local folder to where the store belongs."""
        for name in names if self.files.local is None else ():
            self.files.put(self.folder / name)

    def drop(self, number: int) -> None:
        """Delete a shard."""
        self.files.remove(shard_name(number))
        self.path(number).unlink(missing_ok=True)
        self.shard.cache_clear()


def plan_store(
    files: Files,
    identity: Identity,
    windows: Windows,
    *,
    encoder: str,
    data: str,
    shard_tokens: int = SHARD_TOKENS,
) -> Store:
    """The store of `identity` in `files`, or one that `begin` puts there, with shards of `shard_tokens`."""
    with contextlib.suppress(FileNotFoundError):
        shard_tokens = _read_plan(files, identity.key)["shard_tokens"]
    return Store(files, identity, windows, encoder=encoder, data=data, shard_tokens=shard_tokens)


def open_store(address: str | Path | Files, key: str = "") -> Store:
    """A store by its folder, whose name does not count unless it was asked for by its `key`.

    Needs neither its data nor its encoder.
    """
    files = address if isinstance(address, Files) else Files(address)
    try:
        about = _read_plan(files, key)
    except FileNotFoundError as error:
        raise ArtifactError(
            f"{address} holds no stored states: `bertvision cache ls` shows what there is"
        ) from error
    windows = _read_windows(files)
    if windows is None:
        raise _damaged(files, f"{WINDOWS_FILE} cannot be read")
    names = {name: about[name] for name in ("encoder", "data", "shard_tokens")}
    identity = about["identity"] | {"layers": tuple(about["identity"]["layers"])}
    return Store(files, Identity(**identity), windows, **names)


def parse_plan(content: bytes, key: str = "") -> dict[str, Any]:
    """What plan.json says; ValueError says why it cannot be used. `key` is the name of its store, where it has one."""
    try:
        about = json.loads(content)
        whole = about.pop("checksum") == _checksum(about)
    except (ValueError, KeyError, TypeError, AttributeError):
        whole, about = False, {}
    if not whole:
        raise ValueError(f"{PLAN} is not what was written")
    if about["schema"] != SCHEMA:
        raise ValueError(f"its layout is {about['schema']} and this version reads {SCHEMA}")
    if is_key(key) and about["key"] != key:
        raise ValueError(f"{PLAN} belongs to the store {about['key']}")
    return about


def _checksum(about: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(about, sort_keys=True).encode())


def _read_plan(files: Files, key: str) -> dict[str, Any]:
    try:
        return parse_plan(files.read(PLAN), key)
    except ValueError as error:
        raise _damaged(files, str(error)) from error


def _read_windows(files: Files) -> Windows | None:
    with contextlib.suppress(FileNotFoundError):
        return unpack_windows(files.read(WINDOWS_FILE))
    return None


def _damaged(files: Files, why: str) -> ArtifactError:
    return ArtifactError(
        f"{files.address} is damaged ({why}): `bertvision cache rm` it and let it be made again"
    )
