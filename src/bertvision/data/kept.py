"""Windows of which only some tokens are kept: what heads read where not every position is handed out.

    all       every token
    cls       the token that means "no answer" (`Windows.null`), one a window
    context   that token and the tokens of the paragraph: no question, no separators

`keep_tokens` gives the same W windows with fewer tokens: token `t` of window `w` stands again at `offsets[w] + t`,
and context bounds, labels of spans and the null position are counted among the kept ones.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bertvision.data.windows import Windows, spread

__all__ = ["Positions", "keep_tokens", "kept_tokens"]

Positions = Literal["all", "cls", "context"]


def kept_tokens(windows: Windows, positions: Positions) -> NDArray[np.bool_]:
    """(N,) whether each token is one of `positions`."""
    begins = windows.offsets[:-1]
    kept = np.full(windows.num_tokens, positions == "all")
    if positions == "context":
        kept[spread(begins + windows.context[:, 0], windows.context[:, 1] - windows.context[:, 0])] = True
    kept[begins + windows.null] = True
    return kept


def keep_tokens(windows: Windows, kept: NDArray[np.bool_]) -> Windows:
    """The same windows with only the tokens of the mask `kept` (N,), which must hold every null token.

    A window whose answer lost its first or last token is labelled "no answer"; whether that may be is for the
    caller to say.
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
    if labels.shape[1] == 2:  # positions; classes and scores stay what they are
        at_label = begins[:, None] + labels
        moved = before[at_label] - offsets[:-1, None]
        labels = np.where(kept[at_label].all(axis=1, keepdims=True), moved, null[:, None]).astype(np.int32)
    return Windows(
        ids=windows.ids[kept],
        types=windows.types[kept],
        chars=windows.chars[kept],
        offsets=offsets,
        example=windows.example,
        context=(before[begins[:, None] + windows.context] - offsets[:-1, None]).astype(np.int32),
        labels=labels,
        null=null.astype(np.int32),
        best=windows.best[kept],
    )
