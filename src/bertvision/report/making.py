"""How a head was made, kept beside it for the card of a package, and told without where anything lay.

    metrics.json    {..., "card": {"commands": ["bertvision fit ..."], "data": {"train": "train.csv", "dev": ...}}}

A run tells it in results.json; `fit`, `finetune`, `multitask` and `ensemble` have this key alone. `export` adds the
intervals of scores to it (serve/export.py). Only names of files are kept, no folders.
"""

import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path, PurePath

from bertvision.artifacts import read_json, write_json

__all__ = ["MAKING", "file_name", "keep_making", "plain_command"]

MAKING = "card"
"""The key of metrics.json."""

_HUB_FLAGS = ("--push", "--datasets")
"""What follows them are names on the Hub."""
_NO_PLACES = ("hub:", "demo:")
_BEFORE = re.compile(r"(?:[\w.-]+=)?(?:[\w.-]+:)*")


def keep_making(folder: Path, data: Mapping[str, str]) -> None:
    """Write into a head's metrics.json that this command made it, and what the data of each split is called.

    A command that names less of the data, as one without a dev set that scored it before, leaves what is there.
    """
    command = shlex.join(["bertvision", *sys.argv[1:]])
    path = folder / "metrics.json"
    metrics = read_json(path) if path.exists() else {}
    names = {split: file_name(name) for split, name in data.items() if name}
    if names.keys() < metrics.get(MAKING, {}).get("data", {}).keys():
        return
    write_json(path, metrics | {MAKING: {"commands": [plain_command(command)], "data": names}})


def file_name(name: str) -> str:
    """What a data set is called without where it lay: the last part of a path, names of the Hub as they are."""
    if name.startswith(("hub:", "demo:")):
        return name
    scheme, colon, rest = name.partition(":")
    if colon and scheme in ("glue", "cs224n", "answerable"):
        kind, _, place = rest.rpartition(":")
        return ":".join(part for part in (scheme, kind, PurePath(place).name) if part)
    return PurePath(name).name


def plain_command(command: str) -> str:
    """A command line without where its files lay, be it told from the root or from the working folder.

    org/name may be a folder as well as a name on the Hub, so it stays only where it cannot be one.
    """
    try:
        parts = shlex.split(command)
    except ValueError:
        return ""
    plain, flag = [], ""
    for part in parts:
        flag = part.partition("=")[0] if part.startswith("--") else flag
        plain.append(part if flag in _HUB_FLAGS else _plain_word(part))
    return shlex.join(plain)


def _plain_word(word: str) -> str:
    """A word without folders; what stands before a path stays: --flag=, a name of a task, a scheme."""
    match = _BEFORE.match(word)
    assert match is not None  # it matches nothing as well
    before, path = word[: match.end()], word[match.end() :]
    if before.endswith(_NO_PLACES) or ("/" not in path and not path.startswith("~")):
        return word
    return before + (PurePath(path).name or ".")
