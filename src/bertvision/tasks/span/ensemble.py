"""Several models, one answer: their probabilities are combined position by position.

Each model's start logits are softmaxed over the real positions of a window, the probabilities of all
models are combined (max as in the paper's equation 1, mean or product), and the logs of the result are
returned; ends likewise. They are marked as log-probabilities, so that `bertvision` decoding multiplies
the very maxima of the paper and takes no second softmax; every other decoding adds them like logits.

Heads that score start and end together take part with their marginals: the softmax of those is the
probability of a start over all its ends, so they may be combined with any other head. Their pairs are left out.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bertvision.data.windows import Windows
from bertvision.errors import ConfigError
from bertvision.tasks.span.logits import SpanLogits
from bertvision.tasks.span.ragged import log_softmax

__all__ = ["Combination", "combine"]

Combination = Literal["max", "mean", "product"]


def combine(models: Sequence[SpanLogits], windows: Windows, *, how: Combination = "max") -> SpanLogits:
    """One set of log-probabilities from the logits of several models over the same windows."""
    if not models:
        raise ConfigError("an ensemble needs the logits of at least one model")
    if how not in ("max", "mean", "product"):
        raise ConfigError(f"--how {how} is unknown: choose max, mean or product")
    for logits in models:
        logits.check(windows)
    start = _combine([logits.start for logits in models], windows.offsets, how)
    end = _combine([logits.end for logits in models], windows.offsets, how)
    return SpanLogits(start, end, log_probs=True)


def _combine(
    values: list[NDArray[np.float32]], offsets: NDArray[np.int64], how: Combination
) -> NDArray[np.float32]:
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
