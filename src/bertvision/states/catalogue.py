"""All stores below one root: what each holds, how large it is and when it was last used. Needs no torch.

`make_room` deletes the least recently used stores where a new one would exceed the limit. A store that was used within
the last day, or that is being written, is never deleted by it.
"""

import logging
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from bertvision.artifacts import disk_trouble
from bertvision.console import size_text
from bertvision.errors import ArtifactError, ConfigError, OutputError
from bertvision.states.store import LOCK, PLAN, WINDOWS_FILE, Store, read_plan, shard_name

logger = logging.getLogger(__name__)

_DAY = 86_400
_PART = re.compile(r"plan\.json|windows\.safetensors|shard-\d{5,}\.safetensors")
_OWN = re.compile(_PART.pattern + r"|\.lock|\..+\.tmp-\d+")
"""The files of a store, with the hidden ones it has while it is written."""


class Entry:
    """One store, as its small files describe it."""

    def __init__(self, folder: Path, plan: dict[str, Any], damage: str, names: dict[str, int]) -> None:
        """
        Args:
            plan: What plan.json says; empty where it cannot be read.
            damage: Why plan.json cannot be used.
            names: Its files and their bytes.
        """
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
    """Every store below `root`, the last used first."""
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
    names, plan, damage = dict[str, int](), dict[str, Any](), ""
    try:
        names = {path.name: path.lstat().st_size for path in sorted(folder.iterdir())}
        plan = read_plan(folder)
    except (NotADirectoryError, PermissionError):
        return None
    except FileNotFoundError:
        damage = f"{PLAN} is missing" if any(map(_PART.fullmatch, names)) else ""
    except ArtifactError as error:
        damage = str(error)
    if plan or (damage and re.fullmatch(r"[0-9a-f]{32}", folder.name)):
        return Entry(folder, plan, damage, names)
    return None


def free_space(folder: Path) -> int:
    """Bytes that can still be written there."""
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
    """Delete the least recently used stores beside `store` until all of them have at most `limit_gb` GB."""
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
