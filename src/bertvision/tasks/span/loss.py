"""The span loss: cross-entropy of the start and of the end position, averaged over the two.

Shapes: B windows, T tokens (padded). Pads are outside the softmax and everything is computed in float32,
whatever the logits came in.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from bertvision.shapes import Bool, Float, Int

__all__ = ["span_loss"]


def span_loss(
    logits: Float[Tensor, "B T 2"],
    mask: Bool[Tensor, "B T"],
    labels: Int[Tensor, "B 2"],
    *,
    reduction: Literal["mean", "sum", "none"] = "mean",
    weight: Float[Tensor, " B"] | None = None,
) -> Float[Tensor, "*windows"]:
    """Loss of each window (`none`) or their sum or mean.

    `weight` counts windows more or less, such as those without an answer where the data has too few of
    them; a weighted mean is divided by the sum of the weights.
    """
    # The lowest finite number instead of minus infinity: its probability is 0 just the same, and a row
    # that is all pads (a batch filled up to a fixed size) gives a finite number instead of NaN.
    scores = logits.float().masked_fill(~mask.unsqueeze(-1), torch.finfo(torch.float32).min)
    log_probs = F.log_softmax(scores, dim=1)
    picked = log_probs.gather(1, labels.long().unsqueeze(1)).squeeze(1)  # (B, 2)
    loss = -picked.mean(dim=-1)
    if weight is not None:
        loss = loss * weight
    if reduction == "none":
        return loss
    if reduction == "sum":
        return loss.sum()
    return loss.mean() if weight is None else loss.sum() / weight.sum()
