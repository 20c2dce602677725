"""MPNet's relative positions, looked up once for each width.

Some versions of transformers work out on the CPU which of its few biases every pair of positions takes, in every
pass, and send it to the device. A GPU then waits for the host, and the pass cannot be captured as a CUDA graph. Which
bias a pair takes follows from the width alone, so it is kept: numbers stay the same, bit by bit.
"""

from typing import Any

import torch
from torch import Tensor

from bertvision.shapes import Float

__all__ = ["keep_position_buckets"]

_KEPT: dict[type, type] = {}
"""Classes of encoders by the class they were made from: one for all models of a kind."""


def keep_position_buckets(model: Any) -> None:
    """Let a model with relative positions of this kind keep them; others stay as they are."""
    encoder = getattr(model, "encoder", None)
    kind = type(encoder)
    if kind in _KEPT.values() or not {"compute_position_bias", "relative_position_bucket"} <= set(
        dir(encoder)
    ):
        return
    if kind not in _KEPT:
        _KEPT[kind] = _keeping(kind)
    encoder.__class__ = _KEPT[kind]


def _keeping(kind: type) -> type:
    """A subclass of an encoder's class that looks each width up once."""

    class Keeping(kind):
        def compute_position_bias(
            self, x: Float[Tensor, "B T H"], position_ids: Tensor | None = None, num_buckets: int = 32
        ) -> Float[Tensor, "B heads T T"]:
            if position_ids is not None:
                return super().compute_position_bias(x, position_ids, num_buckets)
            kept: dict[Any, Tensor] = self.__dict__.setdefault("_kept_buckets", {})
            key = (x.shape[1], num_buckets, x.device)
            if key not in kept:
                place = torch.arange(x.shape[1])
                buckets = self.relative_position_bucket(
                    place[None, :] - place[:, None], num_buckets=num_buckets
                )
                kept[key] = buckets.to(x.device)
            bias = self.relative_attention_bias(kept[key]).permute(2, 0, 1)[None]  # (1, heads, T, T)
            return bias.expand(x.shape[0], -1, -1, -1).contiguous()

    Keeping.__name__ = Keeping.__qualname__ = kind.__name__
    return Keeping
