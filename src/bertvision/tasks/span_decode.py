"""From the outputs of a head to one answer a question: logits of starts and ends, their loss, decoding.

A head that gives 2 + 2r numbers a token (s, e and the factors u and v) scores a start i and an end j together,
s_i + e_j + u_i . v_j / sqrt(r). Its numbers are kept as `pairs` (N, 2 + 2r); its marginals stand where another head's
`start` and `end` (N,) stand, for what reads starts and ends alone:

        start_i = log sum_{j >= i} exp score(i, j)        end_j = log sum_{i <= j} exp score(i, j)

The loss is the cross-entropy of the start and of the end position, averaged over the two; of pairs half that of the
right pair among all i <= j (no answer is the null token as both), which without factors and order is the same.

An ensemble combines the probabilities of starts, and those of ends, token by token: max as in the paper's equation 1,
mean or product. Its logits are the logs, marked as such, so that `bertvision` decoding multiplies the very maxima of
the paper and takes no second softmax; every other decoding adds them like logits. Pairs are left out.

Three decodings, each with its own way to merge the windows of a long paragraph:

google      every pair of the n best starts and n best ends of a window whose tokens lie in the context, in order, not
            longer than `max_answer_length`; score = start + end logit. The candidates of all windows compete. No
            answer scores what the null token scores, the *lowest* over the windows.
nbest       the same without the max-context rule and with the *highest* null score over the windows.
            (transformers' run_qa.py takes the lowest: `--decoding nbest --merging min`.)
bertvision  the paper's: the most probable start and the most probable end of a window, independently, over all its
            tokens (question included); score = product of the two probabilities, kept here as its log. Exactly the
            null token, or an end before the start, is a vote for no answer. The window with the highest score supplies
            the answer.

Of `pairs` google and nbest still take the n best starts and ends, by their marginals, but pairs, the null token's too,
score x = u_i . v_j / sqrt(r) more than s_i + e_j. Their start logit is given as s_i + x / 2, their end logit as
e_j + x / 2.

Ties, everywhere: the earlier token wins a place among the n best starts or ends. Candidates of equal score keep the
order of earlier window, higher start logit, higher end logit, and stand before no answer (which therefore has to be
strictly better).

No Python runs per window: windows of similar length are padded into matrices of bounded size.

Shapes: N tokens of all windows, W windows, Q questions, n = `n_best_size`, B windows of a batch or chunk, T tokens.
"""

import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from bertvision.data.examples import SpanData
from bertvision.data.windows import Windows
from bertvision.errors import DataError
from bertvision.shapes import Bool, Float, Int
from bertvision.tasks.base import DecodeConfig
from bertvision.tasks.logits import Collector, Logits, Seen
from bertvision.tasks.span_answers import SpanAnswers

if TYPE_CHECKING:
    from torch import Tensor


Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
SIDES = ("start", "end")
_PAIR_CELLS = 1 << 24  # pair scores of one chunk: 64 MB
_CELLS = 1 << 17  # numbers in one padded matrix: half a MB, so that a chunk stays in the processor's cache
_IMPOSSIBLE = np.float32(-1e38)  # below any sum of logits that means something
# The lowest finite number instead of minus infinity: its probability is 0 just the same, and a row that is
# all pads (a batch filled up to a fixed size) gives a finite number instead of NaN.
_LOWEST = float(np.finfo(np.float32).min)


def _argmax(values: Floats, offsets: Integers) -> Integers:
    """(W,) position in the window of its largest value, the first of equals."""
    best = np.maximum.reduceat(values, offsets[:-1])
    hits = np.flatnonzero(values == np.repeat(best, np.diff(offsets)))
    # The first hit at or behind the window's beginning is a hit of this window: it has at least one.
    return hits[np.searchsorted(hits, offsets[:-1])] - offsets[:-1]


def _log_softmax(values: Floats, offsets: Integers) -> NDArray[np.float64]:
    """(N,) log of the softmax over each window's own positions, in float64."""
    lengths = np.diff(offsets)
    shifted = values.astype(np.float64)
    shifted -= np.repeat(np.maximum.reduceat(shifted, offsets[:-1]), lengths)
    shifted -= np.repeat(np.log(np.add.reduceat(np.exp(shifted), offsets[:-1])), lengths)
    return shifted


def span_logits(
    start: Floats, end: Floats, pairs: Floats | None = None, *, log_probs: bool = False
) -> Logits:
    arrays = {"start": start, "end": end} | ({} if pairs is None else {"pairs": pairs})
    return Logits(arrays, log_probs)


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
        return span_logits(start, end, pairs if pairs.shape[1] else None)


def marginals(
    output: "Float[Tensor, 'B T outputs']", mask: "Bool[Tensor, 'B T']"
) -> "Float[Tensor, 'B T 2']":
    """Starts and ends of pairs, as many windows at once as fit."""
    import torch

    size = max(1, _PAIR_CELLS // mask.shape[1] ** 2)
    parts: list[Tensor] = []
    for rows, real in zip(output.split(size), mask.split(size), strict=True):
        scores = pair_scores(rows, real)
        parts.append(torch.stack([scores.logsumexp(2), scores.logsumexp(1)], dim=-1))
    return torch.cat(parts)


def _joint_parts(pairs: Floats, first: Integers, last: Integers) -> tuple[Floats, Floats, Floats]:
    """(B, k) s of the tokens `first`, (B, m) e of `last`, (B, k, m) u_i . v_j / sqrt(r): the sum is the score. `first`
    (B, k) and `last` (B, m) count tokens of all windows; those behind the end give some number."""
    rank, most = (pairs.shape[1] - 2) // 2, len(pairs) - 1
    starts, ends = pairs[np.minimum(first, most)], pairs[np.minimum(last, most)]
    product = starts[..., 2 : 2 + rank] @ np.swapaxes(ends[..., 2 + rank :], 1, 2)
    product *= np.float32(rank**-0.5)
    product += 0  # no -0.0: decoding ranks it below 0.0
    return starts[..., 0], ends[..., 1], product


def second_best(windows: Windows, logits: Logits) -> Logits:
    """Every window's top start and top end pushed down to -1000, which decodes to the paper's second-best answer."""
    start, end = (logits[side].copy() for side in SIDES)
    for values in (start, end):
        values[windows.offsets[:-1] + _argmax(values, windows.offsets)] = -1000.0
    return span_logits(start, end, log_probs=logits.log_probs)


def combine(models: Sequence[Logits], windows: Windows, how: str = "max") -> Logits:
    """One set of log-probabilities from the logits of several models over the same windows."""
    joined: list[Floats] = []
    add = {"max": np.maximum, "mean": np.logaddexp, "product": np.add}[how]
    for side in SIDES:
        total, *others = (_log_softmax(logits[side], windows.offsets) for logits in models)
        for more in others:
            add(total, more, out=total)
        if how == "mean":
            total -= np.log(len(models))
        joined.append(total.astype(np.float32))
    return span_logits(*joined, log_probs=True)


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
    find = _argmax_candidates if config.decoding == "bertvision" else _nbest_candidates
    return _merge(windows, find(windows, logits, config), data, config)


def _nbest_candidates(windows: Windows, logits: Logits, config: DecodeConfig) -> _Candidates:
    count, n, offsets = len(windows), config.n_best_size, windows.offsets
    pair_rows = logits.arrays.get("pairs")
    score = np.full((count, n), -np.inf, np.float32)
    found = np.zeros((count, n, 2), np.float32)
    token = np.zeros((count, n, 2), np.int32)
    longest = int(windows.lengths.max())
    # What `_padded` and `_top` ask for: room behind the last window, and no -0.0. Pads may lie in this room, too.
    starts, ends = (np.pad(logits[side], (0, longest)) + np.float32(0) for side in SIDES)
    begins, stops = np.pad(windows.chars, ((0, longest), (0, 0)), constant_values=-1).T
    end_ok = begins >= 0
    limited = config.decoding == "google" and config.max_context
    start_ok = end_ok & np.pad(windows.best, (0, longest)) if limited else end_ok
    # Most tokenizers make no tokens without characters; a span that holds none at all is no answer.
    empty = bool((stops <= begins)[end_ok].any())

    def work(rows: Integers) -> None:
        """Pairs (B, k, k) of the best starts and ends of some windows, and the n best of them."""
        (start, first), (end, last) = (_top(_padded(values, offsets, rows), n) for values in (starts, ends))
        base = offsets[rows][:, None]
        at_first, at_last = base + first, base + last
        # A pad has the logit minus infinity, and the place of a token of another window.
        first_ok, last_ok = start_ok[at_first] & (start > -np.inf), end_ok[at_last] & (end > -np.inf)
        joint: Floats | None = None
        if pair_rows is not None:
            start, end, joint = _joint_parts(pair_rows, at_first, at_last)
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
        best, pair = _top(pairs.reshape(len(rows), -1), n)
        i, j = np.divmod(pair, last.shape[1])
        kept = np.s_[rows, : best.shape[1]]
        score[kept] = np.where(best > _IMPOSSIBLE, best, -np.inf)
        found[kept] = np.stack([np.take_along_axis(start, i, 1), np.take_along_axis(end, j, 1)], -1)
        if joint is not None:
            found[kept] += np.take_along_axis(joint.reshape(len(rows), -1), pair, 1)[..., None] / 2
        token[kept] = np.stack([np.take_along_axis(first, i, 1), np.take_along_axis(last, j, 1)], -1)

    parts = list(_chunks(windows.lengths, min(n, longest) ** 2))
    if len(parts) == 1:
        work(parts[0])
    else:
        # Chunks write to rows of their own, and numpy lets go of the interpreter lock while it works.
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(work, parts))
    at_null = offsets[:-1] + windows.null
    null_logits = np.stack([logits[side][at_null] for side in SIDES], axis=1)
    if pair_rows is not None:
        start, end, joint = _joint_parts(pair_rows, at_null[:, None], at_null[:, None])
        null_logits = np.concatenate([start, end], axis=1) + joint[:, 0] / 2
    return _Candidates(score, found, token, null_logits[:, 0] + null_logits[:, 1], null_logits)


def _argmax_candidates(windows: Windows, logits: Logits, config: DecodeConfig) -> _Candidates:
    offsets, null = windows.offsets, windows.null
    both = []
    for side in SIDES:
        values = logits[side]
        position = _argmax(values, offsets)
        log_probs = values.astype(np.float64) if logits.log_probs else _log_softmax(values, offsets)
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


def _chunks(lengths: Integers, row: int) -> Iterator[Integers]:
    """Indices of windows of similar length, as many as fit `_CELLS` when each is padded to the longest. A window counts
    as `row` cells if that is more than its padded length."""
    order = np.argsort(lengths, kind="stable")
    while len(order):
        rest = np.maximum(lengths[order], row)
        # `rest` only grows, so the area of the first k rows, k * rest[k - 1], grows as well.
        size = max(1, int(np.searchsorted(rest * np.arange(1, len(rest) + 1), _CELLS, side="right")))
        yield order[:size]
        order = order[size:]


def _padded(values: Floats, offsets: Integers, rows: Integers) -> Floats:
    """(B, T) the windows `rows`, padded with minus infinity to the longest of them. `values` must go on for at least T
    numbers behind the last window: rows can then be copied whole, which is much faster than gathering single
    numbers."""
    begin, lengths = offsets[rows], offsets[rows + 1] - offsets[rows]
    width = int(lengths.max())
    block = sliding_window_view(values, width)[begin]
    np.copyto(block, -np.inf, where=np.arange(width) >= lengths[:, None])
    return block


def _top(values: Floats, n: int) -> tuple[Floats, Integers]:
    """The `n` largest values of every row, largest first, and their columns; the lower column wins a tie. A float32 is
    turned into an integer of the same order, and the column is packed below it, so that no two keys are equal and a
    partial sort (which promises nothing about ties) has one possible outcome. There must be no -0.0 (adding 0 makes it
    0.0): it would be ranked below 0.0."""
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
    null, null_logits, logits = (values.astype(np.float64) for values in (null, null_logits, logits))
    return SpanAnswers(data, windows, config, diff, null, null_logits, score, logits, token)
