"""`bertvision cache ls`: the stores, the newest first."""

from dataclasses import dataclass

from bertvision.cli.cache import told
from bertvision.cli.columns import columns, terminal_width
from bertvision.states.catalogue import Entry, entries
from bertvision.states.folder import open_folder

__all__ = ["ARGS", "LsArgs", "main"]


@dataclass(frozen=True)
class LsArgs:
    """List the stores of hidden states, the newest first, with the encoder and the data each belongs to."""

    store: str = ""
    """Folder or fsspec address of the stores; by default ~/.cache/bertvision/states."""
    json: bool = False
    """Print the result as JSON."""


ARGS = LsArgs


def main(args: LsArgs) -> None:
    from bertvision import console

    root = told.root(args.store)
    found = entries(root)
    total, free = sum(entry.nbytes for entry in found), open_folder(root).free()
    if args.json:
        rows = [told.row(entry) for entry in found]
        console.emit_json({"root": root, "stores": rows, "bytes": total, "free": free})
        return
    left = "" if free is None else f"; the disk has {told.size(free)} free"
    if not found:
        console.emit(f"no stores in {root}{left}")
        return
    for line in columns(
        [_cells(entry) for entry in found],
        terminal_width(),
        texts=("key", "dtype", "positions", "encoder", "data"),
        optional=("positions", "windows", "states", "tokens", "dtype", "data", "encoder"),
    ):
        console.emit(line)
    for entry in found:
        key = entry.key[: told.KEY]
        if entry.unreadable:
            console.emit(f"{key} is unreadable: {entry.damage}")
        elif entry.damage:
            console.emit(
                f"{key} is damaged ({entry.damage}): `bertvision cache verify {key}` knows the way out"
            )
    console.emit(f"{told.count(len(found), 'store')} in {root}: {told.size(total)}{left}")


def _cells(entry: Entry) -> dict[str, str]:
    about = entry.about
    identity = about.get("identity", {})
    status = "finished" if entry.finished else f"{entry.shards}/{entry.planned}"
    if entry.damage:
        status = "unreadable" if entry.unreadable else "damaged"
    return {
        "key": entry.key[: told.KEY],
        "size": told.size(None if entry.unreadable else entry.nbytes),
        "shards": status,
        "windows": f"{about['windows']:,}" if about else "",
        "tokens": f"{about['tokens']:,}" if about else "",
        "states": f"{len(identity['layers'])} x {identity['hidden']}" if about else "",
        "dtype": identity.get("dtype", ""),
        "positions": identity.get("positions", ""),
        "encoder": told.short(about.get("encoder", "")) if about else "",
        "data": told.short(about.get("data", "")) if about else "",
        "age": told.age(entry.age),
    }
