"""MPNet without copies from the CPU: then its passes can be captured as CUDA graphs, and no pass waits for the host.

Two things travel in every pass of some versions of transformers. Which of its few biases every pair of positions takes
is worked out on the CPU; it follows from the width alone, so it is kept. And the mask of its eager attention is made
with a number from the CPU; it is handed over ready-made, as what is added to the scores, (B, 1, 1, T). The numbers
stay the same, bit by bit.
"""

from typing import Any

import torch
from torch import Tensor

from bertvision.shapes import Float

_KEPT: dict[type, type] = {}
"""Classes of encoders by the class they were made from: one for all models of a kind."""


def stay_on_device(model: Any) -> None:
    """Spare a model with relative positions of this kind its copies; others stay as they are."""
    encoder = getattr(model, "encoder", None)
    kind = type(encoder)
    if kind in _KEPT.values() or not {"compute_position_bias", "relative_position_bucket"} <= set(
        dir(encoder)
    ):
        return
    if kind not in _KEPT:
        _KEPT[kind] = _keeping(kind)
    encoder.__class__ = _KEPT[kind]
    if getattr(model.config, "_attn_implementation", "") == "eager":
        model.register_forward_pre_hook(_added_mask, with_kwargs=True)


def forget_widths(model: Any) -> None:
    """Undo what `stay_on_device` keeps for every width: where a graph for all widths is traced, none may be known."""
    encoder = getattr(model, "encoder", None)
    for kind, keeping in _KEPT.items():
        if type(encoder) is keeping:
            encoder.__class__ = kind
            encoder.__dict__.pop("_kept_buckets", None)


def _added_mask(
    model: Any, args: tuple[Any, ...], words: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    mask = words.get("attention_mask")
    if mask is None or mask.ndim != 2:
        return args, words
    given = words.get("inputs_embeds")
    dtype = model.get_input_embeddings().weight.dtype if given is None else given.dtype
    lowest = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(
        mask == 0, torch.finfo(dtype).min
    )
    return args, words | {"attention_mask": lowest[:, None, None, :]}


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
