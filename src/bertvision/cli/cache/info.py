"""`bertvision cache info STORE`: everything one store says about itself."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from bertvision.cli.cache import texts
from bertvision.cli.cache.texts import StoreArgs
from bertvision.console import size_text
from bertvision.states.catalogue import Entry, find_entry

__all__ = ["ARGS", "InfoArgs", "main"]

_SHOWN = 20
"""Missing shards that are named."""


@dataclass(frozen=True)
class InfoArgs(StoreArgs):
    """Show what a store holds: encoder, data, window settings, layers, shards."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="STORE")]
    """Its key, the beginning of it, or its folder."""


ARGS = InfoArgs


def main(args: InfoArgs) -> None:
    from bertvision import console

    entry = find_entry(args.root, args.name)
    if args.json:
        console.emit_json(texts.row(entry) | {"missing": entry.missing, "plan": entry.plan})
        return
    for name, text in _facts(entry).items():
        console.emit(f"{name:<10} {text}")


def _facts(entry: Entry) -> dict[str, str]:
    plan, used = entry.plan, f"last used {texts.age(entry.age)} ago"
    facts = {"key": entry.key, "folder": entry.files.address}
    if not plan:
        return facts | {"size": f"{size_text(entry.nbytes)}, {used}", "damaged": entry.damage}
    identity = plan["identity"]
    there = f"{entry.shards} of {entry.planned} shards of about {plan['shard_tokens']:,} tokens"
    facts |= {
        "encoder": f"{plan['encoder']}, computed in {identity['precision']}",
        "weights": f"{identity['encoder']} (fingerprint of weights and tokenizer)",
        "data": f"{plan['data']}: {plan['windows']:,} windows, {plan['tokens']:,} tokens",
        "windows": ", ".join(f"{name} {value}" for name, value in identity["preprocessing"].items()),
        "states": f"{', '.join(map(str, identity['layers']))}; {identity['hidden']} numbers each",
        "positions": identity["positions"],
        "dtype": identity["dtype"],
        "size": f"{size_text(entry.nbytes)}, {there}",
        "state": f"{'finished' if entry.finished else 'unfinished'}, {used}",
    }
    if missing := entry.missing:
        named = ", ".join(missing[:_SHOWN]) + (" ..." if len(missing) > _SHOWN else "")
        facts["missing"] = f"{len(missing)}: {named}"
    return facts
