"""Where the outputs of heads, a batch of windows at a time, become logits of all windows."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertvision.data.kept import Positions, kept_tokens
from bertvision.data.windows import Windows
from bertvision.encoder.batch import padded_positions
from bertvision.shapes import Bool
from bertvision.tasks.span.logits import SpanLogits
from bertvision.tasks.text.logits import TextLogits
from bertvision.train.evaluate import NOT_READ, Logits, marginals

__all__ = ["SpanSink", "TextSink"]


class TextSink:
    """Collects rows of logits of all heads side by side, so that a device is asked once a batch for all of them."""

    def __init__(self, rows: int, group: int) -> None:
        self._rows, self._group = rows, group
        self._columns: dict[str, int] = {}
        self._values = np.zeros((rows, 0), np.float32)

    def add(self, windows: NDArray[np.int64], outputs: Mapping[str, Tensor]) -> None:
        """(B / group, C) of every head, for these windows."""
        if not outputs:
            return
        values = torch.cat([output.float() for output in outputs.values()], dim=1).cpu().numpy()
        if not self._columns:
            self._columns = {name: output.shape[1] for name, output in outputs.items()}
            self._values = np.empty((self._rows, values.shape[1]), np.float32)
        self._values[windows[:: self._group] // self._group] = values

    def logits(self) -> dict[str, Logits]:
        ends = np.cumsum([0, *self._columns.values()]).tolist()
        places = zip(self._columns, ends[:-1], ends[1:], strict=True)
        return {name: TextLogits(self._values[:, begin:end]) for name, begin, end in places}


class SpanSink:
    """Collects logits of tokens, (B, T, 2) at a time, or (B, T, 2 + 2r) of heads that score pairs of tokens."""

    def __init__(self, windows: Windows, kept: Windows, positions: Positions) -> None:
        """`kept` are the tokens of `windows` that are read, those at `positions`."""
        self._windows, self._kept = windows, kept
        self._read: NDArray[np.int64] | None = None  # (kept tokens,) where each stands in the whole windows
        if kept is not windows:
            self._read = np.flatnonzero(kept_tokens(windows, positions))
        self._both = np.full((2, windows.num_tokens), NOT_READ, np.float32)
        self._pairs: NDArray[np.float32] | None = None

    def add(self, windows: NDArray[np.int64], mask: Bool[Tensor, "B T"], output: Tensor) -> None:
        """The output for these windows, whose kept tokens `mask` tells from pads."""
        flat, real = padded_positions(self._kept, windows)
        own = flat[real] if self._read is None else self._read[flat[real]]
        if output.shape[-1] > 2:
            if self._pairs is None:
                self._pairs = np.zeros((self._windows.num_tokens, output.shape[-1]), np.float32)
                self._pairs[:, :2] = NOT_READ
            self._pairs[own] = output.float()[mask].cpu().numpy()
            output = marginals(output, mask)
        self._both[:, own] = output.float()[mask].T.cpu().numpy()

    def logits(self) -> Logits:
        return SpanLogits(start=self._both[0], end=self._both[1], pairs=self._pairs)
