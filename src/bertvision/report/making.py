"""How a head was made, without where anything lay: commands and names of data as cards show them."""

import re
import shlex
from pathlib import PurePath

__all__ = ["file_name", "plain_command"]

_HUB_FLAGS = ("--push", "--datasets")
"""What follows them are names on the Hub."""
_NO_PLACES = ("hub:", "demo:")
_BEFORE = re.compile(r"(?:[\w.-]+=)?(?:[\w.-]+:)*")


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
