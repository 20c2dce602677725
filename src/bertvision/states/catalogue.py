"""All stores below one root: what each holds, how large and how old it is.

Only their small files are read, and of the windows the one array that says how long they are.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertvision.data.window_store import default_cache_dir
from bertvision.errors import ArtifactError, ConfigError
from bertvision.states.about import INFO, PLAN, WINDOWS_FILE, read_plan
from bertvision.states.folder import Folder, open_folder
from bertvision.states.identity import is_key
from bertvision.states.layout import tokens_cut
from bertvision.states.shard import shard_name

__all__ = ["Entry", "default_root", "entries", "find_entries", "find_entry"]


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
    """What is wrong with the plan or the windows, or nothing."""
    unreadable: bool
    """Whether the damage is only that we may not, or cannot, read it."""
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
        return [name for name in self.there if not (_is_part(name) or _is_passing(name))]


def is_shard(name: str) -> bool:
    return re.fullmatch(r"shard-\d{5,}\.safetensors", name) is not None


def _is_part(name: str) -> bool:
    return name in (PLAN, INFO, WINDOWS_FILE) or is_shard(name)


def _is_passing(name: str) -> bool:
    """Hidden files that a store has while it is written; others are somebody else's."""
    return name == ".lock" or re.fullmatch(r"\..+\.tmp-.+", name) is not None


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
        files = folder.files()
        if not any(map(_is_part, files)) or not (is_key(key) or _says_it_is_ours(folder, files)):
            return None
        about, damage = read_plan(folder, key)
        planned = None if damage else _planned(folder, about["shard_tokens"], files.get(WINDOWS_FILE, 0))
        if not damage and planned is None:
            damage = f"{WINDOWS_FILE} is damaged"
        written = [INFO] if INFO in files else [name for name in files if name == PLAN or is_shard(name)]
        ages = [age for name in written or files if (age := folder.age(name)) is not None]
    except FileNotFoundError:  # removed in the meantime
        return None
    except ArtifactError as error:
        # Without the name of a store it is a folder of somebody else.
        return Entry(key, folder, {}, str(error), True, (), None, 0, None) if is_key(key) else None
    return Entry(
        key=key,
        folder=folder,
        about=about,
        damage=damage,
        unreadable=False,
        there=tuple(files),
        planned=planned,
        nbytes=sum(files.values()),
        age=min(ages, default=None),
    )


def _says_it_is_ours(folder: Folder, files: dict[str, int]) -> bool:
    """Whether a file in a folder of any name says that it belongs to a store: it may be a copy, or a damaged one."""
    for name in (PLAN, INFO):
        if name in files:
            said = _json(folder.read(name))
            if is_key(str(said.get("key"))) and said.keys() >= {"schema", "identity", "shard_tokens"}:
                return True
    shard = next(filter(is_shard, files), None)
    metadata = None if shard is None else _header(folder, shard, files[shard])[0].get("__metadata__")
    return isinstance(metadata, dict) and "bertvision" in metadata


def _json(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _header(folder: Folder, name: str, size: int) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file, and where its arrays begin."""
    begin = 8 + int.from_bytes(folder.read(name, 0, 8), "little")
    return (_json(folder.read(name, 8, begin)) if begin <= size else {}), begin


def _planned(folder: Folder, shard_tokens: int, size: int) -> int | None:
    """How many shards a store's windows are cut into; None where its windows cannot be read."""
    try:
        header, begin = _header(folder, WINDOWS_FILE, size)
        first, last = header["offsets"]["data_offsets"]
        offsets = np.frombuffer(folder.read(WINDOWS_FILE, begin + first, begin + last), np.int64)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    lengths = np.diff(offsets)
    return len(tokens_cut(lengths, shard_tokens)) if len(offsets) and (lengths > 0).all() else None
