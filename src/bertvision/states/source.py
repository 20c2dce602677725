"""Open `States`: the source that the settings name, or the one `auto` chooses.

The rule of `auto`, for states that are read in p passes. Heads cost the same wherever their states come from.

    stored    they are stored already, on a CPU; on a GPU where reading is faster than encoding
    live      p < 2, reading is not faster than encoding, or half precision cannot hold them
    memory    they fit --states.memory-gb and the memory that is free
    stored    reading is at least three times as fast as encoding (a disk is slower than memory), and they fit a fifth
              of the free disk and --states.cache-gb
    live      otherwise

Two rates are measured on a sample of the windows: encoding, and reading from the computer's memory into a batch.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from bertvision.artifacts import check_output
from bertvision.console import size_text
from bertvision.data.windows import Windows
from bertvision.encoder.device import Clock
from bertvision.encoder.encoder import Encoder
from bertvision.errors import OutputError
from bertvision.states.base import LiveStates, MemoryStates, States
from bertvision.states.config import Source, StatesConfig, StateType
from bertvision.states.plan import cut_by_tokens
from bertvision.states.store import Identity, Origin, Store, begin, free_space, local_root
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


def store_of(encoder: Encoder, windows: Windows, config: StatesConfig, origin: Origin) -> Store:
    """The store of these states: finished, begun, or planned, of which nothing is written yet."""
    # Half precision; an encoder's own bf16 stays as it is.
    half: StateType = "bf16" if encoder.precision == "bf16" and encoder.device.type == "cuda" else "fp16"
    dtype = half if config.dtype == "auto" else config.dtype
    identity = Identity.of(encoder, origin, config.selection, dtype)
    folder = local_root(config.store) / identity.key
    return Store(folder, identity, windows, encoder=encoder.name, data=origin.name)


def open_states(
    encoder: Encoder,
    windows: Windows,
    config: StatesConfig,
    *,
    label: str,
    origin: Origin,
    source: Source | None = None,
    **choice: Any,
) -> States:
    """The states from `source`, or from the one that `choose_source` chooses with the other arguments."""
    source = source or choose_source(encoder, windows, config, label=label, origin=origin, **choice)
    options: dict[str, Any] = {"tokens_per_call": config.tokens_per_call}
    if source == "stored":
        store = begin(store_of(encoder, windows, config, origin), config.cache_gb)
        if missing := len(store.missing()):
            logger.info(
                "%s: %d of %d shards are missing in %s and are encoded when an epoch comes to them",
                label, missing, store.num_shards, store.folder,
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
    origin: Origin,
    passes: int = 2,
    keep: bool = True,
) -> Source:
    """Where states come from that are read `passes` times.

    Without `keep` no store is begun, and only one that is finished is used.
    """
    if config.source in ("live", "memory"):
        return config.source
    planned = store_of(encoder, windows, config, origin)
    finished = planned.begun and not planned.missing()
    if config.source == "stored" and (keep or finished):
        return "stored"
    choice: Source = "stored"
    if config.source == "stored":
        choice, why = "live", "no store has them, and reading them once makes none"
    elif finished and encoder.device.type == "cpu":
        why = "they are stored already"
    elif passes < 2 and not finished:
        choice, why = "live", "they are read once"
    else:
        encode, read, half = measure(encoder, windows, config)
        why = f"encoding makes {encode:,.0f} and reading {read:,.0f} tokens a second"
        if read <= encode:
            choice = "live"
        elif not finished:
            # What half precision takes.
            needed = 2 * len(planned.identity.layers) * int(planned.lengths.sum()) * encoder.hidden
            free = _free_memory(encoder.device)
            room = 0.0  # bytes that a store begun here may take
            if keep and read >= _FASTER * encode:
                with suppress(OutputError):  # nothing can be written there
                    check_output(planned.folder)
                    room = min(config.cache_gb * 1e9, _DISK * free_space(planned.folder))
            why += f"; they need {size_text(needed)}, and a store may take {size_text(room)}"
            if not half:
                choice, why = "live", f"{why}; half precision cannot hold them"
            elif needed <= config.memory_gb * 1e9 and (free is None or needed < _MEMORY * free):
                choice = "memory"
            elif planned.nbytes > room:
                choice = "live"
    logger.info("%s: %s tokens: %s, because %s", label, f"{windows.num_tokens:,}", choice, why)
    return choice


def measure(encoder: Encoder, windows: Windows, config: StatesConfig) -> tuple[float, float, bool]:
    """Tokens a second of encoding and of reading from memory, and whether half precision can hold the states."""
    live = LiveStates(encoder, windows, tokens_per_call=config.tokens_per_call, selection=config.selection)
    on_cpu = encoder.device.type == "cpu"
    calls = cut_by_tokens(live.widths, min(live.tokens_per_call, _SAMPLE) if on_cpu else live.tokens_per_call)
    sample = calls[len(calls) // 2]  # windows of about the usual length
    # The first call loads libraries; on a GPU the second is captured.
    for warm_up in [sample[:1]] if on_cpu else [sample, sample]:
        live.read(warm_up)
    encoding, batch = _timed(lambda: live.read(sample), encoder)
    half = batch.states.to(torch.bfloat16 if batch.states.dtype == torch.bfloat16 else torch.float16)
    kept = half.transpose(0, 1).contiguous().cpu()  # (B, L, T, H): as far from a batch's order as a store is
    target = torch.empty_like(batch.states)

    def read() -> None:
        for _ in range(_READINGS):
            target.copy_(kept.to(encoder.device, non_blocking=True).transpose(0, 1))

    read()
    reading, _ = _timed(read, encoder)
    tokens = int(windows.lengths[sample].sum())
    return tokens / encoding, _READINGS * tokens / reading, bool(half.isfinite().all())


def _timed(action: Callable[[], Any], encoder: Encoder) -> tuple[float, Any]:
    clock = Clock(encoder.device)
    result = action()
    clock.stop()
    return max(clock.seconds(), 1e-6), result


def _free_memory(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None
