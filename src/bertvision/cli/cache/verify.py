"""`bertvision cache verify [STORE ...]`: check every byte of what is stored."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

import numpy as np
import tyro

from bertvision.cli.cache import told
from bertvision.data.window_store import unpack_windows
from bertvision.errors import ArtifactError
from bertvision.states.about import INFO, PLAN, WINDOWS_FILE, read_info
from bertvision.states.catalogue import Entry, find_entries
from bertvision.states.claims import Claims
from bertvision.states.folder import LocalFolder
from bertvision.states.shard import DamagedShard, OpenShard, shard_name
from bertvision.states.store import open_store

__all__ = ["ARGS", "VerifyArgs", "main"]


@dataclass(frozen=True)
class VerifyArgs:
    """Check every byte of every shard against its checksums; exit code 1 where something is damaged."""

    names: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[STORE ...]")] = ()
    """Keys, beginnings of keys, or folders; none = every store."""
    drop: bool = False
    """Remove damaged shards, so that the next extraction or fit makes only those anew."""
    store: str = ""
    """Folder or fsspec address of the stores; by default ~/.cache/bertvision/states."""
    json: bool = False
    """Print the result as JSON."""


ARGS = VerifyArgs


@dataclass
class Finding:
    """What became of one store."""

    entry: Entry
    checked: int = 0
    missing: int = 0
    damaged: dict[str, str] = field(default_factory=dict)
    """Files that are not what was written, and why."""
    dropped: list[str] = field(default_factory=list)
    lost: str = ""
    """Which file keeps its shards from being checked: its plan or its windows."""

    @property
    def verdict(self) -> str:
        if self.lost:
            return "damaged"
        checked = f"{told.count(self.checked, 'shard')} checked"
        there = f", {self.missing} not made yet" if self.missing else ""
        return (
            f"{checked}{there}, {f'{len(self.damaged)} damaged' if self.damaged else 'every byte as written'}"
        )


def main(args: VerifyArgs) -> None:
    from bertvision import console

    root = told.root(args.store)
    found = [_verify(entry, drop=args.drop) for entry in find_entries(root, args.names)]
    damaged = sum(len(finding.damaged) for finding in found)
    if args.json:
        rows = [
            {"key": one.entry.key, "folder": one.entry.folder.address, "checked": one.checked}
            | {"missing": one.missing, "damaged": one.damaged, "dropped": one.dropped}
            for one in found
        ]
        console.emit_json({"stores": rows, "damaged": damaged})
    else:
        for finding in found:
            console.emit(f"{told.name(finding.entry)}: {finding.verdict}")
            for name, why in finding.damaged.items():
                dropped = " (dropped)" if name in finding.dropped else ""
                console.emit(f"  {finding.entry.folder.address}/{name}: {why}{dropped}")
        if not found:
            console.emit(f"no stores in {root}")
        for line in _advice(found, dropped=args.drop):
            console.emit(line)
    if damaged:
        raise SystemExit(1)


def _advice(found: list[Finding], *, dropped: bool) -> Iterator[str]:
    """The ways out."""
    for one in found:
        key = one.entry.key[: told.KEY]
        if one.entry.unreadable:
            yield f"{key} was not checked: somebody who may read it can do it"
        elif one.lost == PLAN:
            yield f"without {PLAN} a store is lost: `bertvision cache rm {key}` removes it"
        elif one.lost:
            yield f"{one.lost} of {key} is written again by the next extraction or fit; verify it then"
    if any(one.damaged and not one.lost for one in found):
        yield (
            "what was dropped is made anew by the next extraction or fit"
            if dropped
            else "--drop removes what is damaged, and the next extraction or fit makes only that anew"
        )


def _verify(entry: Entry, *, drop: bool) -> Finding:
    """Check a store, one shard after another."""
    from bertvision.console import progress

    finding = Finding(entry)
    try:
        store = open_store(entry.folder, entry.key)
    except ArtifactError:
        finding.lost = _broken_file(entry)
        finding.damaged[finding.lost] = entry.damage or "it is not what was written"
        return finding
    there = sorted(store.finished())
    finding.missing = store.num_shards - len(there)
    info, why = read_info(store.folder, store.about, store.num_shards)
    if why:
        finding.damaged[INFO] = why
    elif info is not None:
        # A finished store had them all.
        finding.damaged |= {name: "the file is missing" for name in entry.missing}
        finding.missing = 0
    # Read instead of mapped: no torch is needed, and a disk that fails can say so.
    folder = _Unmapped(store.folder.path) if isinstance(store.folder, LocalFolder) else store.folder
    checked = np.zeros(len(store.windows), np.bool_)
    with progress(f"verify {entry.key[: told.KEY]}", len(there), unit="shards") as bar:
        for number in there:
            shard = partial(OpenShard, folder, store.layout(number), checked)
            try:
                shard(info["shards"][number]["checksum"] if info else None).verify()
            except DamagedShard as damage:
                finding.damaged[shard_name(number)] = damage.why
                if drop:
                    with Claims(store.folder).claim(number, wait=True):
                        store.drop(number)
            finding.checked += 1
            bar.advance()
    if drop and finding.damaged:
        store.folder.remove(INFO)  # it speaks of shards that are gone
        finding.dropped = list(finding.damaged)
    return finding


class _Unmapped(LocalFolder):
    def mapped(self, name: str) -> None:
        return None


def _broken_file(entry: Entry) -> str:
    """Which of the two files that make a store is to blame."""
    windows = unpack_windows(entry.folder.read(WINDOWS_FILE)) if WINDOWS_FILE in entry.there else None
    return WINDOWS_FILE if windows is None and entry.about else PLAN
