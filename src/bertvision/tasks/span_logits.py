"""Logits of spans: start and end of every token, the pairs of heads that score both together, and the loss of both.

The loss is the cross-entropy of the start and of the end position, averaged over the two.

A head that gives 2 + 2r numbers a token (s, e and the factors u and v) scores a start i and an end j together,
s_i + e_j + u_i . v_j / sqrt(r). Its loss is half the cross-entropy of the right pair among all i <= j (no answer is the
null token as both), which without factors and order is the loss above. Its numbers are kept as `pairs` (N, 2 + 2r); its
marginals stand where another head's `start` and `end` (N,) stand, for what reads starts and ends alone:

        start_i = log sum_{j >= i} exp score(i, j)        end_j = log sum_{i <= j} exp score(i, j)

An ensemble combines the probabilities of starts, and those of ends, token by token: max as in the paper's equation 1,
mean or product. Its logits are the logs, marked as such, so that `bertvision` decoding multiplies the very maxima of
the paper and takes no second softmax; every other decoding adds them like logits. Pairs are left out.

Shapes: N tokens of all windows, W windows, B windows of a batch, T tokens (padded).
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bertvision.data.windows import Windows
from bertvision.shapes import Bool, Float, Int
from bertvision.tasks.logits import Collector, Logits, Seen

if TYPE_CHECKING:
    from torch import Tensor

SIDES = ("start", "end")

_CELLS = 1 << 24  # pair scores of one chunk: 64 MB
# The lowest finite number instead of minus infinity: its probability is 0 just the same, and a row that is
# all pads (a batch filled up to a fixed size) gives a finite number instead of NaN.
_LOWEST = float(np.finfo(np.float32).min)


def argmax(values: NDArray[np.floating], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """(W,) position inside the window of its largest value, the first one where several are equal."""
    best = np.maximum.reduceat(values, offsets[:-1])
    hits = np.flatnonzero(values == np.repeat(best, np.diff(offsets)))
    # The first hit at or behind the window's beginning is a hit of this window: it has at least one.
    return hits[np.searchsorted(hits, offsets[:-1])] - offsets[:-1]


def log_softmax(values: NDArray[np.floating], offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """(N,) log of the softmax over each window's own positions, in float64."""
    lengths = np.diff(offsets)
    shifted = values.astype(np.float64)
    shifted -= np.repeat(np.maximum.reduceat(shifted, offsets[:-1]), lengths)
    total = np.add.reduceat(np.exp(shifted), offsets[:-1])
    shifted -= np.repeat(np.log(total), lengths)
    return shifted


def span_logits(
    start: NDArray[np.float32],
    end: NDArray[np.float32],
    pairs: NDArray[np.float32] | None = None,
    *,
    log_probs: bool = False,
) -> Logits:
    """Logits from (N,) starts and ends, and (N, 2 + 2r) numbers of heads that score pairs."""
    arrays = {"start": start, "end": end} | ({} if pairs is None else {"pairs": pairs})
    return Logits(arrays, log_probs)


# ---- the loss


def span_loss(
    logits: "Float[Tensor, 'B T outputs']", mask: "Bool[Tensor, 'B T']", targets: "Int[Tensor, 'B 2']"
) -> "Float[Tensor, ' B']":
    """Loss of each window, of pairs where a token has more than 2 numbers; in float32, pads outside the softmax."""
    if logits.shape[-1] > 2:
        scores = pair_scores(logits, mask).flatten(1)  # (B, T * T)
        first, last = targets.long().unbind(1)
        right = scores.gather(1, (first * mask.shape[1] + last).unsqueeze(1)).squeeze(1)
        return (scores.logsumexp(1) - right) / 2
    scores = logits.float().masked_fill(~mask.unsqueeze(-1), _LOWEST)
    picked = scores.log_softmax(1).gather(1, targets.long().unsqueeze(1)).squeeze(1)  # (B, 2)
    return -picked.mean(dim=-1)


def pair_scores(
    logits: "Float[Tensor, 'B T outputs']", mask: "Bool[Tensor, 'B T']"
) -> "Float[Tensor, 'B T T']":
    """Score of every start i and end j of 2 + 2r numbers a token; the lowest number where j < i or one is a pad."""
    import torch

    rank = (logits.shape[-1] - 2) // 2
    # Zeros, so that nothing a pad holds enters a product.
    values = logits.float().masked_fill(~mask.unsqueeze(-1), 0.0)
    start, end, first, last = values.split([1, 1, rank, rank], dim=-1)
    with torch.autocast(logits.device.type, enabled=False):
        scores = start + end.mT + (first @ last.mT) / math.sqrt(rank)
    place = torch.arange(mask.shape[1], device=mask.device)
    valid = (place.unsqueeze(1) <= place) & mask.unsqueeze(1) & mask.unsqueeze(2)  # (B, T, T)
    return scores.masked_fill(~valid, _LOWEST)


# ---- from batches to whole datasets


class SpanCollector(Collector):
    """Outputs (B, T, 2), or (B, T, 2 + 2r) of heads that score pairs."""

    def __init__(self, windows: Windows) -> None:
        super().__init__(windows, None)
        self.pairs = Collector(windows, None)

    def add(self, seen: Seen, output: "Float[Tensor, 'B T outputs']") -> None:
        if output.shape[-1] > 2:
            self.pairs.add(seen, output)
            output = marginals(output, seen.mask)
        super().add(seen, output)

    def logits(self) -> Logits:
        start, end = np.ascontiguousarray(self.values.T)
        pairs = self.pairs.values
        if not pairs.shape[1]:
            return span_logits(start, end)
        return span_logits(start, end, pairs)


def marginals(
    output: "Float[Tensor, 'B T outputs']", mask: "Bool[Tensor, 'B T']"
) -> "Float[Tensor, 'B T 2']":
    """Start and end of every token over all ends and starts it may be paired with; as many windows at once as fit."""
    import torch

    size = max(1, _CELLS // mask.shape[1] ** 2)
    parts: list[Tensor] = []
    for rows, real in zip(output.split(size), mask.split(size), strict=True):
        scores = pair_scores(rows, real)
        parts.append(torch.stack([scores.logsumexp(2), scores.logsumexp(1)], dim=-1))
    return torch.cat(parts)


def joint_parts(
    pairs: NDArray[np.float32], first: NDArray[np.integer], last: NDArray[np.integer]
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """(B, k) s of the tokens `first`, (B, m) e of `last`, (B, k, m) u_i . v_j / sqrt(r): the sum is the score.

    `first` (B, k) and `last` (B, m) count tokens of all windows; those behind the end give some number.
    """
    rank, most = (pairs.shape[1] - 2) // 2, len(pairs) - 1
    starts, ends = pairs[np.minimum(first, most)], pairs[np.minimum(last, most)]
    product = starts[..., 2 : 2 + rank] @ np.swapaxes(ends[..., 2 + rank :], 1, 2)
    product *= np.float32(rank**-0.5)
    product += 0  # no -0.0: decoding ranks it below 0.0
    return starts[..., 0], ends[..., 1], product


# ---- other logits made of them


def second_best(windows: Windows, logits: Logits) -> Logits:
    """Logits with every window's top start and, separately, its top end pushed down to -1000.

    Decoding them gives the paper's second-best answer. Of a head that scores pairs these are the marginals.
    """
    start, end = (logits[side].copy() for side in SIDES)
    for values in (start, end):
        values[windows.offsets[:-1] + argmax(values, windows.offsets)] = -1000.0
    return span_logits(start, end, log_probs=logits.log_probs)


def combine(models: Sequence[Logits], windows: Windows, how: str = "max") -> Logits:
    """One set of log-probabilities from the logits of several models over the same windows."""
    joined: list[NDArray[np.float32]] = []
    add = {"max": np.maximum, "mean": np.logaddexp, "product": np.add}[how]
    for side in SIDES:
        total, *others = (log_softmax(logits[side], windows.offsets) for logits in models)
        for more in others:
            add(total, more, out=total)
        if how == "mean":
            total -= np.log(len(models))
        joined.append(total.astype(np.float32))
    return span_logits(*joined, log_probs=True)
