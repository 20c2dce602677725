"""The span loss: cross-entropy of the start and of the end position, averaged over the two.

A head that scores starts and ends jointly gives every token 2 + 2r numbers: s, e and the factors u and v. Its
pairs have the scores s_i + e_j + u_i . v_j / sqrt(r), and the loss is the cross-entropy of the right pair
among all i <= j (no answer is the null token as both). Half of it is taken: without factors and without
the order of start and end it is then the loss above, on the same scale for clipping and penalties.

Shapes: B windows, T tokens (padded). Pads are outside the softmax and everything is computed in float32,
whatever the logits came in.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from bertvision.shapes import Bool, Float, Int


def span_loss(
    logits: Float[Tensor, "B T outputs"], mask: Bool[Tensor, "B T"], targets: Int[Tensor, "B 2"]
) -> Float[Tensor, " B"]:
    """Loss of each window; of pairs where a token has more than 2 numbers."""
    return (_pair_loss if logits.shape[-1] > 2 else _side_loss)(logits, mask, targets)


# The lowest finite number instead of minus infinity: its probability is 0 just the same, and a row that is
# all pads (a batch filled up to a fixed size) gives a finite number instead of NaN.
_LOWEST = torch.finfo(torch.float32).min


def _side_loss(
    logits: Float[Tensor, "B T 2"], mask: Bool[Tensor, "B T"], targets: Int[Tensor, "B 2"]
) -> Float[Tensor, " B"]:
    scores = logits.float().masked_fill(~mask.unsqueeze(-1), _LOWEST)
    log_probs = F.log_softmax(scores, dim=1)
    picked = log_probs.gather(1, targets.long().unsqueeze(1)).squeeze(1)  # (B, 2)
    return -picked.mean(dim=-1)


def _pair_loss(
    logits: Float[Tensor, "B T outputs"], mask: Bool[Tensor, "B T"], targets: Int[Tensor, "B 2"]
) -> Float[Tensor, " B"]:
    scores = pair_scores(logits, mask).flatten(1)  # (B, T * T)
    first, last = targets.long().unbind(1)
    right = scores.gather(1, (first * mask.shape[1] + last).unsqueeze(1)).squeeze(1)
    return (scores.logsumexp(1) - right) / 2


def pair_scores(logits: Float[Tensor, "B T outputs"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T T"]:
    """Score of every start i and end j of 2 + 2r numbers a token; the lowest number where j < i or one is a pad."""
    rank = (logits.shape[-1] - 2) // 2
    # Zeros, so that nothing a pad holds enters a product.
    values = logits.float().masked_fill(~mask.unsqueeze(-1), 0.0)
    start, end, first, last = values.split([1, 1, rank, rank], dim=-1)
    with torch.autocast(logits.device.type, enabled=False):
        scores = start + end.mT + (first @ last.mT) / math.sqrt(rank)
    place = torch.arange(mask.shape[1], device=mask.device)
    valid = (place.unsqueeze(1) <= place) & mask.unsqueeze(1) & mask.unsqueeze(2)  # (B, T, T)
    return scores.masked_fill(~valid, _LOWEST)
