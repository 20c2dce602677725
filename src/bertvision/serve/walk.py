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
from bertvision.heads.base import Head
from bertvision.serve.sinks import SpanSink, TextSink
from bertvision.states.batch import StateBatch
from bertvision.states.config import Selection
from bertvision.states.live import LiveStates
from bertvision.states.plan import cut_by_tokens, group_rows
from bertvision.tasks.kinds import SpanTask, Task
from bertvision.train.evaluate import Logits, run_in_parts

__all__ = ["Reader", "narrow", "walk", "wide_selection"]

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
    selection: Selection
    task: Task


@lru_cache(maxsize=1024)
def wide_selection(selections: frozenset[Selection], num_states: int) -> Selection:
    """All that any of `readings` asks for; none of them may be of paragraphs alone."""
    layers = sorted({number for selection in selections for number in selection.numbers(num_states)})
    positions = "cls" if all(selection.positions == "cls" for selection in selections) else "all"
    return Selection(tuple(layers), positions).resolved(num_states)


def narrow(batch: StateBatch, source: LiveStates, selection: Selection) -> StateBatch:
    """The part of a batch of `source` that `selection` would give; targets stay those of whole windows."""
    states, mask, bounds, cls = batch.states, batch.mask, batch.bounds, batch.cls
    numbers = selection.numbers(source.encoder.num_states)
    if numbers == source.layers and selection.positions == source.selection.positions:
        return batch
    if selection.positions != source.selection.positions:  # [CLS] out of all tokens
        null = torch.zeros_like(bounds[:, 0]) if cls is None else cls
        states, mask, cls = batch.first[:, :, None], mask[:, :1], None
        bounds = (null[:, None] < bounds).long()  # tokens that are left before them
    if numbers != source.layers:
        places = [source.layers.index(number) for number in numbers]
        run = slice(places[0], places[-1] + 1)
        states = states[run] if len(places) == run.stop - run.start else states[places]
    pooled = batch.pooled if source.encoder.num_states - 1 in numbers else None
    return replace(batch, states=states, mask=mask, bounds=bounds, pooled=pooled, cls=cls)


@lru_cache(maxsize=1024)  # a short text is read in the time that working this out for ten heads would take
def _handed_out(selection: Selection, num_states: int, *, last_only: bool, cls_first: bool) -> Selection:
    """What has to be handed out for a head: the last state alone where it reads no other, and the first token alone
    where it reads no other and that is [CLS]."""
    if last_only:
        selection = replace(selection, layers=selection.numbers(num_states)[-1:])
    return replace(selection, positions="cls") if cls_first else selection


@torch.no_grad()
def walk(
    encoder: Encoder, windows: Windows, readers: Mapping[str, Reader], *, group: int = 1, label: str = ""
) -> dict[str, Logits]:
    """Logits of every head on all windows; `group` neighbouring windows are one example of a label or score.

    With a `label` its progress is shown.
    """
    first = not windows.null.any()
    selections = {
        name: _handed_out(
            reader.selection,
            encoder.num_states,
            last_only=reader.head.last_only,
            cls_first=reader.head.cls_only and first,
        )
        for name, reader in readers.items()
    }
    shared = [selection for selection in selections.values() if selection.positions != "context"]
    walks = dict.fromkeys(selection for selection in selections.values() if selection.positions == "context")
    if shared:
        walks[wide_selection(frozenset(shared), encoder.num_states)] = None
    found: dict[str, Logits] = {}
    for selection in walks:
        states = LiveStates(
            encoder,
            windows,
            tokens_per_call=_CPU_TOKENS if encoder.device.type == "cpu" else 0,
            selection=selection,
        )
        of_context = selection.positions == "context"
        own = {
            name: theirs
            for name, theirs in selections.items()
            if (theirs == selection if of_context else theirs.positions != "context")
        }
        texts = TextSink(len(windows) // group, group)
        spans = {
            name: SpanSink(windows, states.kept, states.selection.positions)
            for name in own
            if isinstance(readers[name].task, SpanTask)
        }
        with progress(label, len(windows), unit="windows") if label else nullcontext() as bar:
            for batch in map(states.read, _plan(states, group)):
                parts = {
                    one: batch if of_context else narrow(batch, states, one) for one in set(own.values())
                }
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


def _plan(states: LiveStates, group: int) -> list[NDArray[np.int64]]:
    """The windows of each encoder call, sorted by length; those of an example stay together."""
    lengths = states.widths.reshape(-1, group).max(axis=1) * group
    return [group_rows(units, group) for units in cut_by_tokens(lengths, states.tokens_per_call)]


def _run(head: Head, batch: StateBatch) -> Tensor:
    """The head's output, as many windows at once as fit."""
    if batch.states.numel() * batch.states.element_size() < _SMALL:
        return head(batch)
    return run_in_parts(head, batch, _ACTIVATION_GB)
