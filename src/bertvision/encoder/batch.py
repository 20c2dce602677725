"""Windows become padded batches of tokens."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertvision.data.windows import Windows
from bertvision.shapes import Bool, Int


@dataclass(frozen=True)
class TokenBatch:
    ids: Int[Tensor, "B T"]
    mask: Bool[Tensor, "B T"]
    """True on real tokens."""
    types: Int[Tensor, "B T"]
    windows: NDArray[np.int64]
    """(B,) which windows these are."""


def padded_positions(
    windows: Windows, indices: NDArray[np.int64], *, width: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Where the tokens of the windows at `indices` stand in the flat arrays (B, T), and which are real (B, T).

    Pads point at their window's first token, so that a batch is one gather without a Python loop. T is the
    longest window unless `width` says more.
    """
    begins = windows.offsets[indices]  # (B,)
    lengths = windows.offsets[indices + 1] - begins  # (B,)
    columns = np.arange(width or lengths.max(initial=1))  # (T,)
    mask = columns < lengths[:, None]  # (B, T)
    return begins[:, None] + np.where(mask, columns, 0), mask


def collate(
    windows: Windows,
    indices: NDArray[np.int64],
    *,
    pad_id: int,
    device: torch.device,
    width: int | None = None,
) -> TokenBatch:
    """Pad the windows at `indices` to the longest of them, or to `width`."""
    flat, mask = padded_positions(windows, indices, width=width)
    ids, types = windows.ids[flat], windows.types[flat]  # copies, of 4 bytes and 1 byte a token
    ids[~mask], types[~mask] = pad_id, 0
    sent = [torch.from_numpy(array).to(device, non_blocking=True) for array in (ids, mask, types)]
    return TokenBatch(sent[0].long(), sent[1], sent[2].long(), np.asarray(indices, dtype=np.int64))
