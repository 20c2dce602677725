"""`bertvision cache info STORE`: everything one store says about itself."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from bertvision.cli.cache import told
from bertvision.cli.columns import columns, terminal_width
from bertvision.states.about import read_info
from bertvision.states.catalogue import Entry, find_entry

__all__ = ["ARGS", "InfoArgs", "main"]

_SHOWN = 20
"""Shards that are listed; more would push everything else off the screen."""


@dataclass(frozen=True)
class InfoArgs:
    """Show what a store holds: encoder, data, window settings, layers, mean and std of every state, shards."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="STORE")]
    """Its key, the beginning of it, or its folder."""
    store: str = ""
    """Folder or fsspec address of the stores; by default ~/.cache/bertvision/states."""
    json: bool = False
    """Print the result as JSON."""


ARGS = InfoArgs


def main(args: InfoArgs) -> None:
    from bertvision import console

    entry = find_entry(told.root(args.store), args.name)
    info, trouble = (
        (None, entry.damage) if entry.damage else read_info(entry.folder, entry.about, entry.planned or 0)
    )
    if args.json:
        missing = {"missing": entry.missing}
        console.emit_json(told.row(entry) | missing | {"plan": entry.about, "info": info})
        return
    for name, text in _facts(entry).items():
        console.emit(f"{name:<10} {text}")
    if trouble:
        console.emit(f"{'unreadable' if entry.unreadable else 'damaged':<10} {trouble}")
    if info is None:
        return
    layers, width = entry.about["identity"]["layers"], terminal_width()
    console.emit("")
    states = [
        {"state": f"{layer}", "mean": f"{mean:.5f}", "std": f"{std:.5f}"}
        for layer, mean, std in zip(layers, info["mean"], info["std"], strict=True)
    ]
    shards = [
        {"shard": one["file"], "windows": f"{one['windows']:,}", "tokens": f"{one['tokens']:,}"}
        | {"size": told.size(one["bytes"]), "checksum": f"{one['checksum']:08x}"}
        for one in info["shards"][:_SHOWN]
    ]
    table = ["", *columns(shards, width, texts=("shard",))] if shards else []
    for lines in (columns(states, width, texts=()), table):
        for line in lines:
            console.emit(line)
    if len(info["shards"]) > _SHOWN:
        console.emit(f"and {len(info['shards']) - _SHOWN} shards more (--json has all)")


def _facts(entry: Entry) -> dict[str, str]:
    """The lines above the tables."""
    about, ago = entry.about, "" if entry.age is None else f", {told.age(entry.age)} ago"
    facts = {"key": entry.key, "folder": entry.folder.address}
    if not about:
        return facts | {"size": told.size(entry.nbytes) + ago}
    identity = about["identity"]
    settings = ", ".join(f"{name} {value}" for name, value in identity["preprocessing"].items())
    layers = ", ".join(str(layer) for layer in identity["layers"])
    there = f"{entry.shards} of {entry.planned} shards of about {about['shard_tokens']:,} tokens"
    facts |= {
        "encoder": f"{about['encoder']}, computed in {identity['precision']}",
        "weights": f"{identity['encoder']} (fingerprint of weights and tokenizer)",
        "data": f"{about['data']}: {about['windows']:,} windows, {about['tokens']:,} tokens",
        "windows": settings,
        "states": f"{layers}; {identity['hidden']} numbers each",
        "positions": str(identity["positions"]),
        "dtype": str(identity["dtype"]),
        "layout": f"version {about['schema']}",
        "size": f"{told.size(entry.nbytes)}, {there}",
        "state": f"{'finished' if entry.finished else 'unfinished'}{ago}",
    }
    if missing := entry.missing:
        named = ", ".join(missing[:_SHOWN]) + (" ..." if len(missing) > _SHOWN else "")
        facts["missing"] = f"{len(missing)}: {named}"
    return facts
