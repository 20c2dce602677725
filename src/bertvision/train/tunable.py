"""What is trained together, an encoder and a head for each task, and where its batches come from.

    tokens ──► Whole: every layer ──► states ──► the task's head ──► logits ──► loss of each window

A batch is a dict of tensors with the same names every time, so that a step can be captured once for a shape and
replayed. Token ids live on the device as a whole: a batch is gathered there, and only the numbers of its windows
travel.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertvision.data.windows import Windows
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.stack import pooled_by, read_tokens
from bertvision.heads.base import Head
from bertvision.shapes import Bool, Float, Int
from bertvision.states.base import target_tensor, widths
from bertvision.states.batch import StateBatch
from bertvision.tasks.base import Task

__all__ = ["BodyStates", "Inputs", "TokenSource", "Tunable", "Whole"]

Inputs = dict[str, Tensor]
"""A batch: ids, types and mask (B, T), targets (B, K), bounds (B, 2), and cls (B,) where it is not the first token."""
BodyStates = tuple[tuple[Float[Tensor, "B T H"], ...], Float[Tensor, "B H"] | None]
"""What a body gives: states, and the pooler's vectors where a head reads them."""

_GPU_WIDTH = 16
"""Batches on a GPU are padded to multiples of this: pads are trained on, so closer than where they are only encoded."""


class Whole(nn.Module):
    """Every layer of an encoder: ids and types (B, T) -> its states."""

    def __init__(self, encoder: Encoder, *, last_only: bool, pooled: bool = False) -> None:
        super().__init__()
        self.model = encoder.model
        self.passes_types, self.last_only, self.pooled = encoder.passes_types, last_only, pooled

    def forward(self, inputs: Inputs) -> BodyStates:
        types = inputs["types"] if self.passes_types else None
        states = read_tokens(self.model, inputs["ids"], inputs["mask"], types, last_only=self.last_only)
        return states, pooled_by(self.model, states[-1]) if self.pooled else None


class Tunable(nn.Module):
    """A body that gives states and the heads that read them, one a task."""

    def __init__(self, body: Whole, heads: Sequence[Head], tasks: Sequence[Task]) -> None:
        super().__init__()
        self.body, self.heads, self.tasks = body, nn.ModuleList(heads), list(tasks)

    def head(self, job: int = 0) -> Head:
        """The head of one task."""
        head = self.heads[job]
        assert isinstance(head, Head)
        return head

    def train(self, mode: bool = True) -> "Tunable":
        """A body of which nothing trains is read as it is used later: without dropout."""
        super().train(mode)
        if not any(p.requires_grad for p in self.body.parameters()):
            self.body.eval()
        return self

    def forward(self, given: BodyStates, inputs: Inputs, job: int = 0) -> Float[Tensor, " B"]:
        """The loss of each window of a batch of task number `job`."""
        states, pooled = given
        head = self.head(job)
        mask, targets, bounds = (inputs[name] for name in ("mask", "targets", "bounds"))
        windows = np.zeros(len(mask), np.int64)
        batch = StateBatch(torch.stack(states), mask, targets, windows, bounds, pooled, inputs.get("cls"))
        return self.tasks[job].loss(head(batch), batch)


# ---- batches


class TokenSource:
    """Batches of windows' tokens; the flat arrays lie on the encoder's device."""

    def __init__(self, encoder: Encoder, windows: Windows) -> None:
        place = encoder.device
        self.pad_id, self.device = encoder.pad_id, place
        self.widths = widths(encoder, windows.lengths, multiple=_GPU_WIDTH)
        self.ids = torch.from_numpy(windows.ids).to(place)  # (N,)
        self.types = torch.from_numpy(windows.types).to(place)  # (N,)
        self.begins = torch.from_numpy(windows.offsets[:-1]).to(place)  # (W,)
        self.lengths = torch.from_numpy(windows.lengths).to(place)  # (W,)
        self.labels = target_tensor(windows.labels, place)
        self.bounds = torch.from_numpy(windows.context.astype(np.int64)).to(place)
        null = windows.null.astype(np.int64)
        self.cls = torch.from_numpy(null).to(place) if null.any() else None

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
        cls = {} if self.cls is None else {"cls": self.cls[numbers]}
        return cls | {
            "ids": torch.where(mask, self.ids[flat].long(), self.pad_id),
            "types": torch.where(mask, self.types[flat].long(), 0),
            "mask": mask,
            "targets": self.labels[numbers],
            "bounds": self.bounds[numbers],
        }
