"""A store: the states of all windows of one dataset under one encoder, in shards (shard.py).

    ROOT/KEY/plan.json             what it holds
             windows.safetensors   the windows with their labels: a store opens without the data it was made from
             shard-00000.safetensors ...
             .lock                 held by the process that writes

The key hashes everything that decides the numbers; names never count. A store is finished when all its shards are
there; each of them can be read before. Where ROOT is an address (s3://...), the store lies below the default root: what
is at the address is copied here when it is opened, and every new file is copied there. Only shards need torch.
"""

import contextlib
import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bertvision.artifacts import atomic_file, disk_trouble, sweep
from bertvision.data.cutting import default_cache_dir
from bertvision.data.windows import (
    Positions,
    Windows,
    kept_tokens,
    pack_windows,
    ragged_offsets,
    unpack_windows,
)
from bertvision.errors import ArtifactError, ConfigError
from bertvision.states.config import Selection, StateType
from bertvision.states.plan import SHARD_TOKENS, tokens_cut

if TYPE_CHECKING:
    from bertvision.encoder.encoder import Encoder
    from bertvision.states.shard import Encoded, Shard

SCHEMA = 2
"""Version of the layout; raise it whenever a file of a store would be read differently."""
PLAN, WINDOWS_FILE, LOCK = "plan.json", "windows.safetensors", ".lock"
_OPEN = 4096
"""Shards held open: systems allow some ten thousand files to be mapped."""
_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1}


def local_root(address: str | Path) -> Path:
    """The folder of stores that `--store` names, by default CACHE/states; an address elsewhere is refused."""
    if "://" in str(address) and not str(address).startswith("file://"):
        raise ConfigError(f"{address} is not on this machine: --store must be a folder here")
    return Path(str(address).removeprefix("file://") or default_cache_dir() / "states").expanduser()


@contextmanager
def _remote(address: str) -> Iterator[tuple[Any, str]]:
    """The file system and the path of an address that fsspec knows (s3://, gs://, memory:// ...)."""
    from fsspec.core import url_to_fs

    try:
        yield url_to_fs(address)
    except (OSError, ValueError, ImportError, NotImplementedError) as error:
        raise ConfigError(
            f"states cannot be stored at {address} ({error}): check the address and your rights there, or "
            "install what it needs"
        ) from error


# ---- identity


@dataclass(frozen=True)
class Origin:
    """Where windows come from."""

    fingerprint: str
    """Of data, tokenizer and window settings."""
    preprocessing: dict[str, Any]
    """The window settings."""
    name: str
    """What the user calls the data."""


@dataclass(frozen=True)
class Identity:
    """Everything that decides the numbers in a store."""

    encoder: str
    """Fingerprint of weights and tokenizer."""
    configuration: str
    """Hash of the model's settings: equal weights compute other states with another norm or activation."""
    precision: str
    """Arithmetic of the encoder: fp32 or bf16."""
    windows: str
    """Fingerprint of data, tokenizer and window settings."""
    preprocessing: dict[str, Any]
    """The window settings themselves."""
    layers: tuple[int, ...]
    """Hidden states that are stored; 0 is the embedding output."""
    hidden: int
    positions: Positions
    dtype: StateType
    schema: int = SCHEMA

    @classmethod
    def of(cls, encoder: "Encoder", origin: Origin, selection: Selection, dtype: StateType) -> "Identity":
        return cls(
            encoder=encoder.fingerprint,
            configuration=encoder.configuration,
            precision=encoder.precision,
            windows=origin.fingerprint,
            preprocessing=origin.preprocessing,
            layers=selection.numbers(encoder.num_states),
            hidden=encoder.hidden,
            positions=selection.positions,
            dtype=dtype,
        )

    @property
    def key(self) -> str:
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


# ---- the store


def shard_name(number: int) -> str:
    return f"shard-{number:05d}.safetensors"


class Store:
    """Reads and writes the shards of one store."""

    def __init__(
        self,
        folder: Path,
        identity: Identity,
        windows: Windows,
        *,
        encoder: str,
        data: str,
        shard_tokens: int = SHARD_TOKENS,
        remote: str = "",
    ) -> None:
        """
        Args:
            encoder: Its name for people, and so is `data`.
            shard_tokens: Of a new store; one that was begun keeps its own.
            remote: An address where every new file is copied to.
        """
        self.folder, self.identity, self.windows, self.remote = folder, identity, windows, remote
        self.encoder, self.data, self.key = encoder, data, identity.key
        with contextlib.suppress(FileNotFoundError):
            shard_tokens = read_plan(folder)["shard_tokens"]
        self.shard_tokens = shard_tokens
        kept = ragged_offsets(kept_tokens(windows, identity.positions).astype(np.int64))
        self.kept = np.diff(kept[windows.offsets])
        """(W,) tokens of each window that are stored."""
        self.shard = lru_cache(_OPEN)(self._open)
        """A shard by its number, its header checked; `DamagedShard` where it is missing or not what was written."""

    @classmethod
    def at(cls, root: str, identity: Identity, windows: Windows, **names: Any) -> "Store":
        """The store of `identity` below a folder or an address."""
        if "://" not in root or root.startswith("file://"):
            return cls(local_root(root) / identity.key, identity, windows, **names)
        folder, remote = local_root("") / identity.key, f"{root}/{identity.key}"
        with _remote(remote) as (system, path):
            names_there = [str(found).rpartition("/")[2] for found in system.glob(f"{path}/*.*")]
            # The plan last: where a plan is, windows are.
            for name in sorted(names_there, key=lambda name: name == PLAN):
                if not (folder / name).exists():
                    with atomic_file(folder / name) as temporary:
                        system.get_file(f"{path}/{name}", str(temporary))
        return cls(folder, identity, windows, remote=remote, **names)

    @cached_property
    def shards(self) -> list[NDArray[np.int64]]:
        """Windows of each shard in the order they are encoded and stored in: the longest first."""
        lengths = self.windows.lengths
        cut = tokens_cut(lengths, self.shard_tokens)
        return [windows[np.argsort(-lengths[windows], kind="stable")] for windows in cut]

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """(W, 2) the shard of each window, and which of its windows it is."""
        found = np.empty((len(self.windows), 2), np.int64)
        for number, windows in enumerate(self.shards):
            found[windows, 0], found[windows, 1] = number, np.arange(len(windows))
        return found

    def offsets(self, number: int) -> list[int]:
        """(w + 1,) where each window of a shard begins in the stored tokens, and where the last ends."""
        return [0, *np.cumsum(self.kept[self.shards[number]]).tolist()]

    @property
    def begun(self) -> bool:
        """Whether it is on the disk."""
        return (self.folder / PLAN).exists()

    @property
    def num_shards(self) -> int:
        return len(self.shards)

    @property
    def nbytes(self) -> int:
        """Bytes of all shards once they are there."""
        return self.bytes_of(range(self.num_shards))

    def bytes_of(self, numbers: Iterable[int]) -> int:
        """Bytes of some shards without their headers, which have a few hundred each."""
        which = self.identity
        token = len(which.layers) * (_BYTES[which.dtype] * which.hidden + 4 * (which.dtype == "int8"))
        return sum(token * self.offsets(number)[-1] + 4 * len(self.shards[number]) for number in numbers)

    def path(self, number: int) -> Path:
        return self.folder / shard_name(number)

    def missing(self) -> list[int]:
        """Shards that are not there yet."""
        names = {path.name for path in self.folder.glob("shard-*")}
        return [number for number in range(self.num_shards) if shard_name(number) not in names]

    # ---- reading

    def _open(self, number: int) -> "Shard":
        from bertvision.states.shard import Shard

        return Shard(self, number)

    def read(self, window: int) -> "Encoded":
        """The states (n, L, H) of a window in the dtype they are stored in, and the scales (n, L) of int8."""
        number, row = self.places[window].tolist()
        shard = self.shard(number)
        first, last = shard.place(row)
        return shard.states[first:last], None if shard.scales is None else shard.scales[first:last]

    def verify(self, number: int) -> None:
        """Check every byte of a shard as it is now; `DamagedShard` where something is wrong."""
        shard = self._open(number)
        for row in range(len(self.shards[number])):
            shard.place(row)

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
            lock.acquire()
        try:
            sweep(self.folder)  # what a killed process left
            yield
        finally:
            lock.release()

    def begin(self) -> "Store":
        """This store on the disk, cut into shards as whoever began it did."""
        names: dict[str, Any] = {"encoder": self.encoder, "data": self.data}
        if not self.begun or _read_windows(self.folder) is None:
            with self.locked():
                # The windows first: where a plan is, windows are.
                self._put(WINDOWS_FILE, pack_windows(self.windows))
                if not self.begun:
                    about: dict[str, Any] = {"schema": SCHEMA, "key": self.key, **names}
                    about |= {"windows": len(self.windows), "tokens": self.windows.num_tokens}
                    about |= {"shards": self.num_shards, "bytes": self.nbytes}
                    about |= {"shard_tokens": self.shard_tokens, "identity": asdict(self.identity)}
                    about["checksum"] = _checksum(about)
                    self._put(PLAN, f"{json.dumps(about, indent=2, ensure_ascii=False)}\n".encode())
        return Store(self.folder, self.identity, self.windows, remote=self.remote, **names)

    def write(self, number: int, parts: "Iterable[Encoded]") -> None:
        """Write a shard from the states of its windows in their order, any number of windows a part."""
        from bertvision.states.shard import write_shard

        write_shard(self, number, parts)
        self._push(self.path(number))

    def _put(self, name: str, content: bytes) -> None:
        with atomic_file(self.folder / name) as temporary:
            temporary.write_bytes(content)
        self._push(self.folder / name)

    def _push(self, file: Path) -> None:
        """Copy a file to the address of this store, if it has one."""
        if self.remote:
            with _remote(self.remote) as (system, path):
                system.makedirs(path, exist_ok=True)
                system.put_file(str(file), f"{path}/{file.name}")


def open_store(folder: str | Path) -> Store:
    """A store by its folder, whose name does not count; needs neither its data nor its encoder."""
    folder = Path(folder).expanduser()
    try:
        about = read_plan(folder)
    except FileNotFoundError as error:
        raise ArtifactError(
            f"{folder} holds no stored states: `bertvision cache ls` shows what there is"
        ) from error
    windows = _read_windows(folder)
    if windows is None:
        raise _damaged(folder, f"{WINDOWS_FILE} cannot be read")
    identity = Identity(**about["identity"] | {"layers": tuple(about["identity"]["layers"])})
    return Store(folder, identity, windows, encoder=about["encoder"], data=about["data"])


def read_plan(folder: Path) -> dict[str, Any]:
    """What plan.json says; FileNotFoundError where there is none."""
    try:
        about = json.loads((folder / PLAN).read_bytes())
        whole = about.pop("checksum") == _checksum(about)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(folder / PLAN) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        whole, about = False, {}
    if not whole:
        raise _damaged(folder, f"{PLAN} is not what was written")
    if about["schema"] != SCHEMA:
        raise _damaged(folder, f"its layout is {about['schema']} and this version reads {SCHEMA}")
    return about


def _checksum(about: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(about, sort_keys=True).encode())


def _read_windows(folder: Path) -> Windows | None:
    with contextlib.suppress(OSError):
        return unpack_windows((folder / WINDOWS_FILE).read_bytes())
    return None


def _damaged(folder: Path, why: str) -> ArtifactError:
    return ArtifactError(f"{folder} is damaged ({why}): `bertvision cache rm` it and let it be made again")
