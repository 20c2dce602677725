"""A store: the states of all windows of one dataset under one encoder, in shards (stored.py).

    ROOT/KEY/plan.json             what it holds
             windows.safetensors   the windows with their labels: a store opens without the data it was made from
             shard-00000.safetensors ...
             .lock                 held by the process that writes

The key hashes everything that decides the numbers; names never count. A store is finished when all its shards are
there; each of them can be read before. Only shards need torch.

An `Entry` is a store that is listed, checked or deleted: what its small files say, be they damaged.
"""

import hashlib
import json
import logging
import re
import shutil
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bertvision.artifacts import atomic_file, disk_trouble, sweep, write_json
from bertvision.console import size_text
from bertvision.data.cutting import default_cache_dir
from bertvision.data.windows import Windows, pack_windows, unpack_windows
from bertvision.errors import ArtifactError, ConfigError, OutputError
from bertvision.states.config import Positions, Selection, StateType
from bertvision.states.plan import SHARD_TOKENS, tokens_cut

if TYPE_CHECKING:
    from bertvision.encoder.encoder import Encoder
    from bertvision.states.stored import Encoded, Shard

logger = logging.getLogger(__name__)

SCHEMA = 2
"""Version of the layout; raise it whenever a file of a store would be read differently."""
PLAN, WINDOWS_FILE, LOCK = "plan.json", "windows.safetensors", ".lock"
_OPEN = 4096
"""Shards held open: systems allow some ten thousand files to be mapped."""
_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1}
_DAY = 86_400
_PART = re.compile(r"plan\.json|windows\.safetensors|shard-\d{5,}\.safetensors")
_OWN = re.compile(_PART.pattern + r"|\.lock|\..+\.tmp-\d+")
"""The files of a store, with the hidden ones it has while it is written."""


def local_root(folder: str) -> Path:
    """The folder of stores that `--store` names, by default CACHE/states."""
    if "://" in folder:
        raise ConfigError(f"{folder} is not a folder: --store must be one on this machine")
    return Path(folder or default_cache_dir() / "states").expanduser()


@dataclass(frozen=True)
class Origin:
    """Where windows come from."""

    fingerprint: str
    """Of data, tokenizer and window settings."""
    preprocessing: dict[str, Any]
    """The window settings."""
    name: str


@dataclass(frozen=True)
class Identity:
    """Everything that decides the numbers in a store."""

    encoder: str
    """Fingerprint of weights and tokenizer."""
    configuration: str
    """Hash of the model's settings: equal weights compute other states with another norm or activation."""
    precision: str  # the encoder's arithmetic
    windows: str  # the origin's fingerprint
    preprocessing: dict[str, Any]
    layers: tuple[int, ...]
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

    @property
    def selection(self) -> Selection:
        return Selection(self.layers, self.positions)


def shard_name(number: int) -> str:
    return f"shard-{number:05d}.safetensors"


class Store:
    """Reads and writes the shards of one store."""

    shard_tokens = SHARD_TOKENS
    """Tokens of a shard; a store that was begun keeps its own."""

    def __init__(
        self, folder: Path, identity: Identity, windows: Windows, *, encoder: str, data: str
    ) -> None:
        """`encoder` and `data` are their names for people."""
        self.folder, self.identity, self.windows = folder, identity, windows
        self.encoder, self.data, self.key = encoder, data, identity.key
        if (plan := read_plan(folder)) is not None:
            self.shard_tokens = plan["shard_tokens"]
        self.lengths = identity.selection.lengths(windows)
        """(W,) tokens of each window that are stored."""
        self.shard = lru_cache(_OPEN)(self._open)
        """A shard by its number, its header checked; `ArtifactError` where it is missing or not what was written."""

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
        return [0, *np.cumsum(self.lengths[self.shards[number]]).tolist()]

    @property
    def begun(self) -> bool:
        return (self.folder / PLAN).exists()

    @property
    def num_shards(self) -> int:
        return len(self.shards)

    @property
    def nbytes(self) -> int:
        return self.bytes_of(range(self.num_shards))

    def bytes_of(self, numbers: Iterable[int]) -> int:
        """Bytes of some shards without their headers, which have a few hundred each."""
        which = self.identity
        token = len(which.layers) * (_BYTES[which.dtype] * which.hidden + 4 * (which.dtype == "int8"))
        return sum(token * self.offsets(number)[-1] + 4 * len(self.shards[number]) for number in numbers)

    def path(self, number: int) -> Path:
        return self.folder / shard_name(number)

    def missing(self) -> list[int]:
        names = {path.name for path in self.folder.glob("shard-*")}
        return [number for number in range(self.num_shards) if shard_name(number) not in names]

    def _open(self, number: int) -> "Shard":
        from bertvision.states.stored import Shard

        return Shard(self, number)

    def read(self, window: int) -> "Encoded":
        """The states (n, L, H) of a window in the dtype they are stored in, and the scales (n, L) of int8."""
        number, row = self.places[window].tolist()
        shard = self.shard(number)
        first, last = shard.place(row)
        return shard.states[first:last], None if shard.scales is None else shard.scales[first:last]

    def verify(self, number: int) -> None:
        """Check every byte of a shard as it is now; `ArtifactError` where something is wrong."""
        shard = self._open(number)
        for row in range(len(self.shards[number])):
            shard.place(row)

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
        if not self.begun or _read_windows(self.folder) is None:
            with self.locked():
                # The windows first: where a plan is, windows are.
                with atomic_file(self.folder / WINDOWS_FILE) as temporary:
                    temporary.write_bytes(pack_windows(self.windows))
                if not self.begun:
                    about: dict[str, Any] = {"schema": SCHEMA, "key": self.key}
                    about |= {"encoder": self.encoder, "data": self.data}
                    about |= {"windows": len(self.windows), "tokens": self.windows.num_tokens}
                    about |= {"shards": self.num_shards, "bytes": self.nbytes}
                    about |= {"shard_tokens": self.shard_tokens, "identity": asdict(self.identity)}
                    write_json(self.folder / PLAN, about | {"checksum": _checksum(about)})
        return self


def open_store(folder: str | Path) -> Store:
    """A store by its folder, whose name does not count; needs neither its data nor its encoder."""
    folder = Path(folder).expanduser()
    about = read_plan(folder)
    if about is None:
        raise ArtifactError(f"{folder} holds no stored states: `bertvision cache ls` shows what there is")
    windows = _read_windows(folder)
    if windows is None:
        raise _damaged(folder, f"{WINDOWS_FILE} cannot be read")
    identity = Identity(**about["identity"] | {"layers": tuple(about["identity"]["layers"])})
    return Store(folder, identity, windows, encoder=about["encoder"], data=about["data"])


def read_plan(folder: Path) -> dict[str, Any] | None:
    """What plan.json says; None where there is none."""
    try:
        about = json.loads((folder / PLAN).read_bytes())
        whole = about.pop("checksum") == _checksum(about)
    except (FileNotFoundError, NotADirectoryError):
        return None
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
    with suppress(OSError):
        return unpack_windows((folder / WINDOWS_FILE).read_bytes())
    return None


def _damaged(folder: Path, why: str) -> ArtifactError:
    return ArtifactError(f"{folder} is damaged ({why}): `bertvision cache rm` it and let it be made again")


# ---- all stores below one root


class Entry:
    """One store, as its small files describe it."""

    def __init__(self, folder: Path, plan: dict[str, Any], damage: str, names: dict[str, int]) -> None:
        """`plan` is empty where `damage` says why plan.json cannot be used; `names` are its files with their bytes."""
        self.folder, self.plan, self.damage, self.names = folder, plan, damage, names
        self.key, self.nbytes = folder.name, sum(names.values())
        self.planned: int = plan.get("shards", 0)
        self.shards = sum(name.startswith("shard-") for name in names)
        wanted = [PLAN, WINDOWS_FILE, *map(shard_name, range(self.planned))]
        self.missing = [name for name in wanted if name not in names]
        self.finished = not (damage or self.missing)
        used = (folder / next(filter(_PART.fullmatch, names), PLAN)).stat().st_mtime
        self.age = time.time() - used
        """Seconds since it was last used."""

    @contextmanager
    def unused(self) -> Iterator[bool]:
        """Whether no other process is writing it; none begins before the block ends."""
        from filelock import FileLock, Timeout

        try:
            with FileLock(self.folder / LOCK, timeout=0) if LOCK in self.names else nullcontext():
                yield True
        except Timeout:
            yield False

    def delete(self) -> None:
        """Delete its own files, the plan first: a kill in the middle leaves nothing that looks whole."""
        with disk_trouble(self.folder):
            for name in sorted(filter(_OWN.fullmatch, self.names), key=lambda name: name != PLAN):
                (self.folder / name).unlink(missing_ok=True)
        with suppress(OSError):  # somebody else's files are in it, or it is a link
            self.folder.rmdir()


def entries(root: Path) -> list[Entry]:
    found = filter(None, map(_entry, sorted(root.glob("[!.]*"))))
    return sorted(found, key=lambda entry: (entry.age, entry.key))


def find_entries(root: Path, names: tuple[str, ...]) -> list[Entry]:
    """Several stores, each once, however often it is named; all of them where none is."""
    found = [_find(root, name) for name in names] if names else entries(root)
    return list({entry.folder: entry for entry in found}.values())


def _find(root: Path, name: str) -> Entry:
    """A store by its key, by the beginning of it, or by its folder."""
    if "/" in name:
        found = list(filter(None, [_entry(Path(name).expanduser())]))
    else:
        found = [entry for entry in entries(root) if name and entry.key.startswith(name)]
    if len(found) != 1:
        keys = " and ".join(entry.key for entry in found) or "no store"
        raise ConfigError(f"{name!r} means {keys} below {root}: `bertvision cache ls` shows what there is")
    return found[0]


def _entry(folder: Path) -> Entry | None:
    """The store in a folder; None where there is none.

    A folder of any name is a store if its plan says so; where the plan is damaged, it must be named like one.
    """
    names, plan, damage = dict[str, int](), None, ""
    try:
        names = {path.name: path.lstat().st_size for path in sorted(folder.iterdir())}
        plan = read_plan(folder)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except ArtifactError as error:
        damage = str(error)
    if plan is None and not damage and any(map(_PART.fullmatch, names)):
        damage = f"{folder / PLAN} is missing"
    if plan or (damage and re.fullmatch(r"[0-9a-f]{32}", folder.name)):
        return Entry(folder, plan or {}, damage, names)
    return None


def free_space(folder: Path) -> int:
    nearest = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    return shutil.disk_usage(nearest).free


def begin(store: Store, cache_gb: float) -> Store:
    """Put a planned store on the disk, where there must be room for all of it before anything is encoded."""
    if not store.begun:
        make_room(store, cache_gb)
    free, needed = free_space(store.folder), store.bytes_of(store.missing())
    if needed > free:
        raise OutputError(
            f"the states need {size_text(needed)} and the disk of {store.folder} has {size_text(free)} free: "
            "make room, choose another --states.store, or keep less (--states.layers, --states.positions, "
            "--states.dtype int8)"
        )
    return store.begin()


def make_room(store: Store, limit_gb: float) -> None:
    """Delete the least recently used stores beside `store` until all of them have at most `limit_gb` GB.

    One that was used within the last day, or is being written, stays.
    """
    others = [entry for entry in entries(store.folder.parent) if entry.key != store.key]
    total = store.nbytes + sum(entry.nbytes for entry in others)
    for entry in reversed(others):
        if total <= limit_gb * 1e9:
            return
        with entry.unused() as unused:
            if not unused or entry.damage or entry.age < _DAY:
                continue
            entry.delete()
        total -= entry.nbytes
        logger.info(
            "deleted the stored states %s (%s, last used %d days ago): more than %s would be kept (--states.cache-gb)",
            entry.key[:12], size_text(entry.nbytes), entry.age // _DAY, size_text(limit_gb * 1e9),
        )  # fmt: skip
