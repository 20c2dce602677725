"""`bertvision cache ls`: the stores, the last used first."""

from dataclasses import dataclass

from bertvision.cli.cache import texts
from bertvision.cli.cache.texts import StoreArgs
from bertvision.console import size_text
from bertvision.states.catalogue import Entry, entries
from bertvision.states.files import Files


@dataclass(frozen=True)
class LsArgs(StoreArgs):
    """List the stores of hidden states, the last used first, with the encoder and the data each belongs to."""


def ls(args: LsArgs) -> None:
    from bertvision import console

    root, found = args.root, entries(args.root)
    total, free = sum(entry.nbytes for entry in found), Files(root).free()
    if args.json:
        rows = [texts.row(entry) for entry in found]
        console.emit_json({"root": root, "stores": rows, "bytes": total, "free": free})
        return
    left = "" if free is None else f"; the disk has {size_text(free)} free"
    if not found:
        console.emit(f"no stores in {root}{left}")
        return
    console.table(
        [_cells(entry) for entry in found],
        optional=("positions", "windows", "states", "tokens", "dtype", "data", "encoder"),
    )
    for entry in found:
        if entry.damage:
            key = entry.key[: texts.KEY]
            console.emit(f"{key} is damaged ({entry.damage}): `bertvision cache rm {key}` removes it")
    console.emit(f"{texts.count(len(found), 'store')} in {root}: {size_text(total)}{left}")


def _cells(entry: Entry) -> dict[str, str]:
    plan = entry.plan
    identity = plan.get("identity", {})
    unfinished = "damaged" if entry.damage else f"{entry.shards}/{entry.planned}"
    return {
        "key": entry.key[: texts.KEY],
        "size": size_text(entry.nbytes),
        "shards": "finished" if entry.finished else unfinished,
        "windows": f"{plan['windows']:,}" if plan else "",
        "tokens": f"{plan['tokens']:,}" if plan else "",
        "states": f"{len(identity['layers'])} x {identity['hidden']}" if plan else "",
        "dtype": identity.get("dtype", ""),
        "positions": identity.get("positions", ""),
        "encoder": texts.short(plan["encoder"]) if plan else "",
        "data": texts.short(plan["data"]) if plan else "",
        "used": texts.age(entry.age),
    }
