"""`bertvision cache ACTION`: hidden states on disk, made, listed, checked and removed. Only `extract` needs torch."""

import logging
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from bertvision.cli.flags import JsonFlag, Result, refuse
from bertvision.console import emit, emit_json, progress, size_text, table
from bertvision.data.windows import WindowConfig
from bertvision.encoder.device import DeviceConfig
from bertvision.errors import ArtifactError, BertvisionError
from bertvision.options import FLAT, POSITIONAL, OptionalFloat, OptionalInt, arg
from bertvision.states.config import Selection, StatesConfig, StoreConfig
from bertvision.states.store import (
    PLAN,
    WINDOWS_FILE,
    Entry,
    begin,
    entries,
    find_entries,
    free_space,
    local_root,
    open_store,
)
from bertvision.tasks.base import TextConfig

logger = logging.getLogger(__name__)

ACTIONS = {
    "extract": "encode a data set once and keep the hidden states; goes on where it was stopped",
    "ls": "list the stores: size, last use, the encoder and the data each belongs to",
    "info": "show everything one store says about itself",
    "verify": "check every byte of the shards; --drop removes damaged ones",
    "rm": "remove stores",
}
_KEY = 12
"""Characters of a key that are shown; any beginning that only one store has is enough to name it."""


def help_text() -> str:
    rows = "\n".join(f"  {action:<10} {text}" for action, text in ACTIONS.items())
    return (
        "usage: bertvision cache [-h] ACTION [flags]\n\n"
        "Hidden states kept on disk, so that heads are fitted without the encoder.\n\n"
        f"actions:\n{rows}\n\n"
        "flags of every action:\n"
        "  --store FOLDER   where the stores are; by default ~/.cache/bertvision/states\n"
        "  --json           print the result as JSON\n\n"
        "  bertvision cache ACTION --help      the flags of an action\n"
        "  fit, eval and run read a store with --states.source stored or auto (and --states.store FOLDER)\n"
    )


@dataclass(frozen=True, kw_only=True)
class StoreArgs:
    store: str = ""
    """Folder of the stores; by default ~/.cache/bertvision/states."""

    @property
    def root(self) -> Path:
        return local_root(self.store)


@dataclass(frozen=True, kw_only=True)
class NamedArgs(StoreArgs):
    """Flags of the actions on several stores."""

    names: Annotated[tuple[str, ...], POSITIONAL, arg(metavar="[STORE ...]")] = ()
    """Keys, beginnings of keys, or folders; for verify none = every store."""


# ---- extract


@dataclass(frozen=True, kw_only=True)
class ExtractArgs(DeviceConfig):
    """Encode a data set once and keep the hidden states, for any number of fits with --states.source stored.

    What is there already is not made again: the same command goes on where it was stopped.
    """

    encoder: Annotated[str, POSITIONAL, arg(metavar="ENCODER")]
    """A snapshot folder, a folder in Hugging Face format, a name on the Hub, or embedded."""
    data: str
    """Questions: SQuAD .json, .jsonl, .csv, hub:NAME[:SPLIT], demo:train, a saved datasets folder. Texts with labels or
    scores: glue:TASK:FILE, cs224n:SET:FILE, answerable:QUESTIONS, .csv, .tsv, .jsonl (--text.label names a column)."""
    selection: Annotated[Selection, FLAT] = field(default_factory=Selection)
    stored: Annotated[StoreConfig, FLAT] = field(default_factory=StoreConfig)
    max_examples: OptionalInt = None
    """Take only the first so many examples."""
    windows: Annotated[WindowConfig, FLAT] = field(default_factory=WindowConfig)
    text: TextConfig = field(default_factory=TextConfig)


def extract(args: ExtractArgs) -> Result:
    try:
        return _extract(args)
    except BertvisionError as error:  # the flags of states have a prefix in other verbs
        raise type(error)(str(error).replace("--states.", "--")) from error


def _extract(args: ExtractArgs) -> Result:
    from bertvision.artifacts import check_output
    from bertvision.encoder.encoder import Encoder
    from bertvision.states.stored import StoredStates, store_of
    from bertvision.train.job import load_split
    from bertvision.train.zoo import encoder_reference

    config = StatesConfig(**vars(args.stored) | vars(args.selection), source="stored")
    check_output(local_root(config.store))  # a mistyped folder should not cost an hour
    encoder = Encoder.load(encoder_reference(args.encoder)[0], device=args.device, precision=args.precision)
    split = load_split(args.data, encoder, args.windows, max_examples=args.max_examples, text=args.text)
    store = store_of(encoder, split.windows, config, split.origin)
    identity, windows = store.identity, store.windows
    logger.info(
        "%s windows, %s tokens, %d states of %d in %s: %s in %d shards, %s to write to %s; the disk has %s free",
        f"{len(windows):,}", f"{windows.num_tokens:,}", len(identity.layers), identity.hidden, identity.dtype,
        size_text(store.nbytes), store.num_shards, size_text(store.bytes_of(store.missing())), store.folder,
        size_text(free_space(store.folder)),
    )  # fmt: skip
    began = time.perf_counter()
    begin(store, config.cache_gb)
    encoded = StoredStates(encoder, store, tokens_per_call=config.tokens_per_call).fill()
    seconds = time.perf_counter() - began
    result = {"store": str(store.folder), "key": store.key, "bytes": store.nbytes, "shards": store.num_shards}
    result |= {"windows": len(windows), "tokens": windows.num_tokens}
    result |= {"encoded_tokens": encoded, "seconds": seconds}

    def show() -> None:
        rate = f"{encoded:,} tokens in {seconds:.1f} s, {encoded / max(seconds, 1e-9):,.0f} a second"
        emit(f"store     {store.folder}")
        emit(f"encoded   {rate if encoded else 'nothing: all shards were there'}")
        emit(f"finished: fit reads it with --train {args.data} --states.source stored and the same settings")
        if split.task.unit == "window" and identity.positions == "all":
            emit("          heads that read [CLS] alone look for states made with --positions cls")

    return result, show


# ---- ls, info


@dataclass(frozen=True)
class LsArgs(StoreArgs):
    """List the stores of hidden states, the last used first, with the encoder and the data each belongs to."""


def ls(args: LsArgs) -> Result:
    found, free = entries(args.root), free_space(args.root)
    total = sum(entry.nbytes for entry in found)

    def show() -> None:
        if found:
            columns = ("positions", "windows", "states", "tokens", "dtype", "data", "encoder")
            table([_cells(entry) for entry in found], optional=columns)
        for entry in found:
            if entry.damage:
                emit(f"{entry.key[:_KEY]}: {entry.damage}")
        emit(f"{len(found)} stores in {args.root}: {size_text(total)}; the disk has {size_text(free)} free")

    rows = [_row(entry) for entry in found]
    return {"root": str(args.root), "stores": rows, "bytes": total, "free": free}, show


def _cells(entry: Entry) -> dict[str, str]:
    row, state = _row(entry), "damaged" if entry.damage else f"{entry.shards}/{entry.planned}"
    cells = {"key": entry.key[:_KEY], "size": size_text(entry.nbytes)}
    cells["shards"] = "finished" if entry.finished else state
    for name in ("windows", "tokens"):
        cells[name] = f"{row[name]:,}" if entry.plan else ""
    cells["states"] = f"{len(row['layers'])} x {row['hidden']}" if entry.plan else ""
    cells |= {name: row[name] or "" for name in ("dtype", "positions")}
    cells |= {name: _short(row[name] or "") for name in ("encoder", "data")}
    return cells | {"used": _age(entry.age)}


@dataclass(frozen=True)
class InfoArgs(StoreArgs):
    """Show what a store holds: encoder, data, window settings, layers, shards."""

    name: Annotated[str, POSITIONAL, arg(metavar="STORE")]
    """Its key, the beginning of it, or its folder."""


def info(args: InfoArgs) -> Result:
    (entry,) = find_entries(args.root, (args.name,))
    row, identity = _row(entry), entry.plan.get("identity", {})

    def show() -> None:
        facts = row | {"weights": identity.get("encoder")} | identity.get("preprocessing", {})
        facts |= {"bytes": size_text(entry.nbytes), "missing": ", ".join(entry.missing)}
        facts |= {"age_seconds": None, "last used": f"{_age(entry.age)} ago"}
        for name, value in facts.items():
            if value not in (None, ""):
                text = ", ".join(map(str, value)) if isinstance(value, list) else value
                emit(f"{name.replace('_', ' '):<18} {text}")

    return row | {"missing": entry.missing, "plan": entry.plan}, show


def _row(entry: Entry) -> dict[str, Any]:
    facts = entry.plan.get("identity", {}) | entry.plan  # the encoder's name, the number of windows
    row = {"key": entry.key, "folder": str(entry.folder), "bytes": entry.nbytes, "finished": entry.finished}
    row |= {
        "damage": entry.damage,
        "shards": entry.shards,
        "planned": entry.planned,
        "age_seconds": entry.age,
    }
    names = ("windows", "tokens", "layers", "hidden", "dtype", "positions", "encoder", "data")
    return row | {name: facts.get(name) for name in names}


def _age(seconds: float) -> str:
    """How long ago, in one unit: "40 s", "5 min", "3 h", "12 d"."""
    for unit, length, most in (("s", 1, 60), ("min", 60, 60), ("h", 3600, 48)):
        if seconds < length * most:
            return f"{max(seconds, 0) // length:.0f} {unit}"
    return f"{seconds // 86400:.0f} d"


def _short(text: str) -> str:
    """The name of an encoder or of data; of a path its last two parts, without the `encoder` a snapshot ends in."""
    parts = Path(text).parts
    if len(parts) < 3 or ":" in parts[0]:  # a name, perhaps with its owner on the Hub, or an address
        return text
    return "/".join(parts[:-1][-2:] if parts[-1] == "encoder" else parts[-2:])


# ---- verify


@dataclass(frozen=True)
class VerifyArgs(NamedArgs, JsonFlag):
    """Check every byte of every shard against its checksums; exit code 1 where something is damaged."""

    drop: bool = False
    """Remove damaged shards, so that the next extraction or fit makes only those anew."""


def verify(args: VerifyArgs) -> None:
    rows, total = [], 0
    for entry in find_entries(args.root, args.names):
        checked, damaged = _verify(entry, drop=args.drop)
        missing, total = len(set(entry.missing) - set(damaged)), total + len(damaged)
        row = {"key": entry.key, "folder": str(entry.folder), "checked": checked, "missing": missing}
        rows.append(row | {"damaged": damaged, "dropped": args.drop and bool(damaged)})
        if not args.json:
            there = f", {missing} not made yet" if missing else ""
            verdict = f"{len(damaged)} damaged" if damaged else "every byte as written"
            emit(f"{entry.key[:_KEY]}: {checked} shards checked{there}, {verdict}")
            for why in damaged.values():
                emit(f"  {why}")
    if args.json:
        emit_json({"stores": rows, "damaged": total})
    elif total:
        emit(
            f"the next extraction or fit makes dropped shards and {WINDOWS_FILE} anew (--drop); `bertvision cache rm` "
            f"removes a store without its {PLAN}"
        )
    if total:
        raise SystemExit(1)


def _verify(entry: Entry, *, drop: bool) -> tuple[int, dict[str, str]]:
    """How many shards were checked, and the damaged files with the reasons."""
    try:
        store = open_store(entry.folder)
    except ArtifactError as error:
        return 0, {PLAN if entry.damage else WINDOWS_FILE: entry.damage or str(error)}
    there, damaged = sorted(set(range(store.num_shards)) - set(store.missing())), {}
    with progress(f"verify {entry.key[:_KEY]}", len(there), unit="shards") as bar:
        for number in there:
            try:
                store.verify(number)
            except ArtifactError as error:
                damaged[store.path(number).name] = str(error)
                if drop:
                    with store.locked():
                        store.path(number).unlink(missing_ok=True)
            bar.update()
    return len(there), damaged


# ---- rm


@dataclass(frozen=True)
class RmArgs(NamedArgs):
    """Remove stores: those that are named, or those that all given flags pick."""

    all: bool = False
    """Every store."""
    unfinished: bool = False
    """Stores that lack shards, and damaged ones."""
    older_than: OptionalFloat = None
    """Stores that were not used for more than so many days."""


def rm(args: RmArgs) -> Result:
    oldest, named = args.older_than, bool(args.names)
    picks = args.all or args.unfinished or oldest is not None
    how = "name the stores to remove, or pick them with --all, --unfinished or --older-than DAYS"
    refuse((named == picks, how))
    refuse((oldest is not None and not oldest >= 0, f"--older-than must not be negative, not {oldest}"))
    removed = []
    for entry in find_entries(args.root, args.names):
        if (args.unfinished and entry.finished) or (oldest is not None and entry.age <= oldest * 86400):
            continue
        with entry.unused() as unused:
            if unused:
                entry.delete()
                removed.append(entry)
            else:
                logger.warning("%s is being written by another process and stays", entry.key[:_KEY])
    freed = sum(entry.nbytes for entry in removed)

    def show() -> None:
        for entry in removed:
            emit(f"removed {entry.key[:_KEY]}: {size_text(entry.nbytes)}")
        emit(f"{len(removed)} stores removed, {size_text(freed)} freed")

    return {"removed": [_row(entry) for entry in removed], "freed": freed}, show
