"""All stores below one root: what each holds, how large it is and when it was last used. Needs no torch.

`make_room` deletes the least recently used stores where a new one would exceed the limit. A store that was used within
the last day, or that is being written, is never deleted by it.
"""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertvision.console import size_text
from bertvision.errors import ArtifactError, ConfigError, OutputError
from bertvision.states.files import Files
from bertvision.states.identity import is_key
from bertvision.states.shard import shard_name
from bertvision.states.store import LOCK, PLAN, WINDOWS_FILE, Store, parse_plan

logger = logging.getLogger(__name__)

_DAY = 86_400
_PART = re.compile(r"plan\.json|windows\.safetensors|shard-\d{5,}\.safetensors")
_PASSING = re.compile(r"\.lock|\..+\.tmp-.+")
"""Hidden files that a store has while it is written."""


@dataclass(frozen=True)
class Entry:
    """One store, as its small files describe it."""

    files: Files
    plan: dict[str, Any]
    """What plan.json says; empty where it cannot be read."""
    damage: str
    """Why plan.json cannot be used."""
    names: dict[str, int]
    """Its files and their bytes."""
    age: float | None
    """Seconds since it was last used."""

    @property
    def key(self) -> str:
        """The name of its folder."""
        return self.files.name

    @property
    def nbytes(self) -> int:
        return sum(self.names.values())

    @property
    def planned(self) -> int:
        """Shards it will have."""
        return self.plan.get("shards", 0)

    @property
    def shards(self) -> int:
        """Shards that are there."""
        return sum(name.startswith("shard-") for name in self.names)

    @property
    def missing(self) -> list[str]:
        """Files that are not there yet."""
        wanted = [PLAN, WINDOWS_FILE, *map(shard_name, range(self.planned))]
        return [name for name in wanted if name not in self.names]

    @property
    def finished(self) -> bool:
        return not (self.damage or self.missing)

    @property
    def foreign(self) -> list[str]:
        """Files in its folder that no store has."""
        return [name for name in self.names if not (_PART.fullmatch(name) or _PASSING.fullmatch(name))]

    @contextmanager
    def unused(self) -> Iterator[bool]:
        """Whether no other process is writing it; none begins before the block ends."""
        from filelock import FileLock, Timeout

        if self.files.local is None or LOCK not in self.names:
            yield True
            return
        try:
            with FileLock(self.files.local / LOCK, timeout=0):
                yield True
        except Timeout:
            yield False

    def delete(self) -> None:
        """Delete it, the plan first: a kill in the middle leaves nothing that looks whole."""
        self.files.remove(PLAN)
        self.files.delete()


def entries(root: str | Path) -> list[Entry]:
    """Every store below `root`, the last used first."""
    folder = Files(root)
    found = [_entry(folder / name) for name in folder.names() if not name.startswith(".")]
    return sorted((entry for entry in found if entry), key=lambda entry: (entry.age or 0.0, entry.key))


def find_entry(root: str | Path, name: str) -> Entry:
    """A store by its key, by the beginning of it, or by its folder."""
    see = "`bertvision cache ls` shows what there is"
    if not name:
        raise ConfigError(f"a store's name cannot be empty: {see}")
    if "/" in name:
        if entry := _entry(Files(name)):
            return entry
        raise ConfigError(f"{name} holds no stored states: {see}")
    folder = Files(root)
    keys = [key for key in folder.names() if key.startswith(name) and not key.startswith(".")]
    found = [entry for key in keys if (entry := _entry(folder / key))]
    if not found:
        raise ConfigError(f"no store begins with {name!r} below {folder.address}: {see}")
    if len(found) > 1:
        twins = ", ".join(entry.key for entry in found)
        raise ConfigError(f"{len(found)} stores begin with {name!r} ({twins}): give more of the key")
    return found[0]


def find_entries(root: str | Path, names: tuple[str, ...]) -> list[Entry]:
    """Several stores, each once, however often it is named; all of them where none is."""
    found = [find_entry(root, name) for name in names] if names else entries(root)
    return list({entry.files.address: entry for entry in found}.values())


def _entry(files: Files) -> Entry | None:
    """The store in a folder; None where there is none.

    A folder of any name is a store if its plan says so; where the plan is damaged, it must be named like one.
    """
    names, plan, damage = dict[str, int](), dict[str, Any](), ""
    try:
        names = files.names()
        plan = parse_plan(files.read(PLAN), files.name)
    except FileNotFoundError:
        damage = f"{PLAN} is missing" if any(map(_PART.fullmatch, names)) else ""
    except (ValueError, ArtifactError) as error:
        damage = str(error)
    if not plan and not (damage and is_key(files.name)):
        return None
    return Entry(files, plan, damage, names, files.age(next(filter(_PART.fullmatch, names), PLAN)))


def begin(store: Store, cache_gb: float) -> Store:
    """Put a planned store on the disk, where there must be room for all of it before anything is encoded."""
    if not store.begun:
        make_room(store, cache_gb)
    free, needed = store.files.free(), store.bytes_of(store.missing())
    if free is not None and needed > free:
        raise OutputError(
            f"the states need {size_text(needed)} and the disk of {store.files.address} has {size_text(free)} free: "
            "make room, choose another --states.store, or keep less (--states.layers, --states.positions, "
            "--states.dtype int8)"
        )
    return store.begin()


def make_room(store: Store, limit_gb: float) -> None:
    """Delete the least recently used stores beside `store` until all of them have at most `limit_gb` GB."""
    if store.files.local is None:
        return
    others = [entry for entry in entries(store.folder.parent) if entry.key != store.key]
    total = store.nbytes + sum(entry.nbytes for entry in others)
    for entry in reversed(others):
        if total <= limit_gb * 1e9:
            return
        with entry.unused() as unused:
            if not unused or entry.damage or entry.foreign or (entry.age or 0) < _DAY:
                continue
            try:
                entry.delete()
            except OutputError as error:  # somebody else's
                logger.info("%s", error)
                continue
        total -= entry.nbytes
        logger.info(
            "deleted the stored states %s (%s, last used %d days ago): more than %s would be kept (--states.cache-gb)",
            entry.key[:12], size_text(entry.nbytes), (entry.age or 0) // _DAY, size_text(limit_gb * 1e9),
        )  # fmt: skip
