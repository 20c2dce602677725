"""The two small files that describe a store, read and checked in one place.

    plan.json   what the store holds, written first
    info.json   the same, with checksums, mean and std of every state, written last

Each reader returns what the file says and what is wrong with it, one of them empty. A file that is there but cannot be
read (rights, a failing disk) says nothing about damage: that is an `ArtifactError`.
"""

import json
from typing import Any

from bertvision.states.folder import Folder
from bertvision.states.identity import SCHEMA, Identity, is_key

__all__ = ["INFO", "PLAN", "WINDOWS_FILE", "identity_of", "read_info", "read_plan"]

PLAN, INFO, WINDOWS_FILE = "plan.json", "info.json", "windows.safetensors"

_SAID = {"key", "encoder", "data", "windows", "tokens", "shard_tokens", "identity"}
_SAID_OF_SHARDS = {"file", "windows", "tokens", "bytes", "checksum"}


def identity_of(about: dict[str, Any]) -> Identity:
    """The identity in a plan."""
    values: dict[str, Any] = {**about["identity"]}
    values["layers"] = tuple(values["layers"])
    return Identity(**values)


def read_plan(folder: Folder, key: str = "") -> tuple[dict[str, Any], str]:
    """What plan.json says, and what is wrong with it; `key` is the name the store was asked for by, if it is one."""
    about, why = _object(folder, PLAN)
    if why:
        return {}, why
    if about.get("schema") != SCHEMA:
        return {}, f"its layout is {about.get('schema')} and this version reads {SCHEMA}"
    if not about.keys() >= _SAID:
        return {}, f"{PLAN} does not say everything it must"
    numbers = [about[name] for name in ("windows", "tokens", "shard_tokens")]
    if not all(isinstance(number, int) for number in numbers) or about["shard_tokens"] < 1:
        return {}, f"{PLAN} does not say how many windows and tokens there are"
    try:
        whole = identity_of(about).key == about["key"]
    except (KeyError, TypeError, ValueError):
        whole = False
    if not whole:
        return {}, f"{PLAN} is not what was written"
    if is_key(key) and about["key"] != key:
        return {}, f"{PLAN} belongs to the store {about['key']}"
    return about, ""


def read_info(folder: Folder, about: dict[str, Any], shards: int) -> tuple[dict[str, Any] | None, str]:
    """What info.json says of a store of that plan and so many shards; None, and nothing wrong, where there is none."""
    info, why = _object(folder, INFO)
    if why:
        return None, "" if why == _missing(INFO) else why
    try:
        whole = len(info["mean"]) == len(info["std"]) == len(about["identity"]["layers"])
        whole = whole and all({*shard} >= _SAID_OF_SHARDS for shard in info["shards"])
    except (KeyError, TypeError):
        whole = False
    if not whole:
        return None, f"{INFO} does not say everything it must"
    if len(info["shards"]) != shards:
        return None, f"{INFO} speaks of {len(info['shards'])} shards instead of {shards}"
    if any(info.get(name) != value for name, value in about.items()):
        return None, f"{INFO} does not say what {PLAN} says"
    return info, ""


def _object(folder: Folder, name: str) -> tuple[dict[str, Any], str]:
    try:
        value = json.loads(folder.read(name))
    except FileNotFoundError:
        return {}, _missing(name)
    except ValueError:
        return {}, f"{name} is not valid JSON"
    return (value, "") if isinstance(value, dict) else ({}, f"{name} is not an object")


def _missing(name: str) -> str:
    return f"{name} is missing"
