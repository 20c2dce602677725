"""One walk over the encoder for heads of any task that read different states of the same windows.

Heads are fitted on what their folder names: all tokens or the [CLS] alone, all layers or some. A walk hands out the
union, once, and `narrow` cuts each head's part out of it. A head that reads the first token anyway (`cls_only`) counts
as one of [CLS]: where all do, the states of the other tokens are never put together. Heads of paragraphs alone
(positions "context") have a walk of their own.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertvision.console import progress
from bertvision.data.windows import Windows
from bertvision.encoder.encoder import Encoder
from bertvision.feed.batches import StateBatch
from bertvision.feed.live import LiveFeed
from bertvision.feed.plan import cut_by_tokens, group_rows
from bertvision.feed.reading import Reading
from bertvision.heads.base import Head, run_head
from bertvision.serve.sinks import SpanSink, TextSink
from bertvision.tasks.kinds import SpanTask, Task
from bertvision.train.evaluate import Logits, run_in_parts

__all__ = ["Reader", "narrow", "walk", "wide_reading"]

_ACTIVATION_GB = 4.0
_CPU_TOKENS = 256
"""Tokens of one encoder call on a CPU, pads included: what is computed between two layers then stays in the
processor's cache, and windows share a call only with others of their length. Long calls take a quarter more time."""
_SMALL = 16e6
"""Bytes of states that any head can read at once: it would have to keep hundreds of times as many to fill the limit."""


@dataclass(frozen=True)
class Reader:
    """A head, what it reads and what its logits mean."""

    head: Head
    reading: Reading
    task: Task


@lru_cache(maxsize=1024)
def wide_reading(readings: frozenset[Reading], num_states: int) -> Reading:
    """All that any of `readings` asks for; none of them may be of paragraphs alone."""
    layers = sorted({number for reading in readings for number in reading.numbers(num_states)})
    positions = "cls" if all(reading.positions == "cls" for reading in readings) else "all"
    return Reading(tuple(layers), positions).resolved(num_states)


def narrow(batch: StateBatch, feed: LiveFeed, reading: Reading) -> StateBatch:
    """The part of a batch of `feed` that a feed with this reading would give; labels stay those of whole windows."""
    states, mask, bounds = batch.states, batch.mask, batch.bounds
    numbers = reading.numbers(feed.encoder.num_states)
    if numbers == feed.layers and reading.positions == feed.reading.positions:
        return batch
    if reading.positions != feed.reading.positions:  # [CLS] out of all tokens
        own = feed.windows.null[batch.windows].astype(np.int64)  # (B,)
        null = torch.from_numpy(own).to(states.device)
        if own.any():
            rows = torch.arange(len(null), device=states.device)
            states, mask = states[:, rows, null][:, :, None], mask[rows, null][:, None]
        else:  # the first token: a view of it costs nothing
            states, mask = states[:, :, :1], mask[:, :1]
        bounds = (null[:, None] < bounds).long()  # tokens that are left before them
    if numbers != feed.layers:
        places = [feed.layers.index(number) for number in numbers]
        run = slice(places[0], places[-1] + 1)
        states = states[run] if len(places) == run.stop - run.start else states[places]
    pooled = batch.pooled if feed.encoder.num_states - 1 in numbers else None
    return replace(batch, states=states, mask=mask, bounds=bounds, pooled=pooled)


@lru_cache(maxsize=1024)  # a short text is read in the time that working this out for ten heads would take
def _handed_out(reading: Reading, num_states: int, *, last_only: bool, cls_first: bool) -> Reading:
    """What has to be handed out for a head: the last state alone where it reads no other, and the first token alone
    where it reads no other and that is [CLS]."""
    if last_only:
        reading = replace(reading, layers=reading.numbers(num_states)[-1:])
    return replace(reading, positions="cls") if cls_first else reading


@torch.no_grad()
def walk(
    encoder: Encoder, windows: Windows, readers: Mapping[str, Reader], *, group: int = 1, label: str = ""
) -> dict[str, Logits]:
    """Logits of every head on all windows; `group` neighbouring windows are one example of a label or score.

    With a `label` its progress is shown.
    """
    first = not windows.null.any()
    readings = {
        name: _handed_out(
            reader.reading,
            encoder.num_states,
            last_only=reader.head.last_only,
            cls_first=reader.head.cls_only and first,
        )
        for name, reader in readers.items()
    }
    shared = [reading for reading in readings.values() if reading.positions != "context"]
    walks = dict.fromkeys(reading for reading in readings.values() if reading.positions == "context")
    if shared:
        walks[wide_reading(frozenset(shared), encoder.num_states)] = None
    found: dict[str, Logits] = {}
    for reading in walks:
        feed = LiveFeed(
            encoder,
            windows,
            tokens_per_call=_CPU_TOKENS if encoder.device.type == "cpu" else 0,
            reading=reading,
        )
        of_context = reading.positions == "context"
        own = {
            name: theirs
            for name, theirs in readings.items()
            if (theirs == reading if of_context else theirs.positions != "context")
        }
        texts = TextSink(len(windows) // group, group)
        spans = {
            name: SpanSink(windows, feed.kept, feed.reading.positions)
            for name in own
            if isinstance(readers[name].task, SpanTask)
        }
        with progress(label, len(windows), unit="windows") if label else nullcontext() as bar:
            for batch in map(feed.read, _plan(feed, group)):
                parts = {one: batch if of_context else narrow(batch, feed, one) for one in set(own.values())}
                outputs: dict[str, Tensor] = {}
                with torch.inference_mode(), encoder.autocast():
                    for name, theirs in own.items():
                        output = _run(readers[name].head, parts[theirs])
                        if name in spans:
                            spans[name].add(batch.windows, parts[theirs].mask, output)
                        else:
                            outputs[name] = output
                    texts.add(batch.windows, outputs)
                if bar is not None:
                    bar.advance(len(batch.windows))
        found |= texts.logits() | {name: sink.logits() for name, sink in spans.items()}
    return {name: found[name] for name in readers}


def _plan(feed: LiveFeed, group: int) -> list[NDArray[np.int64]]:
    """The windows of each encoder call, sorted by length; those of an example stay together."""
    lengths = feed.widths.reshape(-1, group).max(axis=1) * group
    return [group_rows(units, group) for units in cut_by_tokens(lengths, feed.tokens_per_call)]


def _run(head: Head, batch: StateBatch) -> Tensor:
    """The head's output, as many windows at once as fit."""
    if batch.states.numel() * batch.states.element_size() < _SMALL:
        return run_head(head, batch)
    return run_in_parts(head, batch, _ACTIVATION_GB)
