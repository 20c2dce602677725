"""`bertvision cache extract ENCODER --data SOURCE`: encode a data set once and keep the states."""

import dataclasses
import logging
import shlex
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from bertvision.cli.cache import texts
from bertvision.cli.cache.texts import StoreArgs
from bertvision.console import size_text
from bertvision.data.windows import Positions, WindowConfig
from bertvision.encoder.device import Precision
from bertvision.errors import BertvisionError, ConfigError
from bertvision.options import OptionalInt
from bertvision.states.config import StatesConfig
from bertvision.states.plan import SHARD_TOKENS
from bertvision.tasks.settings import TextConfig

if TYPE_CHECKING:
    from bertvision.states.store import Store


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExtractArgs(StoreArgs):
    """Encode a data set once and keep the hidden states, for any number of fits with --states.source stored.

    What is there already is not made again: the same command goes on where it was stopped.
    """

    encoder: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENCODER")]
    """A snapshot folder, a folder in Hugging Face format, a name on the Hub, or embedded."""
    data: str
    """Questions: SQuAD .json, .jsonl, .csv, hub:NAME[:SPLIT], demo:train, a saved datasets folder. Texts with labels or
    scores: glue:TASK:FILE, cs224n:SET:FILE, answerable:QUESTIONS, .csv, .tsv, .jsonl (--text.label names a column)."""
    cache_gb: float = 100.0
    """GB of stored states to keep: a new store that would exceed it first deletes the least recently used ones."""
    layers: tuple[int, ...] = ()
    """Hidden states to keep, 0 = embedding output, -1 = last layer; none = all."""
    positions: Positions = "all"
    """Tokens whose states are kept: all, the classification token alone (cls, which is what label heads such as
    tenney_small read), or that one and the paragraph's (context)."""
    dtype: Literal["auto", "fp32", "bf16", "fp16", "int8"] = "auto"
    """How states are stored; auto: half precision. int8 has a scale for each token and layer."""
    max_examples: OptionalInt = None
    """Take only the first so many examples."""
    device: str = "auto"
    """auto, cpu, cuda or mps."""
    precision: Precision = "auto"
    """fp32, bf16, or auto: bf16 on GPUs that have it."""
    tokens_per_call: int = 0
    """Tokens the encoder reads in one call, pads included; 0 = what suits the device."""
    shard_tokens: int = SHARD_TOKENS
    """Tokens of a shard: the most that a kill loses. A store that was begun keeps its own."""
    windows: Annotated[WindowConfig, tyro.conf.arg(name="")] = field(default_factory=WindowConfig)
    text: TextConfig = field(default_factory=TextConfig)

    def __post_init__(self) -> None:
        if self.shard_tokens < 1:
            raise ConfigError(f"--shard-tokens must be at least 1, not {self.shard_tokens}")


def extract(args: ExtractArgs) -> None:
    try:
        _extract(args)
    except BertvisionError as error:  # the flags of states have a prefix in other verbs
        raise type(error)(str(error).replace("--states.", "--")) from error


def _extract(args: ExtractArgs) -> None:
    from bertvision import console
    from bertvision.artifacts import check_output
    from bertvision.encoder.encoder import Encoder
    from bertvision.states.catalogue import begin
    from bertvision.states.files import Files
    from bertvision.states.source import store_of
    from bertvision.states.stored import StoredStates
    from bertvision.train.splits import load_split
    from bertvision.train.zoo import encoder_reference

    names = ("store", "cache_gb", "dtype", "tokens_per_call", "layers", "positions")
    config = StatesConfig(source="stored", **{name: getattr(args, name) for name in names})
    files = Files(args.root)
    if files.local and not files.names():
        check_output(files.local)  # a mistyped address should not cost an hour
    encoder = Encoder.load(encoder_reference(args.encoder)[0], device=args.device, precision=args.precision)
    split = load_split(args.data, encoder, args.windows, max_examples=args.max_examples, text=args.text)
    store = store_of(encoder, split.windows, config, split.origin, shard_tokens=args.shard_tokens)
    _announce(store, args)
    store = begin(store, args.cache_gb)
    began = time.perf_counter()
    encoded = StoredStates(encoder, store, tokens_per_call=args.tokens_per_call).fill()
    result = {
        "store": store.files.address,
        "key": store.key,
        "bytes": store.nbytes,
        "shards": store.num_shards,
        "windows": len(store.windows),
        "tokens": store.windows.num_tokens,
        "encoded_tokens": encoded,
        "seconds": time.perf_counter() - began,
        "flags": _flags(args, config),
    }
    if args.json:
        console.emit_json(result)
    else:
        _show(result, args, spans=split.task.unit == "token")


def _flags(args: ExtractArgs, config: StatesConfig) -> str:
    """The flags with which a fit finds this very store."""
    fit = {"max-train-examples": args.max_examples, "precision": args.precision}
    flags = _changed(config, StatesConfig(), "states.") + _changed(args.windows, WindowConfig(), "")
    flags += _changed(args.text, TextConfig(), "text.")
    return " ".join(
        flags + [f"--{name} {value}" for name, value in fit.items() if value not in (None, "auto")]
    )


def _changed(settings: Any, usual: Any, prefix: str) -> list[str]:
    """Flags of the settings that differ from the defaults, as a shell reads them."""
    flags = []
    for each in dataclasses.fields(settings):
        name, value = f"{prefix}{each.name.replace('_', '-')}", getattr(settings, each.name)
        if value == getattr(usual, each.name):
            continue
        if isinstance(value, bool):
            flags.append(f"--{name}" if value else f"--{prefix}no-{name.removeprefix(prefix)}")
        elif isinstance(value, tuple):
            flags.append(f"--{name}={','.join(map(str, value))}")
        else:
            flags.append(f"--{name} {shlex.quote(str(value))}")
    return flags


def _announce(store: "Store", args: ExtractArgs) -> None:
    """Say what will be written."""
    identity, windows, free = store.identity, store.windows, store.files.free()
    logger.info(
        "%s windows, %s tokens, %d states of %d in %s: %s in %s",
        f"{len(windows):,}", f"{windows.num_tokens:,}", len(identity.layers), identity.hidden, identity.dtype,
        size_text(store.nbytes), texts.count(store.num_shards, "shard"),
    )  # fmt: skip
    left = "" if free is None else f"; the disk has {size_text(free)} free"
    needed = size_text(store.bytes_of(store.missing()))
    logger.info("%s to write to %s%s", needed, store.files.address, left)
    own = store.plan.shard_tokens
    if own != args.shard_tokens != SHARD_TOKENS:
        logger.info("the store was begun with --shard-tokens %d and keeps them", own)


def _show(result: dict[str, Any], args: ExtractArgs, *, spans: bool) -> None:
    from bertvision import console

    encoded, seconds = result["encoded_tokens"], result["seconds"]
    rate = f"{encoded:,} tokens in {seconds:.1f} s, {encoded / max(seconds, 1e-9):,.0f} a second"
    console.emit(f"store     {result['store']}")
    console.emit(f"encoded   {rate if encoded else 'nothing: all shards were there'}")
    console.emit(f"finished: fit reads it with --train {args.data} {result['flags']}")
    if spans:  # of texts a store does not know what their labels mean
        where = f" --states.store {args.store}" * bool(args.store)
        console.emit(f"          or without the data, with --train store:{result['key'][:12]}{where}")
    elif args.positions == "all":
        console.emit("          heads that read [CLS] alone look for states made with --positions cls")
