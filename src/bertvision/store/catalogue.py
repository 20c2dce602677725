"""All stores below one root: what each holds, how large and how old it is."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertvision.data.window_store import default_cache_dir
from bertvision.errors import ConfigError
from bertvision.store.folder import Folder, open_folder
from bertvision.store.store import INFO, PLAN

__all__ = ["Entry", "default_root", "entries", "find_entry"]


def default_root() -> Path:
    """Where stores lie unless somebody says otherwise: CACHE/states."""
    return default_cache_dir() / "states"


@dataclass(frozen=True)
class Entry:
    """One store, as its small files describe it."""

    key: str
    folder: Folder
    about: dict[str, Any]
    """What plan.json says; empty where it cannot be read."""
    shards: int
    """Shards that are there."""
    nbytes: int
    """Bytes of all its files."""
    finished: bool
    age: float | None
    """Seconds since it was finished or begun."""


def entries(root: str | Path) -> list[Entry]:
    """Every store below `root`, the newest first."""
    folder = open_folder(root)
    found = [_entry(folder / name, name) for name in folder.names() if not name.startswith(".")]
    return sorted((entry for entry in found if entry), key=lambda entry: (entry.age or 0.0, entry.key))


def _entry(folder: Folder, key: str) -> Entry | None:
    names = folder.names()
    if PLAN not in names:
        return None
    try:
        about = json.loads(folder.read(PLAN))
    except ValueError:
        about = {}
    return Entry(
        key=key,
        folder=folder,
        about=about if isinstance(about, dict) else {},
        shards=sum(name.startswith("shard-") for name in names),
        nbytes=sum(folder.size(name) or 0 for name in names),
        finished=INFO in names,
        age=folder.age(INFO if INFO in names else PLAN),
    )


def find_entry(root: str | Path, name: str) -> Entry:
    """A store by its key, by the beginning of it, or by its folder."""
    if "/" in name or Path(name).is_dir():
        folder = open_folder(name)
        entry = _entry(folder, folder.address.rstrip("/").rpartition("/")[2])
        if entry is None:
            raise ConfigError(f"{name} holds no stored states: `bertvision cache ls` shows what there is")
        return entry
    found = [entry for entry in entries(root) if entry.key.startswith(name)]
    if len(found) != 1:
        what = "no store begins" if not found else f"{len(found)} stores begin"
        raise ConfigError(f"{what} with {name!r} below {root}: `bertvision cache ls` shows what there is")
    return found[0]
