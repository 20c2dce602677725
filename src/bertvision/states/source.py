"""Open `States`: the source that the settings name, or the one `auto` chooses.

The rule of `auto`, for states that are read in p passes. Heads cost the same wherever their states come from.

    stored    they are stored already, on a CPU; on a GPU where reading is faster than encoding
    live      p < 2, or reading is not faster than encoding
    memory    they fit --states.memory-gb and the memory that is free
    stored    reading is at least three times as fast as encoding (a disk is slower than memory), and they fit a fifth
              of the free disk and --states.cache-gb
    live      otherwise

Two rates are measured on a sample of the windows: encoding, and reading from the computer's memory into a batch.
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertvision.artifacts import check_output
from bertvision.console import size_text
from bertvision.data.windows import Windows, kept_tokens
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError, ConfigError, OutputError
from bertvision.states.base import States
from bertvision.states.catalogue import begin
from bertvision.states.config import Source, StatesConfig
from bertvision.states.files import Files
from bertvision.states.identity import Identity, Origin, StateType
from bertvision.states.live import LiveStates
from bertvision.states.memory import MemoryStates
from bertvision.states.plan import SHARD_TOKENS
from bertvision.states.store import Store, default_root, plan_store
from bertvision.states.stored import StoredStates

logger = logging.getLogger(__name__)

_DISK = 0.2
"""Part of the free disk that a store begun by `auto` may take."""
_MEMORY = 0.8
"""Part of the free memory that states may take."""
_FASTER = 3.0
"""How many times as fast as encoding reading from memory must be before `auto` begins a store."""
_SAMPLE = 2048
"""Tokens of the sample on a CPU; on a GPU it is one full encoder call."""
_READINGS = 8
"""Times the sample is read."""


def store_of(
    encoder: Encoder,
    windows: Windows,
    config: StatesConfig,
    origin: Origin,
    *,
    shard_tokens: int = SHARD_TOKENS,
) -> Store:
    """The store of these states: finished, begun, or planned, of which nothing is written yet.

    `shard_tokens` is for a new one.
    """
    # Half precision; an encoder's own bf16 stays as it is.
    half: StateType = "bf16" if encoder.precision == "bf16" and encoder.device.type == "cuda" else "fp16"
    dtype = half if config.dtype == "auto" else config.dtype
    identity = Identity.of(encoder, origin, config.selection, dtype)
    return plan_store(
        Files(config.store or default_root()) / identity.key,
        identity,
        windows,
        encoder=encoder.name,
        data=origin.name,
        shard_tokens=shard_tokens,
    )


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
    targets: NDArray[Any] | None = None,
) -> States:
    """The states from `source`, or from the one that `choose_source` chooses with these arguments."""
    source = source or choose_source(
        encoder, windows, config, label=label, passes=passes, origin=origin, keep=keep, store=store
    )
    options: dict[str, Any] = {"targets": targets, "tokens_per_call": config.tokens_per_call}
    if source == "stored" and origin is not None:
        store = begin(store or store_of(encoder, windows, config, origin), config.cache_gb)
        if missing := len(store.missing()):
            logger.info(
                "%s: %d of %d shards are missing in %s and are encoded when an epoch comes to them",
                label, missing, store.num_shards, store.files.address,
            )  # fmt: skip
        return StoredStates(encoder, store, **options)
    if source == "memory":
        return MemoryStates(encoder, windows, selection=config.selection, label=label, **options)
    return LiveStates(encoder, windows, selection=config.selection, **options)


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
        store: A store that holds them, whatever the settings would call it.
    """
    if config.source == "stored" and origin is None:
        raise ConfigError("--states.source stored needs windows that were made from a data set")
    if config.source in ("live", "memory"):
        return config.source
    if store is not None:
        return "stored"
    planned = None
    try:
        planned = None if origin is None else store_of(encoder, windows, config, origin)
    except ArtifactError as error:
        if config.source == "stored":
            raise
        logger.info("%s: no stored states are used: %s", label, error)
    finished = planned is not None and planned.begun and not planned.missing()
    choice: Source
    if config.source == "stored":
        if keep or finished:
            return "stored"
        choice, why = "live", "no store has them, and reading them once makes none"
    elif finished and encoder.device.type == "cpu":
        choice, why = "stored", "they are stored already"
    elif passes < 2 and not finished:
        choice, why = "live", "they are read once"
    else:
        planned = planned if keep or finished else None
        choice, why = _measured(encoder, windows, config, planned, finished=finished)
    logger.info("%s: %s tokens: %s, because %s", label, f"{windows.num_tokens:,}", choice, why)
    return choice


def _measured(
    encoder: Encoder, windows: Windows, config: StatesConfig, store: Store | None, *, finished: bool
) -> tuple[Source, str]:
    """The choice by measurement, and the reasons for it; `store` is one that holds them or may be begun."""
    encode, read, half = measure(encoder, windows, config)
    rates = f"encoding makes {encode:,.0f} and reading {read:,.0f} tokens a second"
    if read <= encode:
        return "live", rates
    if finished:
        return "stored", f"they are stored already; {rates}"
    layers, kept = config.selection.numbers(encoder.num_states), kept_tokens(windows, config.positions).sum()
    needed, free = 2 * len(layers) * int(kept) * encoder.hidden, _free_memory(encoder.device)
    if not half:
        rates += "; half precision cannot hold them"
    elif needed <= config.memory_gb * 1e9 and (free is None or needed < _MEMORY * free):
        return "memory", f"{rates}; {size_text(needed)} fit into memory"
    else:
        rates += f"; {size_text(needed)} do not fit into memory"
    if store is None or not (half or store.identity.dtype in ("bf16", "fp32")):
        return "live", rates
    if read < _FASTER * encode:
        return "live", f"{rates}; a disk would hardly be faster"
    disk, room = store.files.free(), config.cache_gb * 1e9
    room = room if disk is None else min(room, _DISK * disk)
    rates += f"; a store needs {size_text(store.nbytes)} and may take {size_text(room)}"
    if store.nbytes > room:
        return "live", rates
    try:
        check_output(store.folder)
    except OutputError as error:
        return "live", f"{rates}; {error}"
    return "stored", rates


def measure(encoder: Encoder, windows: Windows, config: StatesConfig) -> tuple[float, float, bool]:
    """Tokens a second of encoding and of reading from memory, and whether half precision can hold the states."""
    live = LiveStates(encoder, windows, tokens_per_call=config.tokens_per_call, selection=config.selection)
    sample = _sample(live)
    tokens = int(windows.lengths[sample].sum())
    # The first call loads libraries; on a GPU the second is captured.
    for warm_up in [sample, sample] if encoder.device.type == "cuda" else [sample[:1]]:
        live.read(warm_up)
    seconds = _timed(lambda: live.read(sample), encoder)
    batch = live.read(sample)
    half = batch.states.to(torch.bfloat16 if batch.states.dtype == torch.bfloat16 else torch.float16)
    kept = half.transpose(0, 1).contiguous().cpu()  # (B, L, T, H): as far from a batch's order as a store is
    target = torch.empty_like(batch.states)

    def read() -> None:
        for _ in range(_READINGS):
            target.copy_(kept.to(encoder.device, non_blocking=True).transpose(0, 1))

    read()
    reading = _timed(read, encoder) / _READINGS
    return tokens / seconds, tokens / reading, bool(half.isfinite().all())


def _sample(live: LiveStates) -> NDArray[np.int64]:
    """Windows of about the usual length, as many as the sample has room for."""
    budget = min(live.tokens_per_call, _SAMPLE) if live.encoder.device.type == "cpu" else live.tokens_per_call
    order = np.argsort(live.windows.lengths, kind="stable")
    middle = len(order) // 2
    typical = max(int(live.widths[order[middle]]), 1)
    count = max(1, min(len(order), budget // typical))
    begin = max(0, min(middle - count // 2, len(order) - count))
    return order[begin : begin + count]


def _timed(action: Callable[[], Any], encoder: Encoder) -> float:
    began = time.perf_counter()
    action()
    if encoder.device.type == "cuda":
        torch.cuda.synchronize(encoder.device)
    return max(time.perf_counter() - began, 1e-6)


def _free_memory(device: torch.device) -> int | None:
    """Bytes of memory that could still be taken on a device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None
