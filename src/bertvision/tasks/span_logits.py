"""Logits of spans: start and end of every token, and the pairs of heads that score both together.

A head that gives 2 + 2r numbers a token scores a start i and an end j together, s_i + e_j + u_i . v_j / sqrt(r). Its
numbers are kept as `pairs` (N, 2 + 2r); its marginals stand where another head's `start` and `end` (N,) stand:

        start_i = log sum_{j >= i} exp score(i, j)        end_j = log sum_{i <= j} exp score(i, j)

Their softmax over a window is the probability of a start, or of an end, under the head. What reads starts and ends
alone (ensembles, the paper's decoding) gets these.

Several models become one by combining their probabilities position by position: the start logits of each are softmaxed
over the tokens of a window, the probabilities of all models are combined (max as in the paper's equation 1, mean or
product), and the logs of the result are returned; ends likewise. They are marked as log-probabilities, so that
`bertvision` decoding multiplies the very maxima of the paper and takes no second softmax; every other decoding adds
them like logits. Pairs are left out.

Shapes: N tokens of all windows, W windows, B windows of a batch, T tokens (padded).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bertvision.data.windows import Windows
from bertvision.errors import ArtifactError
from bertvision.shapes import Bool, Float
from bertvision.tasks.logits import NOT_READ, Collector, Logits, Seen
from bertvision.tasks.ragged import argmax, log_softmax

if TYPE_CHECKING:
    from torch import Tensor


_CELLS = 1 << 24  # pair scores of one chunk: 64 MB


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


def check_spans(logits: Logits, windows: Windows) -> None:
    """Raise unless every token of `windows` has finite values."""
    logits.check(windows.num_tokens, ("start", "end"), windows.offsets)
    pairs = logits.get("pairs")
    if pairs is not None and (pairs.ndim != 2 or pairs.shape[1] < 4 or pairs.shape[1] % 2):
        raise ArtifactError(
            f"the pair scores have the shape {pairs.shape}, not (tokens, 2 + 2r): they were not written by bertvision"
        )


class SpanCollector(Collector):
    """Outputs (B, T, 2), or (B, T, 2 + 2r) of heads that score pairs."""

    def __init__(self, windows: Windows) -> None:
        self._tokens = windows.num_tokens
        self._both = np.full((2, self._tokens), NOT_READ, np.float32)
        self._pairs: NDArray[np.float32] | None = None

    def add(self, seen: Seen, output: "Float[Tensor, 'B T outputs']") -> None:
        if output.shape[-1] > 2:
            if self._pairs is None:
                self._pairs = np.zeros((self._tokens, output.shape[-1]), np.float32)
                self._pairs[:, :2] = NOT_READ
            self._pairs[seen.tokens] = output.float()[seen.mask].cpu().numpy()
            output = marginals(output, seen.mask)
        self._both[:, seen.tokens] = output.float()[seen.mask].T.cpu().numpy()

    def logits(self) -> Logits:
        return span_logits(self._both[0], self._both[1], self._pairs)


def marginals(
    output: "Float[Tensor, 'B T outputs']", mask: "Bool[Tensor, 'B T']"
) -> "Float[Tensor, 'B T 2']":
    """Start and end of every token over all ends and starts it may be paired with; as many windows at once as fit."""
    import torch

    from bertvision.tasks.span_loss import pair_scores

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


def second_best(windows: Windows, logits: Logits) -> Logits:
    """Logits with every window's top start and, separately, its top end pushed down to -1000.

    Decoding them gives the paper's second-best answer. Of a head that scores pairs these are the marginals.
    """
    start, end = logits["start"].copy(), logits["end"].copy()
    for values in (start, end):
        values[windows.offsets[:-1] + argmax(values, windows.offsets)] = -1000.0
    return span_logits(start, end, log_probs=logits.log_probs)


def combine(models: Sequence[Logits], windows: Windows, how: str = "max") -> Logits:
    """One set of log-probabilities from the logits of several models over the same windows."""
    for logits in models:
        check_spans(logits, windows)
    start, end = (
        _combine([logits[side] for logits in models], windows.offsets, how) for side in ("start", "end")
    )
    return span_logits(start, end, log_probs=True)


def _combine(values: list[NDArray[np.float32]], offsets: NDArray[np.int64], how: str) -> NDArray[np.float32]:
    total = log_softmax(values[0], offsets)
    for more in values[1:]:
        log_probs = log_softmax(more, offsets)
        if how == "max":
            np.maximum(total, log_probs, out=total)
        elif how == "mean":
            np.logaddexp(total, log_probs, out=total)
        else:
            total += log_probs
    if how == "mean":
        total -= np.log(len(values))
    return total.astype(np.float32)
