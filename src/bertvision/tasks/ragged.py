"""Arithmetic on flat, ragged arrays: window `w` owns `values[offsets[w] : offsets[w + 1]]`, never empty.

Shapes: N tokens of all windows together, W windows, B windows of one chunk, T its longest.

`top` picks the largest values of every row with a stated order for ties: a float32 is turned into an
integer of the same order, and the column is packed below it, so that no two keys are ever equal and a
partial sort (which promises nothing about ties) has only one possible outcome.
"""

from collections.abc import Iterator

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray


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


def chunks(lengths: NDArray[np.int64], *, cells: int, row: int = 1) -> Iterator[NDArray[np.int64]]:
    """Indices of windows of similar length, as many as fit `cells` when each is padded to the longest.

    A window counts as `row` cells if that is more than its padded length.
    """
    order = np.argsort(lengths, kind="stable")
    while len(order):
        rest = np.maximum(lengths[order], row)
        # `rest` only grows, so the area of the first k rows, k * rest[k - 1], grows as well.
        size = int(np.searchsorted(rest * np.arange(1, len(rest) + 1), cells, side="right"))
        yield order[: max(size, 1)]
        order = order[max(size, 1) :]


def padded(
    values: NDArray[np.float32], offsets: NDArray[np.int64], rows: NDArray[np.int64]
) -> NDArray[np.float32]:
    """(B, T) the windows `rows`, padded with minus infinity to the longest of them.

    `values` must go on for at least T numbers behind the last window (whatever they are): rows can then be
    copied whole, which is much faster than gathering single numbers.
    """
    begin, lengths = offsets[rows], offsets[rows + 1] - offsets[rows]
    width = int(lengths.max())
    block = sliding_window_view(values, width)[begin]
    np.copyto(block, -np.inf, where=np.arange(width) >= lengths[:, None])
    return block


def top(values: NDArray[np.float32], n: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The `n` largest values of every row, largest first, and their columns; the lower column wins a tie.

    There must be no -0.0 (adding 0 makes it 0.0): it would be ranked below 0.0.
    """
    width = values.shape[1]
    n = min(n, width)
    # Floats order like integers once the lower bits of the negative ones are turned over.
    bits = values.view(np.int32)
    keys = np.left_shift(bits ^ ((bits >> 31) & 0x7FFFFFFF), 32, dtype=np.int64)
    keys += np.arange(width - 1, -1, -1)
    if n < width:
        keys.partition(width - n, axis=1)
        keys = keys[:, width - n :]
    columns = width - 1 - (np.sort(keys, axis=1)[:, ::-1] & 0xFFFFFFFF)
    return np.take_along_axis(values, columns, axis=1), columns
