"""Decoding: from the logits of every token to one answer a question.

Shapes: N tokens, W windows, Q questions, n = `n_best_size`, B windows of a chunk.

Three decodings, each with its own way to merge the windows of a long paragraph:

google      every pair of the n best starts and n best ends of a window whose tokens lie in the context, in
            order, not longer than `max_answer_length`; score = start + end logit. The candidates of all
            windows compete. No answer scores what the null token scores, the *lowest* over the windows.
nbest       the same without the max-context rule and with the *highest* null score over the windows.
            (transformers' run_qa.py takes the lowest: `--decoding nbest --merging min`.)
bertvision  the paper's: the most probable start and the most probable end of a window, independently,
            over all its tokens (question included); score = product of the two probabilities, kept here
            as its log. Exactly the null token, or an end before the start, is a vote for no answer. The
            window with the highest score supplies the answer.

Where a head scored start and end together (`pairs`), google and nbest still take the n best of each, by their
marginals, but pairs, the null token's too, score x = u_i . v_j / sqrt(r) more than s_i + e_j. Their start logit is
given as s_i + x / 2, their end logit as e_j + x / 2.

Ties, everywhere: the earlier token wins a place among the n best starts or ends. Candidates of equal
score keep the order of earlier window, higher start logit, higher end logit, and stand before no answer
(which therefore has to be strictly better).

No Python runs per window: windows of similar length are padded into matrices of bounded size.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from bertvision.data.examples import SpanData
from bertvision.data.windows import Windows
from bertvision.errors import DataError
from bertvision.tasks.logits import Logits
from bertvision.tasks.settings import DecodeConfig
from bertvision.tasks.span_answers import SpanAnswers
from bertvision.tasks.span_logits import SIDES, argmax, joint_parts, log_softmax

_CELLS = 1 << 17  # numbers in one padded matrix: half a MB, so that a chunk stays in the processor's cache
_IMPOSSIBLE = np.float32(-1e38)  # below any sum of logits that means something


@dataclass(frozen=True)
class _Candidates:
    """What every window proposes: up to n spans, best first, and its score of no answer."""

    score: NDArray[np.floating]  # (W, n); minus infinity behind the last span
    logits: NDArray[np.floating]  # (W, n, 2)
    token: NDArray[np.signedinteger]  # (W, n, 2) first and last token, inclusive, inside the window
    null: NDArray[np.floating]  # (W,)
    null_logits: NDArray[np.floating]  # (W, 2)


def decode(windows: Windows, logits: Logits, data: SpanData, config: DecodeConfig) -> SpanAnswers:
    """Answer every question of `data` from the logits of its windows."""
    if not len(data):
        raise DataError(f"{data.name} has no questions: there is nothing to decode")
    logits.check(SIDES, windows.offsets)
    windowed = np.bincount(windows.example, minlength=len(data))
    if len(windowed) != len(data) or not windowed.all():
        raise DataError(
            f"the windows do not belong to {data.name}: they cover {int((windowed > 0).sum())} questions, "
            f"the data has {len(data)}; make the windows from this data"
        )
    if config.decoding == "bertvision":
        return _merge(windows, _argmax_candidates(windows, logits), data, config)
    return _merge(windows, _nbest_candidates(windows, logits, config), data, config)


# ---- what every window proposes


def _nbest_candidates(windows: Windows, logits: Logits, config: DecodeConfig) -> _Candidates:
    count, n, offsets = len(windows), config.n_best_size, windows.offsets
    pair_rows = logits.arrays.get("pairs")
    score = np.full((count, n), -np.inf, np.float32)
    found = np.zeros((count, n, 2), np.float32)
    token = np.zeros((count, n, 2), np.int32)
    longest = int(windows.lengths.max())
    # What `padded` and `top` ask for: room behind the last window, and no -0.0. Pads may lie in this room, too.
    starts, ends = (np.pad(logits[side], (0, longest)) + np.float32(0) for side in SIDES)
    begins, stops = np.pad(windows.chars, ((0, longest), (0, 0)), constant_values=-1).T
    end_ok = begins >= 0
    limited = config.decoding == "google" and config.max_context
    start_ok = end_ok & np.pad(windows.best, (0, longest)) if limited else end_ok
    # Most tokenizers make no tokens without characters; a span that holds none at all is no answer.
    empty = bool((stops <= begins)[end_ok].any())

    def work(rows: NDArray[np.int64]) -> None:
        """Pairs (B, k, k) of the best starts and ends of some windows, and the n best of them."""
        (start, first), (end, last) = (top(padded(values, offsets, rows), n) for values in (starts, ends))
        base = offsets[rows][:, None]
        at_first, at_last = base + first, base + last
        # A pad has the logit minus infinity, and the place of a token of another window.
        first_ok, last_ok = start_ok[at_first] & (start > -np.inf), end_ok[at_last] & (end > -np.inf)
        joint: NDArray[np.float32] | None = None
        if pair_rows is not None:
            start, end, joint = joint_parts(pair_rows, at_first, at_last)
        # Minus infinity passes through the sum, so that no (B, k, k) mask is needed for these.
        pairs = np.where(first_ok, start, -np.inf)[:, :, None] + np.where(last_ok, end, -np.inf)[:, None, :]
        # One unsigned comparison says both "not before the start" and "not too long", and an addition puts
        # it in: five times faster than writing through a mask.
        length = last.astype(np.int32)[:, None, :] - first.astype(np.int32)[:, :, None]
        pairs += np.multiply(length.view(np.uint32) >= config.max_answer_length, 2 * _IMPOSSIBLE)
        if joint is not None:
            pairs += joint
        if empty:
            pairs[stops[at_last][:, None, :] <= begins[at_first][:, :, None]] = -np.inf
        best, pair = top(pairs.reshape(len(rows), -1), n)
        i, j = np.divmod(pair, last.shape[1])
        kept = np.s_[rows, : best.shape[1]]
        score[kept] = np.where(best > _IMPOSSIBLE, best, -np.inf)
        found[kept] = np.stack([np.take_along_axis(start, i, 1), np.take_along_axis(end, j, 1)], -1)
        if joint is not None:
            found[kept] += np.take_along_axis(joint.reshape(len(rows), -1), pair, 1)[..., None] / 2
        token[kept] = np.stack([np.take_along_axis(first, i, 1), np.take_along_axis(last, j, 1)], -1)

    parts = list(chunks(windows.lengths, cells=_CELLS, row=min(n, longest) ** 2))
    if len(parts) == 1:
        work(parts[0])
    else:
        # Chunks write to rows of their own, and numpy lets go of the interpreter lock while it works.
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(work, parts))
    at_null = offsets[:-1] + windows.null
    null_logits = np.stack([logits[side][at_null] for side in SIDES], axis=1)
    if pair_rows is not None:
        start, end, joint = joint_parts(pair_rows, at_null[:, None], at_null[:, None])
        null_logits = np.concatenate([start, end], axis=1) + joint[:, 0] / 2
    return _Candidates(score, found, token, null_logits[:, 0] + null_logits[:, 1], null_logits)


def _argmax_candidates(windows: Windows, logits: Logits) -> _Candidates:
    offsets, null = windows.offsets, windows.null
    both = []
    for values in (logits[side] for side in SIDES):
        position = argmax(values, offsets)
        log_probs = values.astype(np.float64) if logits.log_probs else log_softmax(values, offsets)
        both.append((position, log_probs[offsets[:-1] + position]))
    (first, start), (last, end) = both
    votes_null = ((first == null) & (last == null)) | (last < first)
    score = start + end
    found = np.stack([start, end], axis=1)
    return _Candidates(
        np.where(votes_null, -np.inf, score)[:, None],
        found[:, None, :],
        np.stack([first, last], axis=1)[:, None, :],
        np.where(votes_null, score, -np.inf),
        np.where(votes_null[:, None], found, -np.inf),
    )


# ---- padded matrices


def chunks(lengths: NDArray[np.int64], *, cells: int, row: int) -> Iterator[NDArray[np.int64]]:
    """Indices of windows of similar length, as many as fit `cells` when each is padded to the longest.

    A window counts as `row` cells if that is more than its padded length.
    """
    order = np.argsort(lengths, kind="stable")
    while len(order):
        rest = np.maximum(lengths[order], row)
        # `rest` only grows, so the area of the first k rows, k * rest[k - 1], grows as well.
        size = max(1, int(np.searchsorted(rest * np.arange(1, len(rest) + 1), cells, side="right")))
        yield order[:size]
        order = order[size:]


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

    A float32 is turned into an integer of the same order, and the column is packed below it, so that no two keys are
    equal and a partial sort (which promises nothing about ties) has one possible outcome. There must be no -0.0
    (adding 0 makes it 0.0): it would be ranked below 0.0.
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


# ---- the windows of a question together


def _merge(windows: Windows, found: _Candidates, data: SpanData, config: DecodeConfig) -> SpanAnswers:
    questions, n, width = len(data), config.n_best_size, found.score.shape[1]
    # (Q, n) where each question's candidates stand in the flattened (W, width); -1 behind the last.
    source = np.full((questions, n), -1, np.int64)
    flat = np.flatnonzero(found.score > -np.inf)
    question = windows.example[flat // width]
    # Stable: candidates of equal score keep the order of windows and, in them, of ranks.
    order = np.lexsort((-found.score.ravel()[flat], question))
    flat, question = flat[order], question[order]
    rank = np.arange(len(flat)) - np.searchsorted(question, question)
    source[question[rank < n], rank[rank < n]] = flat[rank < n]

    exists, source = source >= 0, np.maximum(source, 0)
    score = np.where(exists, found.score.ravel()[source], -np.inf).astype(np.float64)
    logits = found.logits.reshape(-1, 2)[source]
    token = np.empty((questions, n, 3), np.int32)
    token[..., 0] = source // width
    token[..., 1:] = found.token.reshape(-1, 2)[source]

    # No answer: the window that decides, its score and logits, and how far it is ahead of the best candidate.
    merging, there = config.resolved_merging, exists[:, 0]
    if merging == "any_null":
        # The window that leans most towards no answer speaks for the question.
        sort_key = found.score[:, 0].astype(np.float64) - found.null
    else:
        sort_key = found.null if merging == "min" else -found.null
    order = np.lexsort((sort_key, windows.example))
    _, first = np.unique(windows.example[order], return_index=True)
    chosen = order[first]  # (Q,) windows, because questions are numbered 0 .. Q - 1
    null, null_logits = found.null[chosen], found.null_logits[chosen]
    if merging == "any_null":
        diff = -sort_key[chosen].astype(np.float64)
        # Put on the scale of the question's best candidate; without one, as it stands.
        null = np.where(there, np.where(there, score[:, 0], 0.0) + diff, null)
    else:
        # Subtracted one after the other in the logits' own precision: the null odds then agree with other
        # tools that follow the same rule to the last digit.
        diff = ((null - logits[:, 0, 0]) - logits[:, 0, 1]).astype(np.float64)
        diff = np.where(there, diff, np.inf)
    return SpanAnswers(
        data=data,
        windows=windows,
        decode=config,
        score_diff=diff,
        null_score=null.astype(np.float64),
        null_logits=null_logits.astype(np.float64),
        nbest_score=score,
        nbest_logits=logits.astype(np.float64),
        nbest_token=token,
    )
