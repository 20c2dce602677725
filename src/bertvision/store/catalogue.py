"""All stores below one root: what each holds, how large and how old it is.

Only their small files are read, and of the windows the one array that says how long they are.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertvision.data.window_store import default_cache_dir
from bertvision.errors import ArtifactError, ConfigError
from bertvision.store.folder import Folder, open_folder
from bertvision.store.identity import SCHEMA
from bertvision.store.plan import tokens_cut
from bertvision.store.shard import shard_name
from bertvision.store.store import _WINDOWS, INFO, PLAN

__all__ = ["Entry", "default_root", "entries", "find_entries", "find_entry"]

_SAID = {"key", "encoder", "data", "windows", "tokens", "shard_tokens", "identity"}
_SAID_OF_STATES = {"layers", "hidden", "positions", "dtype", "encoder", "preprocessing", "precision"}
"""What a plan must say."""


def default_root() -> Path:
    """Where stores lie unless somebody says otherwise: CACHE/states."""
    return default_cache_dir() / "states"


@dataclass(frozen=True)
class Entry:
    """One store, as its small files describe it."""

    key: str
    """The name of its folder."""
    folder: Folder
    about: dict[str, Any]
    """What plan.json says; empty where it cannot be read."""
    damage: str
    """What is wrong with the plan, or nothing."""
    there: tuple[str, ...]
    """Names of its files."""
    planned: int | None
    """Shards it will have; None where its windows or its plan cannot be read."""
    nbytes: int
    """Bytes of all its files."""
    age: float | None
    """Seconds since it was finished, or since the last of its shards was written."""

    @property
    def shards(self) -> int:
        """Shards that are there."""
        return sum(is_shard(name) for name in self.there)

    @property
    def finished(self) -> bool:
        return not self.damage and INFO in self.there and self.shards == self.planned

    @property
    def missing(self) -> list[str]:
        """Shards that are not there."""
        there = set(self.there)
        return [name for name in map(shard_name, range(self.planned or 0)) if name not in there]

    @property
    def foreign(self) -> list[str]:
        """Files in its folder that no store has."""
        return [
            n for n in self.there if not (n in (PLAN, INFO, _WINDOWS) or is_shard(n) or n.startswith("."))
        ]


def is_shard(name: str) -> bool:
    return name.startswith("shard-") and name.endswith(".safetensors")


def entries(root: str | Path) -> list[Entry]:
    """Every store below `root`, the newest first."""
    folder = open_folder(root)
    found = [_entry(folder / name, name) for name in folder.names() if not name.startswith(".")]
    return sorted((entry for entry in found if entry), key=lambda entry: (entry.age or 0.0, entry.key))


def find_entry(root: str | Path, name: str) -> Entry:
    """A store by its key, by the beginning of it, or by its folder."""
    see = "`bertvision cache ls` shows what there is"
    if not name:
        raise ConfigError(f"a store's name cannot be empty: {see}")
    folder = open_folder(root)
    keys = [] if "/" in name else [key for key in folder.names() if key.startswith(name) and key[0] != "."]
    found = [entry for key in keys if (entry := _entry(folder / key, key))]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(
            f"{len(found)} stores begin with {name!r} ({', '.join(entry.key for entry in found)}): "
            "give more of the key"
        )
    if "/" in name or Path(name).is_dir():
        folder = open_folder(name)
        entry = _entry(folder, Path(folder.address).absolute().name)
        if entry is None:
            raise ConfigError(f"{name} holds no stored states: {see}")
        return entry
    raise ConfigError(f"no store begins with {name!r} below {folder.address}: {see}")


def find_entries(root: str | Path, names: tuple[str, ...]) -> list[Entry]:
    """Several stores, each once, however often it is named; all of them where none is."""
    if not names:
        return entries(root)
    found = [find_entry(root, name) for name in names]
    return list({entry.folder.address: entry for entry in found}.values())


def _entry(folder: Folder, key: str) -> Entry | None:
    """The store in a folder; None where there is none."""
    try:
        names = folder.names()
    except ArtifactError:  # a folder of somebody else
        return None
    if not any(name in (PLAN, INFO, _WINDOWS) or is_shard(name) for name in names):
        return None
    about, damage = _about(folder) if PLAN in names else ({}, f"{PLAN} is missing")
    planned = None if damage else _planned(folder, about["shard_tokens"])
    if not damage and planned is None:
        damage = f"{_WINDOWS} is damaged"
    written = [INFO] if INFO in names else [name for name in names if name == PLAN or is_shard(name)]
    ages = [age for name in written or names if (age := folder.age(name)) is not None]
    return Entry(
        key=key,
        folder=folder,
        about=about,
        damage=damage,
        there=tuple(names),
        planned=planned,
        nbytes=sum(folder.size(name) or 0 for name in names),
        age=min(ages, default=None),
    )


def _about(folder: Folder) -> tuple[dict[str, Any], str]:
    """What plan.json says, and what is wrong with it."""
    try:
        about = json.loads(folder.read(PLAN))
    except ValueError:
        return {}, f"{PLAN} is not valid JSON"
    except (OSError, ArtifactError) as error:
        return {}, f"{PLAN} cannot be read ({error})"
    if not isinstance(about, dict):
        return {}, f"{PLAN} is not an object"
    if about.get("schema") != SCHEMA:
        return {}, f"its layout is {about.get('schema')} and this version reads {SCHEMA}"
    identity = about.get("identity")
    if not (about.keys() >= _SAID and isinstance(identity, dict) and identity.keys() >= _SAID_OF_STATES):
        return {}, f"{PLAN} does not say everything it must"
    numbers = [about[name] for name in ("windows", "tokens", "shard_tokens")]
    if not all(isinstance(number, int) for number in numbers) or about["shard_tokens"] < 1:
        return {}, f"{PLAN} does not say how many windows and tokens there are"
    return about, ""


def _planned(folder: Folder, shard_tokens: int) -> int | None:
    """How many shards a store's windows are cut into; None where its windows cannot be read."""
    whole = folder.size(_WINDOWS)
    if whole is None:
        return None
    try:
        begin = 8 + int.from_bytes(folder.read(_WINDOWS, 0, 8), "little")
        if begin > whole:
            return None
        first, last = json.loads(folder.read(_WINDOWS, 8, begin))["offsets"]["data_offsets"]
        offsets = np.frombuffer(folder.read(_WINDOWS, begin + first, begin + last), np.int64)
    except (ValueError, KeyError, TypeError, OSError, ArtifactError):
        return None
    lengths = np.diff(offsets)
    return len(tokens_cut(lengths, shard_tokens)) if len(offsets) and (lengths > 0).all() else None
