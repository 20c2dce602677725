"""Numbers as they are stored: float32, bfloat16, float16, or int8 with a scale for each token and layer.

int8: x is kept as round(x / s), s = max |x| / 127 over the H numbers of one token in one layer.
"""

import numpy as np
import torch
from torch import Tensor

from bertvision.shapes import Float
from bertvision.states.identity import StateType
from bertvision.states.shard import Encoded

STORED: dict[str, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int8": torch.int8,
}


def encode(states: Float[Tensor, "L n H"], dtype: StateType) -> Encoded:
    """The states as they are stored.

    `OverflowError` where a number is beyond the dtype, `FloatingPointError` where it is NaN or infinite.
    """
    scales = None
    turned = states.transpose(0, 1)  # (n, L, H)
    if dtype == "int8":
        turned = turned.float()
        scale = turned.abs().amax(-1) / 127  # (n, L)
        # A scale that rounds by much would push numbers beyond 127.
        scale = torch.where(scale < torch.finfo(torch.float32).tiny, 0.0, scale)
        safe = torch.where(scale > 0, scale, torch.ones_like(scale))
        turned = (turned / safe[..., None]).round_()
        scales = scale.contiguous().cpu().numpy()
    stored = turned.to(STORED[dtype]).contiguous()
    finite = stored if scales is None else torch.from_numpy(scales)
    if not bool(finite.isfinite().all()):
        raise OverflowError(dtype) if bool(states.isfinite().all()) else FloatingPointError(dtype)
    if dtype == "bf16":
        return stored.view(torch.int16).cpu().numpy().view(np.uint16), scales
    return stored.cpu().numpy(), scales


def load_into(target: Float[Tensor, "L n H"], stored: Tensor, scales: Tensor | None) -> None:
    """Write stored numbers (n, L, H) into a batch, in its dtype; with scales (n, L) they are int8."""
    target.copy_(stored.transpose(0, 1))
    if scales is not None:
        target.mul_(scales.T[..., None])
