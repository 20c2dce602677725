"""`bertvision cache verify [STORE ...]`: check every byte of what is stored."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from bertvision.cli.cache import texts
from bertvision.cli.cache.texts import StoreArgs
from bertvision.errors import ArtifactError
from bertvision.states.catalogue import Entry, find_entries
from bertvision.states.shard import DamagedShard, shard_name
from bertvision.states.store import PLAN, WINDOWS_FILE, open_store


@dataclass(frozen=True)
class VerifyArgs(StoreArgs):
    """Check every byte of every shard against its checksums; exit code 1 where something is damaged."""

    names: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[STORE ...]")] = ()
    """Keys, beginnings of keys, or folders; none = every store."""
    drop: bool = False
    """Remove damaged shards, so that the next extraction or fit makes only those anew."""


def verify(args: VerifyArgs) -> None:
    from bertvision import console

    rows = []
    for entry in find_entries(args.root, args.names):
        checked, damaged = _verify(entry, drop=args.drop)
        missing = [name for name in entry.missing if name not in damaged]
        rows.append(
            {"key": entry.key, "folder": entry.files.address, "checked": checked, "missing": len(missing)}
            | {"damaged": damaged, "dropped": args.drop and bool(damaged)}
        )
        if not args.json:
            verdict = f"{len(damaged)} damaged" if damaged else "every byte as written"
            there = f", {len(missing)} not made yet" if missing else ""
            console.emit(f"{texts.name(entry)}: {texts.count(checked, 'shard')} checked{there}, {verdict}")
            for name, why in damaged.items():
                console.emit(f"  {entry.files.address}/{name}: {why}")
    total = sum(len(row["damaged"]) for row in rows)
    if args.json:
        console.emit_json({"stores": rows, "damaged": total})
    elif total:
        dropped = "dropped shards" if args.drop else "shards that --drop removes"
        console.emit(f"the next extraction or fit makes {dropped} and {WINDOWS_FILE} anew; `bertvision cache rm` "
                     f"removes a store without its {PLAN}")  # fmt: skip
    elif not rows:
        console.emit(f"no stores in {args.root}")
    if total:
        raise SystemExit(1)


def _verify(entry: Entry, *, drop: bool) -> tuple[int, dict[str, str]]:
    """How many shards of a store were checked, and which files are damaged, and why."""
    from bertvision.console import progress

    try:
        store = open_store(entry.files, entry.key)
    except ArtifactError as error:
        return 0, {PLAN if entry.damage else WINDOWS_FILE: entry.damage or str(error)}
    there, damaged = sorted(set(range(store.num_shards)) - set(store.missing())), {}
    with progress(f"verify {entry.key[: texts.KEY]}", len(there), unit="shards") as bar:
        for number in there:
            try:
                store.verify(number)
            except DamagedShard as damage:
                damaged[shard_name(number)] = damage.why
                if drop:
                    with store.locked():
                        store.drop(number)
            bar.advance()
    return len(there), damaged
