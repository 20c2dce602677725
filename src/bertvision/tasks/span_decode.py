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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertvision.data.examples import SpanData
from bertvision.data.windows import Windows
from bertvision.errors import DataError
from bertvision.tasks.logits import Logits
from bertvision.tasks.ragged import argmax, chunks, log_softmax, padded, top
from bertvision.tasks.settings import DecodeConfig
from bertvision.tasks.span_answers import SpanAnswers
from bertvision.tasks.span_logits import check_spans, joint_parts

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
    check_spans(logits, windows)
    windowed = np.bincount(windows.example, minlength=len(data))
    if len(windowed) != len(data) or not windowed.all():
        raise DataError(
            f"the windows do not belong to {data.name}: they cover {int((windowed > 0).sum())} questions, "
            f"the data has {len(data)}; make the windows from this data"
        )
    if config.decoding == "bertvision":
        candidates = _argmax_candidates(windows, logits)
    else:
        candidates = _nbest_candidates(windows, logits, config)
    return _merge(windows, candidates, data, config)


# ---------------------------------------------------------------------------------------------------
# what every window proposes


def _nbest_candidates(windows: Windows, logits: Logits, config: DecodeConfig) -> _Candidates:
    count, n = len(windows.example), config.n_best_size
    pair_rows = logits.get("pairs")
    score = np.full((count, n), -np.inf, np.float32)
    found = np.zeros((count, n, 2), np.float32)
    token = np.zeros((count, n, 2), np.int32)
    lengths = np.diff(windows.offsets)
    # What `padded` and `top` ask for: room behind the last window, and no -0.0.
    room = np.zeros(int(lengths.max()), np.float32)
    both = [np.concatenate([values, room]) + np.float32(0) for values in (logits["start"], logits["end"])]
    empty = _empty_tokens(windows)

    def work(rows: NDArray[np.int64]) -> None:
        (start, first), (end, last) = (top(padded(values, windows.offsets, rows), n) for values in both)
        joint: NDArray[np.float32] | None = None
        if pair_rows is not None:
            base = windows.offsets[rows][:, None]
            start, end, joint = joint_parts(pair_rows, base + first, base + last)
        pairs = _pair_scores(windows, rows, (start, first), (end, last), config)  # (B, k, k)
        if joint is not None:
            pairs += joint
        if empty:
            pairs[_no_characters(windows, rows, first, last)] = -np.inf
        best, pair = top(pairs.reshape(len(rows), -1), n)
        i, j = np.divmod(pair, last.shape[1])
        kept = np.s_[rows, : best.shape[1]]
        score[kept] = np.where(best > _IMPOSSIBLE, best, -np.inf)
        found[kept] = np.stack([np.take_along_axis(start, i, 1), np.take_along_axis(end, j, 1)], -1)
        if joint is not None:
            found[kept] += np.take_along_axis(joint.reshape(len(rows), -1), pair, 1)[..., None] / 2
        token[kept] = np.stack([np.take_along_axis(first, i, 1), np.take_along_axis(last, j, 1)], -1)

    parts = list(chunks(lengths, cells=_CELLS, row=min(n, int(lengths.max())) ** 2))
    if len(parts) == 1:
        work(parts[0])
    else:
        # Chunks write to rows of their own, and numpy lets go of the interpreter lock while it works.
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(work, parts))
    at_null = windows.offsets[:-1] + windows.null
    null_logits = np.stack([logits["start"][at_null], logits["end"][at_null]], axis=1)
    if pair_rows is not None:
        start, end, joint = joint_parts(pair_rows, at_null[:, None], at_null[:, None])
        null_logits = np.concatenate([start, end], axis=1) + joint[:, 0] / 2
    return _Candidates(score, found, token, null_logits[:, 0] + null_logits[:, 1], null_logits)


def _pair_scores(
    windows: Windows,
    rows: NDArray[np.int64],
    starts: tuple[NDArray[np.float32], NDArray[np.int64]],
    ends: tuple[NDArray[np.float32], NDArray[np.int64]],
    config: DecodeConfig,
) -> NDArray[np.float32]:
    """(B, k, k) start + end logit of every pair; at or below `_IMPOSSIBLE` where it is not a valid span."""
    (start, first), (end, last) = starts, ends
    first_ok, last_ok = _in_context(windows, rows, first), _in_context(windows, rows, last)
    if config.decoding == "google" and config.max_context:
        first_ok &= windows.best[windows.offsets[rows][:, None] + np.where(first_ok, first, 0)]
    # Minus infinity passes through the sum, so that no (B, k, k) mask is needed for these.
    pairs = np.where(first_ok, start, -np.inf)[:, :, None] + np.where(last_ok, end, -np.inf)[:, None, :]
    # One unsigned comparison says both "not before the start" and "not too long", and an addition puts
    # it in: five times faster than writing through a mask.
    length = last.astype(np.int32)[:, None, :] - first.astype(np.int32)[:, :, None]
    pairs += np.multiply(length.view(np.uint32) >= config.max_answer_length, 2 * _IMPOSSIBLE)
    return pairs


def _in_context(windows: Windows, rows: NDArray[np.int64], position: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(B, k) whether positions of the windows `rows` are tokens of the paragraph."""
    context = windows.context[rows]
    return (position >= context[:, :1]) & (position < context[:, 1:])


def _empty_tokens(windows: Windows) -> bool:
    """Whether the tokenizer made tokens of the paragraph without characters; most make none."""
    return bool(((windows.chars[:, 0] >= 0) & (windows.chars[:, 1] <= windows.chars[:, 0])).any())


def _no_characters(
    windows: Windows, rows: NDArray[np.int64], first: NDArray[np.int64], last: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """(B, k, k) whether a span holds no characters at all, which is no answer."""
    base, most = windows.offsets[rows][:, None], len(windows.chars) - 1  # pads may lie behind the end
    begin = windows.chars[np.minimum(base + first, most), 0]
    end = windows.chars[np.minimum(base + last, most), 1]
    return end[:, None, :] <= begin[:, :, None]


def _argmax_candidates(windows: Windows, logits: Logits) -> _Candidates:
    offsets, null = windows.offsets, windows.null
    both = []
    for values in (logits["start"], logits["end"]):
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


# ---------------------------------------------------------------------------------------------------
# the windows of a question together


def _merge(windows: Windows, found: _Candidates, data: SpanData, config: DecodeConfig) -> SpanAnswers:
    questions, n = len(data), config.n_best_size
    width = found.score.shape[1]
    # (Q, n) where each question's candidates stand in the flattened (W, width); -1 behind the last. Most
    # questions have one window, whose candidates are in order already.
    source = np.full((questions, n), -1, np.int64)
    single = np.bincount(windows.example)[windows.example] == 1
    standing = np.arange(found.score.size).reshape(-1, width)
    source[windows.example[single], :width] = np.where(found.score > -np.inf, standing, -1)[single]
    flat = np.flatnonzero((found.score > -np.inf) & ~single[:, None])
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

    null_score, null_logits, diff = _merge_null(windows, found, score[:, 0], logits[:, 0], config)
    return SpanAnswers(
        data=data,
        windows=windows,
        decode=config,
        score_diff=diff,
        null_score=null_score,
        null_logits=null_logits.astype(np.float64),
        nbest_score=score,
        nbest_logits=logits.astype(np.float64),
        nbest_token=token,
    )


def _merge_null(
    windows: Windows,
    found: _Candidates,
    best: NDArray[np.float64],
    best_logits: NDArray[np.floating],
    config: DecodeConfig,
) -> tuple[NDArray[np.float64], NDArray[np.floating], NDArray[np.float64]]:
    """(Q,) score of no answer, (Q, 2) its logits, (Q,) how far it is ahead of the best candidate."""
    merging = config.resolved_merging
    if merging == "any_null":
        # The window that leans most towards no answer speaks for the question.
        sort_key = found.score[:, 0].astype(np.float64) - found.null
    else:
        sort_key = found.null if merging == "min" else -found.null
    order = np.lexsort((sort_key, windows.example))
    leading = np.ones(len(order), np.bool_)
    leading[1:] = np.diff(windows.example[order]) != 0
    chosen = order[leading]  # (Q,) windows, because questions are numbered 0 .. Q - 1
    null = found.null[chosen]
    if merging == "any_null":
        diff = -sort_key[chosen].astype(np.float64)
        # Put on the scale of the question's best candidate; without one, as it stands.
        shifted = np.where(np.isfinite(best), best, 0.0) + diff
        return np.where(np.isfinite(best), shifted, null), found.null_logits[chosen], diff
    # Subtracted one after the other in the logits' own precision: the null odds then agree with other
    # tools that follow the same rule to the last digit.
    diff = ((null - best_logits[:, 0]) - best_logits[:, 1]).astype(np.float64)
    return null.astype(np.float64), found.null_logits[chosen], np.where(np.isfinite(best), diff, np.inf)
