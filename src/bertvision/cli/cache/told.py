"""How stores are told: sizes, ages, short names, and the row that every action prints of one."""

from pathlib import Path
from typing import Any

from bertvision.console import size_text
from bertvision.states.catalogue import Entry, default_root

__all__ = ["KEY", "age", "count", "name", "root", "row", "short", "size"]

KEY = 12
"""Characters of a key that are shown; any beginning that only one store has will do to name it."""


def root(store: str) -> str:
    """Where stores lie, by the flag --store."""
    return store or str(default_root())


def size(count: float | None) -> str:
    """Bytes, where they are known."""
    return "unknown" if count is None else size_text(count)


def age(seconds: float | None) -> str:
    """How long ago, in one unit: "40 s", "5 min", "3 h", "12 d"."""
    if seconds is None:
        return "unknown"
    for unit, length, most in (("s", 1, 60), ("min", 60, 60), ("h", 3600, 48)):
        if seconds < length * most:
            return f"{max(seconds, 0) // length:.0f} {unit}"
    return f"{seconds // 86400:.0f} d"


def short(text: str) -> str:
    """The name of an encoder or of data; of a path its last two parts, without the `encoder` a snapshot ends in."""
    parts = Path(text).parts
    if len(parts) < 3 or ":" in parts[0]:  # a name, perhaps with its owner on the Hub, or an address
        return text
    parts = parts[:-1] if parts[-1] == "encoder" else parts
    return "/".join(parts[-2:])


def count(number: int, what: str) -> str:
    """ "1 shard", "2 shards"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def name(entry: Entry) -> str:
    """A store in a sentence."""
    about = entry.about
    return (
        f"{entry.key[:KEY]} ({short(about['encoder'])} on {short(about['data'])})"
        if about
        else entry.key[:KEY]
    )


def row(entry: Entry) -> dict[str, Any]:
    """What there is to say about a store in a list, for --json."""
    identity = entry.about.get("identity", {})
    return {
        "key": entry.key,
        "folder": entry.folder.address,
        "bytes": entry.nbytes,
        "finished": entry.finished,
        "damage": entry.damage,
        "unreadable": entry.unreadable,
        "shards": entry.shards,
        "planned": entry.planned,
        "windows": entry.about.get("windows"),
        "tokens": entry.about.get("tokens"),
        "layers": identity.get("layers"),
        "hidden": identity.get("hidden"),
        "dtype": identity.get("dtype"),
        "positions": identity.get("positions"),
        "encoder": entry.about.get("encoder"),
        "data": entry.about.get("data"),
        "age_seconds": entry.age,
    }
