"""Open States: the source the settings name, or the one `auto` chooses."""

import logging
from dataclasses import asdict
from pathlib import Path

from bertvision.data.kept import kept_tokens
from bertvision.data.windows import Windows
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError, ConfigError
from bertvision.states.base import States
from bertvision.states.catalogue import default_root
from bertvision.states.choose import Case, Source, choose, stored_bytes
from bertvision.states.config import StatesConfig
from bertvision.states.extract import check_room, store_identity
from bertvision.states.folder import open_folder
from bertvision.states.identity import Identity, Origin, StateType
from bertvision.states.layout import SHARD_TOKENS
from bertvision.states.live import LiveStates
from bertvision.states.measure import free_memory, measure
from bertvision.states.memory import MemoryStates
from bertvision.states.store import INFO, PLAN, Store, create_store
from bertvision.states.stored import StoredStates

__all__ = ["choose_source", "open_states", "planned_store", "state_type"]

logger = logging.getLogger(__name__)


def state_type(encoder: Encoder, config: StatesConfig) -> StateType:
    """How states are stored: as configured, else in half precision, what the encoder gives in bf16 as it is."""
    if config.dtype != "auto":
        return config.dtype
    return "bf16" if encoder.precision == "bf16" and encoder.device.type == "cuda" else "fp16"


def _root(config: StatesConfig) -> str | Path:
    return config.store or default_root()


def _identity(encoder: Encoder, origin: Origin, config: StatesConfig) -> Identity:
    return store_identity(encoder, origin, config.selection, state_type(encoder, config))


def states_store(
    encoder: Encoder,
    windows: Windows,
    config: StatesConfig,
    origin: Origin,
    *,
    shard_tokens: int = SHARD_TOKENS,
) -> Store:
    """The store of these states, finished, begun or new; `shard_tokens` is for a new one."""
    identity = _identity(encoder, origin, config)
    return create_store(
        _root(config), identity, windows, encoder=encoder.name, data=origin.name, shard_tokens=shard_tokens
    )


def planned_store(
    encoder: Encoder,
    windows: Windows,
    config: StatesConfig,
    origin: Origin,
    *,
    shard_tokens: int = SHARD_TOKENS,
) -> Store:
    """The same store to look at: where there is none yet, nothing is written."""
    identity = _identity(encoder, origin, config)
    folder = open_folder(_root(config)) / identity.key
    if folder.size(PLAN) is not None:
        return states_store(encoder, windows, config, origin, shard_tokens=shard_tokens)
    return Store(folder, {"identity": asdict(identity), "shard_tokens": shard_tokens}, windows)


def choose_source(
    encoder: Encoder,
    windows: Windows,
    config: StatesConfig,
    *,
    label: str,
    passes: int,
    origin: Origin | None = None,
    keep: bool = True,
    store: Store | None = None,
) -> Source:
    """Where states come from.

    Args:
        passes: How often they will be read.
        origin: What the windows were made from; without it nothing can be stored.
        keep: Whether a store may be begun; without it only one that is finished is used.
        store: One that holds them, whatever the settings would call it.
    """
    if config.source == "stored" and origin is None:
        raise ConfigError("--states.source stored needs windows that were made from a data set")
    if config.source in ("live", "memory"):
        return config.source
    if store is not None:
        return "stored"
    there = _finished_store(encoder, windows, config, origin, label) if origin is not None else None
    if config.source == "stored":
        if there is None and not keep:
            logger.info("%s: no store has them, and reading them once makes none: live", label)
        return "stored" if keep or there is not None else "live"
    if there is not None and encoder.device.type == "cpu":
        logger.info("%s: stored in %s, so nothing is encoded", label, there.folder.address)
        return "stored"
    if there is None and passes < 2:
        logger.info("%s: %s tokens, read once: live", label, f"{windows.num_tokens:,}")
        return "live"
    dtype, layers = state_type(encoder, config), len(config.selection.numbers(encoder.num_states))
    kept = int(kept_tokens(windows, config.positions).sum())
    case = Case(
        label=label,
        tokens=windows.num_tokens,
        stored_bytes=stored_bytes(layers, encoder.hidden, kept, dtype),
        memory_bytes=stored_bytes(layers, encoder.hidden, kept, "fp16"),
        memory_limit=config.memory_gb * 1e9,
        memory_free=free_memory(encoder.device),
        disk_free=open_folder(_root(config)).free(),
        cache_free=free_memory(),
        passes=passes,
        finished=there is not None,
    )
    root = _root(config) if origin is not None and keep else None
    calls = config.tokens_per_call
    measured = measure(
        encoder, windows, config.selection, dtype, root=root, store=there, tokens_per_call=calls
    )
    return choose(case, measured)


def _finished_store(
    encoder: Encoder, windows: Windows, config: StatesConfig, origin: Origin, label: str
) -> Store | None:
    """The store that has all these states, if there is one."""
    folder = open_folder(_root(config)) / _identity(encoder, origin, config).key
    try:
        if folder.size(INFO) is None:
            return None
        return states_store(encoder, windows, config, origin)
    except ArtifactError as error:
        if config.source == "stored":
            raise
        logger.info("%s: no stored states are used: %s", label, error)
        return None


def open_states(
    encoder: Encoder,
    windows: Windows,
    config: StatesConfig,
    *,
    label: str,
    passes: int = 2,
    origin: Origin | None = None,
    keep: bool = True,
    store: Store | None = None,
    source: Source | None = None,
) -> States:
    """The `States` that `source` names, or the one that `choose_source` chooses."""
    source = source or choose_source(
        encoder, windows, config, label=label, passes=passes, origin=origin, keep=keep, store=store
    )
    if source == "stored" and origin is not None:
        if store is None:
            planned = planned_store(encoder, windows, config, origin)
            check_room(planned)
            # Without a key it is only planned; another process may have begun it since.
            store = planned if "key" in planned.about else states_store(encoder, windows, config, origin)
        if missing := len(store.missing()):
            logger.info(
                "%s: %d of %d shards are missing in %s and are encoded when an epoch comes to them",
                label, missing, store.num_shards, store.folder.address,
            )  # fmt: skip
        return StoredStates(encoder, store, tokens_per_call=config.tokens_per_call)
    if source == "memory":
        return MemoryStates(
            encoder, windows, tokens_per_call=config.tokens_per_call, label=label, selection=config.selection
        )
    return LiveStates(encoder, windows, tokens_per_call=config.tokens_per_call, selection=config.selection)
