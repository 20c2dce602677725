"""Windows of which only some tokens are kept, for heads that do not read every token.

    all       every token
    cls       the classification token (`Windows.null`), one per window; for spans it means "no answer"
    context   that token and the tokens of the paragraph: no question, no separators

`keep_tokens` returns the same W windows with fewer tokens. Token `t` of window `w` again stands at `offsets[w] + t`;
context bounds, labels of spans and the null position count among the kept tokens.
"""

from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bertvision.data.windows import Windows, spread

Positions = Literal["all", "cls", "context"]


def kept_tokens(windows: Windows, positions: Positions) -> NDArray[np.bool_]:
    """(N,) whether each token is one of `positions`."""
    begins = windows.offsets[:-1]
    kept = np.full(windows.num_tokens, positions == "all")
    if positions == "context":
        kept[spread(begins + windows.context[:, 0], windows.context[:, 1] - windows.context[:, 0])] = True
    kept[begins + windows.null] = True
    return kept


def labels_are_positions(windows: Windows) -> bool:
    """Whether labels are the first and last token of an answer: two whole numbers, in windows that know characters."""
    whole = np.issubdtype(windows.labels.dtype, np.integer)
    return whole and windows.labels.shape[1] == 2 and bool((windows.chars >= 0).any())


def keep_tokens(windows: Windows, kept: NDArray[np.bool_], *, spans: bool) -> Windows:
    """The same windows with only the tokens of the mask `kept` (N,), which must hold every null token.

    With `spans` labels are positions of tokens: they move along, and an answer that lost its first or last token
    becomes "no answer". Other labels stay as they are.
    """
    begins = windows.offsets[:-1]
    if not kept[begins + windows.null].all():
        raise ValueError("every window must keep its null token")
    # (N + 1,) kept tokens before each token: where a token, or a border between two, stands among the kept.
    before = np.zeros(windows.num_tokens + 1, np.int64)
    np.cumsum(kept, out=before[1:])
    offsets = before[windows.offsets]
    null = before[begins + windows.null] - offsets[:-1]
    labels = windows.labels
    if spans:
        at_label = begins[:, None] + labels
        moved = before[at_label] - offsets[:-1, None]
        labels = np.where(kept[at_label].all(axis=1, keepdims=True), moved, null[:, None]).astype(np.int32)
    tokens = {name: getattr(windows, name)[kept] for name in ("ids", "types", "chars", "best")}
    context = (before[begins[:, None] + windows.context] - offsets[:-1, None]).astype(np.int32)
    null = null.astype(np.int32)
    return replace(windows, offsets=offsets, context=context, labels=labels, null=null, **tokens)
