"""`bertvision cache extract ENCODER --data SOURCE`: encode a data set once and keep the states.

Several processes share the work when `torchrun` or `accelerate launch` starts them (both set RANK and WORLD_SIZE):
rank r of R makes the shards r, r + R, ..., and the result is the same to the byte, whatever R is. Ranks started by
hand, one after another or on machines that do not know each other, do the same.
"""

import dataclasses
import logging
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from bertvision.cli.cache import told
from bertvision.cli.flags import OptionalInt
from bertvision.data.kept import Positions
from bertvision.data.windows import WindowConfig
from bertvision.encoder.device import Precision
from bertvision.errors import BertvisionError, ConfigError
from bertvision.states.layout import SHARD_TOKENS
from bertvision.train.splits import TextConfig

if TYPE_CHECKING:
    from bertvision.states.store import Store

__all__ = ["ARGS", "ExtractArgs", "main"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExtractArgs:
    """Encode a data set once and keep the hidden states, for any number of fits with --states.source stored.

    What is there already is not made again: the same command goes on where it was stopped. Under torchrun every rank
    makes its own shards.
    """

    encoder: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENCODER")]
    """A snapshot folder, a folder in Hugging Face format, a name on the Hub, or embedded."""
    data: str
    """Questions: SQuAD .json, .jsonl, .csv, hub:NAME[:SPLIT], demo:train, a saved datasets folder. Texts with labels or
    scores: glue:TASK:FILE, cs224n:SET:FILE, answerable:QUESTIONS, .csv, .tsv, .jsonl (--text.label names a column)."""
    store: str = ""
    """Folder or fsspec address (s3://..., gs://...) of the stores; by default ~/.cache/bertvision/states."""
    layers: tuple[int, ...] = ()
    """Hidden states to keep, 0 = embedding output, -1 = last layer; none = all."""
    positions: Positions = "all"
    """Tokens whose states are kept: all, the one that stands for no answer or the whole text (cls, which is what label
    heads such as tenney_small read), or that one and the paragraph's (context)."""
    dtype: Literal["auto", "fp32", "bf16", "fp16", "int8"] = "auto"
    """How states are stored; auto: half precision. int8 has a scale for each token and layer."""
    max_examples: OptionalInt = None
    """Take only the first so many examples."""
    device: str = "auto"
    """auto, cpu, cuda or mps; auto under torchrun: one GPU a rank."""
    precision: Precision = "auto"
    """fp32, bf16, or auto: bf16 on GPUs that have it."""
    tokens_per_call: int = 0
    """Tokens the encoder reads in one call, pads included; 0 = what suits the device."""
    shard_tokens: int = SHARD_TOKENS
    """Tokens of a shard: the most that a kill loses. A store that was begun keeps its own."""
    windows: Annotated[WindowConfig, tyro.conf.arg(name="")] = field(default_factory=WindowConfig)
    text: TextConfig = field(default_factory=TextConfig)
    json: bool = False
    """Print the result as JSON."""

    def __post_init__(self) -> None:
        if self.shard_tokens < 1:
            raise ConfigError(f"--shard-tokens must be at least 1, not {self.shard_tokens}")


ARGS = ExtractArgs


def main(args: ExtractArgs) -> None:
    with _own_flags():
        _extract(args)


@contextmanager
def _own_flags() -> Iterator[None]:
    """Settings of states have a prefix in other verbs; their mistakes are told here without it."""
    try:
        yield
    except BertvisionError as error:
        raise type(error)(str(error).replace("--states.", "--")) from error


def _extract(args: ExtractArgs) -> None:
    from bertvision import console
    from bertvision.artifacts import check_output
    from bertvision.encoder.encoder import Encoder
    from bertvision.states.config import StatesConfig
    from bertvision.states.extract import check_room
    from bertvision.states.folder import LocalFolder, open_folder
    from bertvision.states.ranks import rank_and_world
    from bertvision.states.source import planned_store, states_store
    from bertvision.states.stored import StoredStates
    from bertvision.train.splits import load_split
    from bertvision.train.zoo import encoder_reference

    config = StatesConfig(
        source="stored",
        store=args.store,
        dtype=args.dtype,
        tokens_per_call=args.tokens_per_call,
        layers=args.layers,
        positions=args.positions,
    )
    # A mistyped address should not cost an hour. Where there are stores, ours may be among them and whole.
    place = open_folder(told.root(args.store))
    local = place.path if isinstance(place, LocalFolder) else None
    if local is not None and not place.names():
        check_output(local)
    rank, world = rank_and_world()
    encoder = Encoder.load(encoder_reference(args.encoder)[0], device=args.device, precision=args.precision)
    split = load_split(args.data, encoder, args.windows, max_examples=args.max_examples, text=args.text)
    about = (encoder, split.windows, config, split.origin)
    store = planned_store(*about, shard_tokens=args.shard_tokens)
    if local is not None and (store.missing() or store.info is None):
        check_output(local)
    if rank == 0:
        _announce(store, args)
    check_room(store)
    if "key" not in store.about:  # only planned; another rank may have begun it since
        store = states_store(*about, shard_tokens=args.shard_tokens)
    extractor = StoredStates(encoder, store, tokens_per_call=args.tokens_per_call).extractor
    began = time.perf_counter()
    encoded = extractor.make_all(rank=rank, world=world)
    seconds = time.perf_counter() - began
    if rank:
        logger.info("rank %d of %d: %s tokens in %.1f s", rank, world, f"{encoded:,}", seconds)
        return
    result = {
        "store": store.folder.address,
        "key": store.key,
        "bytes": store.nbytes,
        "shards": store.num_shards,
        "missing": len(store.missing()),
        "finished": extractor.finish(),  # the last of the others may have come a moment ago
        "windows": len(store.windows),
        "tokens": store.windows.num_tokens,
        "encoded_tokens": encoded,
        "seconds": seconds,
        "flags": _flags(args),
    }
    spans = split.task.unit == "token"
    if args.json:
        console.emit_json(result)
    else:
        _tell(result, args, world, spans=spans)


def _flags(args: ExtractArgs) -> str:
    """What makes a fit find this very store."""
    flags = ["--states.source stored"]
    flags += [f"--states.store {args.store}"] * bool(args.store)
    flags += [f"--states.dtype {args.dtype}"] * (args.dtype != "auto")
    flags += [f"--states.layers={','.join(map(str, args.layers))}"] * bool(args.layers)
    flags += [f"--states.positions {args.positions}"] * (args.positions != "all")
    flags += [f"--max-train-examples {args.max_examples}"] * (args.max_examples is not None)
    flags += [f"--precision {args.precision}"] * (args.precision != "auto")
    flags += _other(args.windows, WindowConfig(), "")
    flags += _other(args.text, TextConfig(), "text.")
    return " ".join(flags)


def _other(settings: WindowConfig | TextConfig, usual: WindowConfig | TextConfig, prefix: str) -> list[str]:
    """Flags of the settings that are not as usual, as a shell reads them."""
    flags = []
    for each in dataclasses.fields(settings):
        name, value = each.name.replace("_", "-"), getattr(settings, each.name)
        if value == getattr(usual, each.name):
            continue
        if isinstance(value, bool):
            flags.append(f"--{prefix}{name}" if value else f"--{prefix}no-{name}")
        else:
            flags.append(f"--{prefix}{name} {shlex.quote(str(value))}")
    return flags


def _announce(store: "Store", args: ExtractArgs) -> None:
    """Say what will be written."""
    identity, missing = store.identity, store.missing()
    needed = sum(store.layout(number).nbytes for number in missing)
    free = store.folder.free()
    logger.info(
        "%s windows, %s tokens, %d states of %d in %s: %s in %s",
        f"{len(store.windows):,}",
        f"{store.windows.num_tokens:,}",
        len(identity.layers),
        identity.hidden,
        identity.dtype,
        told.size(store.nbytes),
        told.count(store.num_shards, "shard"),
    )
    left = "" if free is None else f"; the disk has {told.size(free)} free"
    logger.info("%s to write to %s%s", told.size(needed), store.folder.address, left)
    own = store.about["shard_tokens"]
    if own != args.shard_tokens != SHARD_TOKENS:
        logger.info("the store was begun with --shard-tokens %d and keeps them", own)


def _tell(result: dict[str, Any], args: ExtractArgs, world: int, *, spans: bool) -> None:
    from bertvision import console

    there = result["shards"] - result["missing"]
    encoded, seconds = result["encoded_tokens"], result["seconds"]
    rate = f"{encoded:,} tokens in {seconds:.1f} s, {encoded / max(seconds, 1e-9):,.0f} a second"
    lines = {
        "store": result["store"],
        "key": result["key"],
        "size": f"{told.size(result['bytes'])} in {told.count(result['shards'], 'shard')}",
        "holds": f"{result['windows']:,} windows, {result['tokens']:,} tokens",
        "encoded": (rate if encoded else "nothing: all shards were there")
        + (f" (rank 0 of {world})" if world > 1 else ""),
    }
    for name, text in lines.items():
        console.emit(f"{name:<8} {text}")
    if result["finished"]:
        console.emit(f"finished: fit reads it with --train {args.data} {result['flags']}")
        where = f" --states.store {args.store}" * bool(args.store)
        if spans:  # of texts a store does not know what their labels mean
            console.emit(f"          or without the data, with --train store:{result['key'][:12]}{where}")
        elif args.positions == "all":
            console.emit("          heads that read [CLS] alone look for states made with --positions cls")
    else:
        console.emit(f"unfinished: {there} of {result['shards']} shards are there, other ranks make the rest")
