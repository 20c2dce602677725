"""What the actions share: their flags, and how sizes, ages and names of stores are shown."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertvision.cli.flags import JsonFlag
from bertvision.states.catalogue import Entry
from bertvision.states.store import default_root

KEY = 12
"""Characters of a key that are shown; any beginning that only one store has is enough to name it."""


@dataclass(frozen=True, kw_only=True)
class StoreArgs(JsonFlag):
    """Flags of every action."""

    store: str = ""
    """Folder or fsspec address (s3://..., gs://...) of the stores; by default ~/.cache/bertvision/states."""

    @property
    def root(self) -> str:
        return self.store or str(default_root())


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
    return "/".join(parts[:-1][-2:] if parts[-1] == "encoder" else parts[-2:])


def count(number: int, what: str) -> str:
    """ "1 shard", "2 shards"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def name(entry: Entry) -> str:
    """A store in a sentence."""
    plan = entry.plan
    about = f" ({short(plan['encoder'])} on {short(plan['data'])})" if plan else ""
    return entry.key[:KEY] + about


def row(entry: Entry) -> dict[str, Any]:
    """What there is to say about a store in a list, for --json."""
    facts = entry.plan | entry.plan.get("identity", {}) | {"encoder": entry.plan.get("encoder")}
    names = ("windows", "tokens", "layers", "hidden", "dtype", "positions", "encoder", "data")
    return {
        "key": entry.key,
        "folder": entry.files.address,
        "bytes": entry.nbytes,
        "finished": entry.finished,
        "damage": entry.damage,
        "shards": entry.shards,
        "planned": entry.planned,
        "age_seconds": entry.age,
    } | {name: facts.get(name) for name in names}
