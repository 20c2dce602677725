"""Where long texts are cut into windows, and which window shows a token best.

The windows of one example begin `step` tokens apart and hold at most `room` tokens of the text that is cut; all
but the last are full. `spread` is the one gather everything is assembled with.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Cut:
    """Where the windows of each example begin; arrays of (examples,) first, of (W,) below.

    The text that is cut is called the context: of a question the paragraph, of a pair the longer text.
    """

    kept: NDArray[np.int64]  # tokens of the other text that stand in every window
    document: NDArray[np.int64]  # tokens of the context
    room: NDArray[np.int64]  # most context tokens in a window
    step: NDArray[np.int64]  # tokens between the beginnings of windows
    count: NDArray[np.int64]  # windows

    example: NDArray[np.int64]  # which example
    number: NDArray[np.int64]  # which window of its example
    begin: NDArray[np.int64]  # first context token, counted in the context
    length: NDArray[np.int64]  # context tokens


def cut_evenly(
    kept: NDArray[np.int64], document: NDArray[np.int64], *, room: NDArray[np.int64], step: NDArray[np.int64]
) -> Cut:
    """Windows of at most `room` tokens, `step` apart, until every token of the context is in one."""
    # Every example has a window, even one whose context the tokenizer turns into nothing.
    count = 1 + np.maximum(0, -((room - document) // step))
    example = np.repeat(np.arange(len(kept)), count)
    number = spread(np.zeros(len(count), np.int64), count)
    begin = number * step[example]
    length = np.minimum(document[example] - begin, room[example])
    return Cut(kept, document, room, step, count, example, number, begin, length)


def max_context(
    cut: Cut, context_at: NDArray[np.int64], *, in_context: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """(N,) whether a context token has its maximal context in its window.

    Google's rule: the window with the largest min(tokens to the left, tokens to the right) + 0.01 * window
    length, the first of equals. All windows of an example but the last are full and evenly spaced, so the
    best of those is the one whose centre is nearest; it remains to compare it with the last.
    """
    best = in_context  # right already where an example has one window
    several = cut.count[cut.example] > 1
    example = np.repeat(cut.example[several], cut.length[several])  # a number for each of their tokens
    number = np.repeat(cut.number[several], cut.length[several])
    token = spread(cut.begin[several], cut.length[several])  # counted in the paragraph
    document, room, step = cut.document[example], cut.room[example], cut.step[example]
    last = cut.count[example] - 1
    nearest = -((room - 1 + step - 2 * token) // (2 * step))  # rounded up, so that halves go to the first
    nearest = np.clip(nearest, 0, last - 1)
    from_left = token - nearest * step
    score = np.minimum(from_left, room - 1 - from_left) + 0.01 * room
    score[from_left >= room] = -1.0
    from_left = token - last * step
    last_score = np.minimum(from_left, document - 1 - token) + 0.01 * (document - last * step)
    owner = np.where((from_left >= 0) & (last_score > score), last, nearest)
    best[spread(context_at[several], cut.length[several])] = owner == number
    return best


def ragged_offsets(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def spread(begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ranges one after the other: begins [7, 0], lengths [2, 3] -> [7, 8, 0, 1, 2]."""
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(begins - (ends - lengths), lengths) + np.arange(total)
