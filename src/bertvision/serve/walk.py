"""One walk over the encoder for heads of any task that read different states of the same windows.

Heads are fitted on what their folder names: all tokens or the [CLS] alone, all layers or some. A walk hands out the
union, once, and `narrow` cuts each head's part out of it. A head that reads the first token anyway (`cls_only`) counts
as one of [CLS]: where all do, the states of the other tokens are never put together. Heads of paragraphs alone
(positions "context") have a walk of their own.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertvision.console import progress
from bertvision.data.kept import kept_tokens
from bertvision.data.windows import Windows
from bertvision.encoder.batch import padded_positions
from bertvision.encoder.encoder import Encoder
from bertvision.feed.batches import StateBatch
from bertvision.feed.live import LiveFeed
from bertvision.feed.plan import cut_by_tokens, group_rows
from bertvision.feed.reading import Reading
from bertvision.heads.base import Head, run_head
from bertvision.tasks.kinds import SpanTask, Task
from bertvision.tasks.span.logits import SpanLogits
from bertvision.tasks.text.logits import TextLogits
from bertvision.train.evaluate import NOT_READ, Logits, marginals, run_in_parts

__all__ = ["Reader", "narrow", "walk", "wide_reading"]

_ACTIVATION_GB = 4.0
_SMALL = 16e6
"""Bytes of states that any head can read at once: it would have to keep hundreds of times as many to fill the limit."""


@dataclass(frozen=True)
class Reader:
    """A head, what it reads and what its logits mean."""

    head: Head
    reading: Reading
    task: Task


def wide_reading(readings: Sequence[Reading], num_states: int) -> Reading:
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
        null = torch.from_numpy(feed.windows.null[batch.windows].astype(np.int64)).to(states.device)  # (B,)
        rows = torch.arange(len(null), device=states.device)
        states, mask = states[:, rows, null][:, :, None], mask[rows, null][:, None]
        bounds = (null[:, None] < bounds).long()  # tokens that are left before them
    if numbers != feed.layers:
        states = states[[feed.layers.index(number) for number in numbers]]
    pooled = batch.pooled if feed.encoder.num_states - 1 in numbers else None
    return replace(batch, states=states, mask=mask, bounds=bounds, pooled=pooled)


def _read_by(reader: Reader, windows: Windows) -> Reading:
    """What has to be handed out for a head: the first token alone where it reads no other and that is [CLS]."""
    if reader.head.cls_only and not windows.null.any():
        return replace(reader.reading, positions="cls")
    return reader.reading


@torch.no_grad()
def walk(
    encoder: Encoder, windows: Windows, readers: Mapping[str, Reader], *, group: int = 1, label: str = ""
) -> dict[str, Logits]:
    """Logits of every head on all windows; `group` neighbouring windows are one example of a label or score.

    With a `label` its progress is shown.
    """
    readings = {name: _read_by(reader, windows) for name, reader in readers.items()}
    shared = [reading for reading in readings.values() if reading.positions != "context"]
    walks = dict.fromkeys(reading for reading in readings.values() if reading.positions == "context")
    if shared:
        walks[wide_reading(shared, encoder.num_states)] = None
    found: dict[str, Logits] = {}
    for reading in walks:
        feed = LiveFeed(encoder, windows, reading=reading)
        of_context = reading.positions == "context"
        own = {
            name: theirs
            for name, theirs in readings.items()
            if (theirs == reading if of_context else theirs.positions != "context")
        }
        texts = _Texts(len(windows) // group, group)
        spans = {name: _Spans(feed) for name in own if isinstance(readers[name].task, SpanTask)}
        with progress(label, len(windows), unit="windows") if label else nullcontext() as bar:
            for call in _calls(feed, group):
                batch = feed.read(call)
                parts = {one: batch if of_context else narrow(batch, feed, one) for one in set(own.values())}
                outputs: dict[str, Tensor] = {}
                with torch.inference_mode(), encoder.autocast():
                    for name, theirs in own.items():
                        output = _run(readers[name].head, parts[theirs])
                        if name in spans:
                            spans[name].add(parts[theirs], output)
                        else:
                            outputs[name] = output
                    texts.add(batch, outputs)
                if bar is not None:
                    bar.advance(len(call))
        found |= texts.logits() | {name: sink.logits() for name, sink in spans.items()}
    return {name: found[name] for name in readers}


def _calls(feed: LiveFeed, group: int) -> list[NDArray[np.int64]]:
    """The windows of each encoder call; those of an example stay together."""
    lengths = feed.widths.reshape(-1, group).max(axis=1) * group
    return [group_rows(units, group) for units in cut_by_tokens(lengths, feed.tokens_per_call)]


def _run(head: Head, batch: StateBatch) -> Tensor:
    """The head's output, as many windows at once as fit."""
    if batch.states.numel() * batch.states.element_size() < _SMALL:
        return run_head(head, batch)
    return run_in_parts(head, batch, _ACTIVATION_GB)


class _Texts:
    """Collects rows of logits of all heads side by side, so that a device is asked once a batch for all of them."""

    def __init__(self, rows: int, group: int) -> None:
        self._rows, self._group = rows, group
        self._columns: dict[str, int] = {}
        self._values = np.zeros((rows, 0), np.float32)

    def add(self, batch: StateBatch, outputs: Mapping[str, Tensor]) -> None:
        """(B / group, C) of every head."""
        if not outputs:
            return
        values = torch.cat([output.float() for output in outputs.values()], dim=1).cpu().numpy()
        if not self._columns:
            self._columns = {name: output.shape[1] for name, output in outputs.items()}
            self._values = np.empty((self._rows, values.shape[1]), np.float32)
        self._values[batch.windows[:: self._group] // self._group] = values

    def logits(self) -> dict[str, Logits]:
        ends = np.cumsum([0, *self._columns.values()]).tolist()
        places = zip(self._columns, ends[:-1], ends[1:], strict=True)
        return {name: TextLogits(self._values[:, begin:end]) for name, begin, end in places}


class _Spans:
    """Collects logits of tokens, (B, T, 2) at a time, or (B, T, 2 + 2r) of heads that score pairs of tokens."""

    def __init__(self, feed: LiveFeed) -> None:
        self._feed = feed
        self._read: NDArray[np.int64] | None = None  # (kept tokens,) where each stands in the whole windows
        if feed.kept is not feed.windows:
            self._read = np.flatnonzero(kept_tokens(feed.windows, feed.reading.positions))
        self._both = np.full((2, feed.windows.num_tokens), NOT_READ, np.float32)
        self._pairs: NDArray[np.float32] | None = None

    def add(self, batch: StateBatch, output: Tensor) -> None:
        flat, mask = padded_positions(self._feed.kept, batch.windows)
        own = flat[mask] if self._read is None else self._read[flat[mask]]
        if output.shape[-1] > 2:
            if self._pairs is None:
                self._pairs = np.zeros((self._feed.windows.num_tokens, output.shape[-1]), np.float32)
                self._pairs[:, :2] = NOT_READ
            self._pairs[own] = output.float()[batch.mask].cpu().numpy()
            output = marginals(output, batch.mask)
        self._both[:, own] = output.float()[batch.mask].T.cpu().numpy()

    def logits(self) -> Logits:
        return SpanLogits(start=self._both[0], end=self._both[1], pairs=self._pairs)
