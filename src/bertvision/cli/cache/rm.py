"""`bertvision cache rm STORE ...`: remove stores and say what that freed."""

import logging
from dataclasses import dataclass
from typing import Annotated

import tyro

from bertvision.cli.cache import texts
from bertvision.cli.cache.texts import StoreArgs
from bertvision.console import size_text
from bertvision.errors import ConfigError
from bertvision.options import OptionalFloat
from bertvision.states.catalogue import Entry, entries, find_entries

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RmArgs(StoreArgs):
    """Remove stores: those that are named, or those that all given flags pick."""

    names: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[STORE ...]")] = ()
    """Keys, beginnings of keys, or folders."""
    all: bool = False
    """Every store."""
    unfinished: bool = False
    """Stores that lack shards, and damaged ones."""
    older_than: OptionalFloat = None
    """Stores that were not used for more than so many days."""


def rm(args: RmArgs) -> None:
    from bertvision import console

    chosen, removed = _chosen(args), []
    for entry in chosen:
        if entry.foreign:
            raise ConfigError(
                f"{entry.files.address} holds {entry.foreign[0]}, which no store has: remove the folder by hand"
            )
    for entry in chosen:
        with entry.unused() as unused:
            if not unused:
                logger.warning("%s is being written by another process and stays", texts.name(entry))
                continue
            entry.delete()
        removed.append(entry)
        if not args.json:
            console.emit(f"removed {texts.name(entry)}: {size_text(entry.nbytes)}")
    freed = sum(entry.nbytes for entry in removed)
    if args.json:
        console.emit_json({"removed": [texts.row(entry) for entry in removed], "freed": freed})
        return
    stores = texts.count(len(removed), "store")
    console.emit(f"{stores} removed, {size_text(freed)} freed" if removed else "nothing to remove")


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
    found = find_entries(args.root, args.names) if args.names else entries(args.root)
    if args.unfinished:
        found = [entry for entry in found if not entry.finished]
    if args.older_than is not None:
        limit = args.older_than * 86400
        found = [entry for entry in found if entry.age is not None and entry.age > limit]
    return found
