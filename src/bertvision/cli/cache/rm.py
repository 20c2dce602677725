"""`bertvision cache rm STORE ...`: remove stores and say what that freed."""

import logging
from dataclasses import dataclass
from typing import Annotated

import tyro

from bertvision.cli.cache import told
from bertvision.cli.flags import OptionalFloat
from bertvision.errors import ConfigError, OutputError
from bertvision.states.catalogue import Entry, entries, find_entries
from bertvision.states.claims import Claims

__all__ = ["ARGS", "RmArgs", "main"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RmArgs:
    """Remove stores: those that are named, or those that the flags pick (with several flags: what all of them pick)."""

    names: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[STORE ...]")] = ()
    """Keys, beginnings of keys, or folders."""
    all: bool = False
    """Every store."""
    unfinished: bool = False
    """Stores that lack shards, and damaged ones."""
    older_than: OptionalFloat = None
    """Stores that were finished, or last written to, more than so many days ago."""
    store: str = ""
    """Folder or fsspec address of the stores; by default ~/.cache/bertvision/states."""
    json: bool = False
    """Print the result as JSON."""


ARGS = RmArgs


def main(args: RmArgs) -> None:
    from bertvision import console

    chosen, removed = _chosen(args), []
    for entry in chosen:
        if entry.foreign:
            raise ConfigError(
                f"{entry.folder.address} holds {entry.foreign[0]}, which no store has: remove the folder by hand"
            )
    for entry in chosen:
        if entry.unreadable:
            logger.warning("%s stays: %s", told.name(entry), entry.damage)
            continue
        if _in_use(entry):
            logger.warning("%s is being written by another process and stays", told.name(entry))
            continue
        try:
            entry.folder.delete()
        except OSError as error:
            raise OutputError(f"cannot remove {entry.folder.address} ({error.strerror or error})") from error
        removed.append(entry)
        if not args.json:
            console.emit(f"removed {told.name(entry)}: {told.size(entry.nbytes)}")
    freed = sum(entry.nbytes for entry in removed)
    if args.json:
        console.emit_json({"removed": [told.row(entry) for entry in removed], "freed": freed})
        return
    stores = told.count(len(removed), "store")
    console.emit(f"{stores} removed, {told.size(freed)} freed" if removed else "nothing to remove")


def _chosen(args: RmArgs) -> list[Entry]:
    """The stores that are named, or that the flags pick."""
    picks = args.all or args.unfinished or args.older_than is not None
    if bool(args.names) == picks:
        raise ConfigError(
            "name the stores to remove, or pick them with --all, --unfinished or --older-than DAYS"
            + (", not both" if picks else ": `bertvision cache ls` shows what there is")
        )
    if args.older_than is not None and not args.older_than >= 0:
        raise ConfigError(f"--older-than must not be negative, not {args.older_than}")
    if args.names:
        return find_entries(told.root(args.store), args.names)
    found = entries(told.root(args.store))
    if args.unfinished:
        found = [entry for entry in found if not entry.finished]
    if args.older_than is not None:
        limit = args.older_than * 86400
        found = [entry for entry in found if entry.age is not None and entry.age > limit]
    return found


def _in_use(entry: Entry) -> bool:
    """Whether another process is making one of its shards, as far as locks can tell."""
    if ".lock" not in entry.there:
        return False
    claims = Claims(entry.folder)
    for number in range(entry.planned or 0):
        with claims.claim(number) as free:
            if not free:
                return True
    return False
