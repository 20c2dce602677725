"""One walk over hidden states gives the logits of any number of heads, whatever their tasks and whatever they read.

Heads read what their folder names: all tokens or the classification token alone, all layers or some. A walk hands out
the union, once, and `narrow` cuts each head's part out of it. A head that would take more memory for a batch than
`activation_gb` (measured by what a training step keeps) reads it in several parts.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from bertvision.console import progress
from bertvision.data.windows import Windows
from bertvision.encoder.encoder import Encoder
from bertvision.heads.base import Head, rows_at_once
from bertvision.states.base import LiveStates, StateBatch, States, call_tokens
from bertvision.states.config import Selection
from bertvision.states.plan import cut_by_tokens, group_rows
from bertvision.tasks.base import Task
from bertvision.tasks.logits import Logits, Seen

_CPU_TOKENS = 256
"""Tokens of one encoder call on a CPU, pads included: what is computed between two layers then stays in the
processor's cache, and windows share a call only with others of their length. Long calls take a quarter more time."""
_SMALL = 16e6
"""Bytes of states that any head can read at once: it would have to keep hundreds of times as many to fill the limit."""


@dataclass(frozen=True)
class Reader:
    head: Head
    selection: Selection
    task: Task


def head_logits(
    states: States,
    heads: Mapping[str, Head],
    task: Task,
    *,
    label: str = "evaluate",
    activation_gb: float = 4.0,
) -> dict[str, Logits]:
    """Logits of heads of one task that read all that `states` hands out."""
    readers = {name: Reader(head, states.selection, task) for name, head in heads.items()}
    return walk(states, readers, label=label, activation_gb=activation_gb)


@torch.no_grad()
def walk(
    states: States, readers: Mapping[str, Reader], *, label: str = "", activation_gb: float = 4.0
) -> dict[str, Logits]:
    """Logits of every head on all windows; `states` must hand out what each of them reads. All tasks must have as many
    windows side by side. With a `label` the progress is shown."""
    windows = states.windows
    (group,) = {reader.task.group for reader in readers.values()}
    collectors = {name: reader.task.collector(windows) for name, reader in readers.items()}
    selections = {reader.selection for reader in readers.values()}
    for reader in readers.values():
        reader.head.eval()
    if group == 1:
        batches = states.walk()
    else:  # the windows of an example side by side in one batch
        lengths = windows.lengths.reshape(-1, group).max(axis=1) * group
        calls = cut_by_tokens(lengths, call_tokens(states.encoder, 0))
        batches = states.stream([group_rows(units, group) for units in calls])
    with progress(label, len(windows), unit="windows") if label else nullcontext() as bar:
        for batch in batches:
            parts = {one: narrow(batch, states, one) for one in selections}
            seen = {one: Seen(windows, part.windows, part.mask) for one, part in parts.items()}
            with states.encoder.autocast():
                for name, reader in readers.items():
                    output = run_in_parts(reader.head, parts[reader.selection], activation_gb)
                    collectors[name].add(seen[reader.selection], output)
            if bar is not None:
                bar.update(len(batch.windows))
    return {name: collector.logits() for name, collector in collectors.items()}


def walk_windows(
    encoder: Encoder,
    windows: Windows,
    readers: Mapping[str, Reader],
    *,
    opened: Callable[[Selection], States] | None = None,
    label: str = "",
) -> dict[str, Logits]:
    """Logits of heads that may read different states of `windows`. `opened` gives the states of a selection; by default
    they come straight from the encoder, and no more of them than the heads use: the last state alone, or the first
    token alone, where a head reads no other."""
    num_states = encoder.num_states
    # Where the first token is the classification token, heads that read no other get it alone.
    first = opened is None and not windows.null.any()
    tokens, own = _CPU_TOKENS if encoder.device.type == "cpu" else 0, dict[str, Reader]()
    for name, reader in readers.items():
        last_only, cls_only = opened is None and reader.head.last_only, first and reader.head.cls_only
        own[name] = replace(reader, selection=_narrowed(reader.selection, num_states, last_only, cls_only))
    selection = wide_selection(frozenset(reader.selection for reader in own.values()), num_states)
    if opened is None:
        states = LiveStates(encoder, windows, tokens_per_call=tokens, selection=selection)
    else:
        states = opened(selection)
    return walk(states, own, label=label)


@lru_cache(maxsize=1024)  # a short text is read in the time that working this out for ten heads would take
def _narrowed(selection: Selection, num_states: int, last_only: bool, cls_only: bool) -> Selection:
    layers = selection.numbers(num_states)[-1:] if last_only else selection.layers
    positions = "cls" if cls_only else selection.positions
    return replace(selection, layers=layers, positions=positions).resolved(num_states)


@lru_cache(maxsize=1024)
def wide_selection(selections: frozenset[Selection], num_states: int) -> Selection:
    """All that any of `selections` asks for."""
    layers = sorted({number for selection in selections for number in selection.numbers(num_states)})
    positions: set[Any] = {selection.positions for selection in selections}
    return Selection(tuple(layers), positions.pop() if len(positions) == 1 else "all").resolved(num_states)


def narrow(batch: StateBatch, source: States, selection: Selection) -> StateBatch:
    """The part of a batch of `source` that `selection` would give; targets stay those of whole windows."""
    states, mask, bounds, cls = batch.states, batch.mask, batch.bounds, batch.cls
    numbers = selection.numbers(source.encoder.num_states)
    if numbers == source.layers and selection.positions == source.selection.positions:
        return batch
    if selection.positions != source.selection.positions:  # the classification token out of all tokens
        null = torch.zeros_like(bounds[:, 0]) if cls is None else cls
        states, mask, cls = batch.first[:, :, None], mask[:, :1], None
        bounds = (null[:, None] < bounds).long()  # tokens that are left before them
    if numbers != source.layers:
        places = [source.layers.index(number) for number in numbers]
        run = slice(places[0], places[-1] + 1)
        states = states[run] if len(places) == run.stop - run.start else states[places]
    pooled = batch.pooled if source.encoder.num_states - 1 in numbers else None
    return replace(batch, states=states, mask=mask, bounds=bounds, pooled=pooled, cls=cls)


def run_in_parts(head: Head, batch: StateBatch, activation_gb: float) -> Tensor:
    """The head's output for the batch, as many windows at once as fit."""
    B, T = batch.mask.shape
    rows = B
    small = batch.states.numel() * batch.states.element_size() < min(_SMALL, activation_gb * 4e6)
    if B > 1 and not small and isinstance(head, Head):  # a plain module is not measured
        rows = max(rows_at_once(head, T, activation_gb) // head.windows, 1) * head.windows
    if rows >= B:
        return head(batch)
    return torch.cat([head(batch.rows(slice(i, i + rows))) for i in range(0, B, rows)])
