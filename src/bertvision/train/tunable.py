"""What is trained together, an encoder (or its top) and a head, and where its batches come from.

    tokens ──► Whole: every layer ──► states ──┐
                                               ├──► head ──► logits ──► loss of each window
    state at the cut ──► top k layers ─────────┘

Both take a batch as a dict of tensors, the same names in every batch, so that a step can be captured once for a shape
and replayed. Token ids live on the device as a whole: a batch is gathered there, and only the numbers of its windows
travel.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertvision.data.windows import Windows
from bertvision.encoder.cut import Top
from bertvision.encoder.encoder import Encoder, read_tokens
from bertvision.feed.batches import Feed, StateBatch, widths
from bertvision.heads.base import Head, run_head
from bertvision.heads.digest import DigestHead
from bertvision.shapes import Bool, Float, Int
from bertvision.tasks.span.loss import span_loss

__all__ = ["Inputs", "Source", "StateSource", "TokenSource", "TopBody", "Tunable", "Whole"]

Inputs = dict[str, Tensor]
"""A batch: mask (B, T), labels (B, 2), bounds (B, 2), and what the body reads."""

_GPU_WIDTH = 16
"""Batches on a GPU are padded to multiples of this: pads are trained on, so closer than where they are only encoded."""


class Whole(nn.Module):
    """Every layer of an encoder: ids and types (B, T) -> its states."""

    def __init__(self, encoder: Encoder, *, last_only: bool) -> None:
        super().__init__()
        self.model = encoder.model
        self.passes_types, self.last_only = encoder.passes_types, last_only

    def forward(self, inputs: Inputs) -> tuple[Float[Tensor, "B T H"], ...]:
        types = inputs["types"] if self.passes_types else None
        return read_tokens(self.model, inputs["ids"], inputs["mask"], types, last_only=self.last_only)


class TopBody(nn.Module):
    """The layers above a cut: their input (B, T, H), perhaps with a digest's numbers behind it -> the cut's state and
    those above it."""

    def __init__(self, top: Top, hidden: int) -> None:
        super().__init__()
        self.top, self.hidden = top, hidden

    def forward(self, inputs: Inputs) -> tuple[Float[Tensor, "B T H"], ...]:
        state = inputs["state"][..., : self.hidden]
        return self.top(state.to(next(self.top.parameters()).dtype), inputs["mask"])


class Tunable(nn.Module):
    """A body that gives states and a head that reads them."""

    def __init__(self, body: Whole | TopBody, head: Head) -> None:
        super().__init__()
        self.body, self.head = body, head

    def train(self, mode: bool = True) -> "Tunable":
        """A body of which nothing trains is read as it is used later: without dropout."""
        super().train(mode)
        if not any(p.requires_grad for p in self.body.parameters()):
            self.body.eval()
        return self

    def forward(self, states: tuple[Float[Tensor, "B T H"], ...], inputs: Inputs) -> Float[Tensor, " B"]:
        """The loss of each window."""
        mask, labels, bounds = (inputs[name] for name in ("mask", "labels", "bounds"))
        batch = StateBatch(torch.stack(states), mask, labels, np.zeros(len(mask), np.int64), bounds)
        if isinstance(self.head, DigestHead) and isinstance(self.body, TopBody):
            numbers = inputs["state"][..., self.body.hidden :]
            extras = {name: getattr(batch, name) for name in self.head.extras}
            logits = self.head.from_parts(numbers, batch.states, mask, **extras)
        else:
            logits = run_head(self.head, batch)
        return span_loss(logits, mask, labels, reduction="none")


# ---- batches


class Source(Protocol):
    """Batches of windows on the device, from number `start` on."""

    def stream(self, batches: Sequence[NDArray[np.int64]], *, start: int = 0) -> Iterator[Inputs]: ...


class TokenSource:
    """Tokens of windows; the flat arrays lie on the encoder's device."""

    def __init__(self, encoder: Encoder, windows: Windows) -> None:
        place = encoder.device
        self.pad_id, self.device = encoder.pad_id, place
        self.widths = widths(encoder, windows.lengths, multiple=_GPU_WIDTH)
        self.ids = torch.from_numpy(windows.ids).to(place)  # (N,)
        self.types = torch.from_numpy(windows.types).to(place)  # (N,)
        self.begins = torch.from_numpy(windows.offsets[:-1]).to(place)  # (W,)
        self.lengths = torch.from_numpy(windows.lengths).to(place)  # (W,)
        self.labels = torch.from_numpy(windows.labels.astype(np.int64)).to(place)
        self.bounds = torch.from_numpy(windows.context.astype(np.int64)).to(place)

    def stream(self, batches: Sequence[NDArray[np.int64]], *, start: int = 0) -> Iterator[Inputs]:
        for indices in batches[start:]:
            yield self._batch(self._send(indices), int(self.widths[indices].max()))

    def _send(self, indices: NDArray[np.int64]) -> Int[Tensor, " B"]:
        numbers = torch.from_numpy(np.asarray(indices, dtype=np.int64))
        if self.device.type == "cuda":  # from pinned memory the host does not wait for the device
            numbers = numbers.pin_memory()
        return numbers.to(self.device, non_blocking=True)

    def _batch(self, numbers: Int[Tensor, " B"], width: int) -> Inputs:
        place = torch.arange(width, device=self.device)
        mask: Bool[Tensor, "B T"] = place < self.lengths[numbers][:, None]
        flat = torch.where(mask, self.begins[numbers][:, None] + place, 0)  # (B, T)
        return {
            "ids": torch.where(mask, self.ids[flat].long(), self.pad_id),
            "types": torch.where(mask, self.types[flat].long(), 0),
            "mask": mask,
            "labels": self.labels[numbers],
            "bounds": self.bounds[numbers],
        }


class StateSource:
    """States at a cut, from any feed of a lower encoder."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed

    def stream(self, batches: Sequence[NDArray[np.int64]], *, start: int = 0) -> Iterator[Inputs]:
        for batch in self.feed.stream(batches, start=start):
            names = ("mask", "labels", "bounds")
            yield {"state": batch.states[0]} | {name: getattr(batch, name) for name in names}
