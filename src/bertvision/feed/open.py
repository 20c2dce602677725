"""Open a feed: the source the settings name, or the one `auto` chooses."""

import logging
from dataclasses import asdict
from pathlib import Path

from bertvision.data.windows import Windows
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError, ConfigError
from bertvision.feed.batches import Feed, FeedConfig
from bertvision.feed.choose import Case, Source, choose, free_memory, measure, stored_bytes
from bertvision.feed.extract import store_identity
from bertvision.feed.live import LiveFeed
from bertvision.feed.memory import MemoryFeed
from bertvision.feed.stored import StoredFeed
from bertvision.store.catalogue import default_root
from bertvision.store.folder import open_folder
from bertvision.store.identity import Identity, Origin, StateType
from bertvision.store.plan import SHARD_TOKENS
from bertvision.store.store import INFO, PLAN, Store, create_store

__all__ = ["choose_source", "open_feed", "open_states", "planned_states", "state_type"]

logger = logging.getLogger(__name__)


def state_type(encoder: Encoder, config: FeedConfig) -> StateType:
    """How states are stored: as configured, else in half precision, what the encoder gives in bf16 as it is."""
    if config.dtype != "auto":
        return config.dtype
    return "bf16" if encoder.precision == "bf16" and encoder.device.type == "cuda" else "fp16"


def _root(config: FeedConfig) -> str | Path:
    return config.store or default_root()


def _identity(encoder: Encoder, origin: Origin, config: FeedConfig) -> Identity:
    return store_identity(encoder, origin, config.reading, state_type(encoder, config))


def open_states(
    encoder: Encoder,
    windows: Windows,
    config: FeedConfig,
    origin: Origin,
    *,
    shard_tokens: int = SHARD_TOKENS,
) -> Store:
    """The store of these states, finished, begun or new; `shard_tokens` is for a new one."""
    identity = _identity(encoder, origin, config)
    return create_store(
        _root(config), identity, windows, encoder=encoder.name, data=origin.name, shard_tokens=shard_tokens
    )


def planned_states(
    encoder: Encoder,
    windows: Windows,
    config: FeedConfig,
    origin: Origin,
    *,
    shard_tokens: int = SHARD_TOKENS,
) -> Store:
    """The same store to look at: where there is none yet, nothing is written."""
    identity = _identity(encoder, origin, config)
    folder = open_folder(_root(config)) / identity.key
    if folder.size(PLAN) is not None:
        return open_states(encoder, windows, config, origin, shard_tokens=shard_tokens)
    return Store(folder, {"identity": asdict(identity), "shard_tokens": shard_tokens}, windows)


def choose_source(
    encoder: Encoder,
    windows: Windows,
    config: FeedConfig,
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
        raise ConfigError("--feed.source stored needs windows that were made from a data set")
    if config.source in ("live", "memory"):
        return config.source
    if store is not None:
        return "stored"
    if origin is not None:
        folder = open_folder(_root(config)) / _identity(encoder, origin, config).key
        try:
            finished, begun = folder.size(INFO) is not None, folder.size(PLAN) is not None
        except ArtifactError as error:
            if config.source == "stored":
                raise
            logger.info("%s: no stored states are used: %s", label, error)
            finished = begun = keep = False
        if finished:
            logger.info("%s: the states are in %s", label, folder.address)
        if finished or (keep and (config.source == "stored" or begun)):
            return "stored"
    if passes < 2 or config.source == "stored":
        return "live"
    dtype, layers = state_type(encoder, config), len(config.reading.numbers(encoder.num_states))
    live = LiveFeed(encoder, windows, reading=config.reading)
    case = Case(
        label=label,
        tokens=windows.num_tokens,
        stored_bytes=stored_bytes(layers, encoder.hidden, live.kept.num_tokens, dtype),
        memory_bytes=stored_bytes(layers, encoder.hidden, live.kept.num_tokens, "fp16"),
        memory_limit=config.memory_gb * 1e9,
        free_disk=open_folder(_root(config)).free(),
        free_memory=free_memory(),
        passes=passes,
    )
    root = _root(config) if origin is not None and keep else None
    calls = config.tokens_per_call
    return choose(case, measure(encoder, windows, config.reading, dtype, root=root, tokens_per_call=calls))


def open_feed(
    encoder: Encoder,
    windows: Windows,
    config: FeedConfig,
    *,
    label: str,
    passes: int = 2,
    origin: Origin | None = None,
    keep: bool = True,
    store: Store | None = None,
    source: Source | None = None,
) -> Feed:
    """The feed `source` names, or the one that `choose_source` chooses."""
    source = source or choose_source(
        encoder, windows, config, label=label, passes=passes, origin=origin, keep=keep, store=store
    )
    if source == "stored" and origin is not None:
        store = store or open_states(encoder, windows, config, origin)
        return StoredFeed(encoder, store, tokens_per_call=config.tokens_per_call)
    if source == "memory":
        return MemoryFeed(
            encoder, windows, tokens_per_call=config.tokens_per_call, label=label, reading=config.reading
        )
    return LiveFeed(encoder, windows, tokens_per_call=config.tokens_per_call, reading=config.reading)
