"""Windows become padded batches of tokens, and a Hugging Face model's pass makes hidden states of them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertvision.data.windows import Windows
from bertvision.shapes import Bool, Float, Int


@dataclass(frozen=True)
class TokenBatch:
    ids: Int[Tensor, "B T"]
    mask: Bool[Tensor, "B T"]
    """True on real tokens."""
    types: Int[Tensor, "B T"]
    windows: NDArray[np.int64]
    """(B,) which windows these are."""


def padded_positions(
    offsets: NDArray[np.int64], indices: NDArray[np.int64], *, width: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Where the tokens of some windows stand in the flat arrays (B, T), and which are real (B, T).

    Pads point at their window's first token, so that a batch is one gather without a Python loop.
    """
    begins = offsets[indices]  # (B,)
    lengths = offsets[indices + 1] - begins  # (B,)
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
    flat, mask = padded_positions(windows.offsets, indices, width=width)
    ids, types = windows.ids[flat], windows.types[flat]  # copies, of 4 bytes and 1 byte a token
    ids[~mask], types[~mask] = pad_id, 0
    sent = [torch.from_numpy(array).to(device, non_blocking=True) for array in (ids, mask, types)]
    return TokenBatch(sent[0].long(), sent[1], sent[2].long(), np.asarray(indices, dtype=np.int64))


def read_tokens(
    model: Any,
    ids: Int[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    types: Int[Tensor, "B T"] | None,
    *,
    last_only: bool = False,
) -> tuple[Float[Tensor, "B T H"], ...]:
    """All hidden states of a Hugging Face model, or the last alone; gradients as usual."""
    inputs = {"input_ids": ids, "attention_mask": mask.long()}
    if types is not None:
        inputs["token_type_ids"] = types
    if last_only:
        return (model(**inputs).last_hidden_state,)
    # The last entry is the state after the final norm; it matters for pre-norm encoders.
    return model(**inputs, output_hidden_states=True).hidden_states


def pooled_by(
    model: Any, last: Float[Tensor, "B T H"], cls: Int[Tensor, " B"] | None = None
) -> Float[Tensor, "B H"] | None:
    """The pooler's vector of each window from the last state; None without a pooler.

    `cls` says where each window's classification token stands; None means first.
    """
    pooler = getattr(model, "pooler", None)
    if pooler is None:
        return None
    if cls is not None:
        # Every pooler reads the first token.
        last = last[torch.arange(len(cls), device=cls.device), cls][:, None]
    if isinstance(pooler, nn.Linear):  # ALBERT keeps its activation beside it
        return model.pooler_activation(pooler(last[:, 0]))
    return pooler(last)


def in_bf16(model: Any) -> Any:
    """Cast a model's weights in place; what its code computes anew, such as rotary frequencies, keeps its precision."""
    kept = [
        (module, name, module._buffers[name])
        for module in model.modules()
        for name in module._non_persistent_buffers_set
    ]
    model.to(torch.bfloat16)
    for module, name, buffer in kept:
        module._buffers[name] = buffer
    return model
