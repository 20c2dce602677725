"""Answers to questions: candidates, probabilities and the threshold, for every question of a dataset.

Shapes: Q questions in the order of the data, n candidates kept for each (`n_best_size`).

A question's candidates are kept whatever wins, so that any threshold can be applied later without decoding again: no
answer is predicted where `score_diff`, the score of no answer minus that of the best candidate, exceeds the threshold.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bertvision.data.examples import SpanData
from bertvision.data.windows import Windows
from bertvision.errors import DataError
from bertvision.tasks.base import DecodeConfig
from bertvision.tasks.metrics import NoAnswer
from bertvision.tasks.squad import question_score

# Stands for an infinite score or score difference where a finite number is needed (JSON, softmax).
_HUGE = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Candidate:
    """One of the best answers that were found, whether or not any is given."""

    text: str
    start: int  # first character in the context; -1 where the paper's decoding points into the question
    end: int  # one past its last character
    probability: float


@dataclass(frozen=True)
class Prediction:
    """The answer to a question."""

    kind: ClassVar[str] = "span"
    text: str  # empty for no answer
    start: int  # first character of the answer in the context, -1 for no answer
    end: int  # one past its last character, -1 for no answer
    probability: float  # of the best answer found, whether or not it was given
    no_answer_probability: float  # calibrated on the split of the threshold, where the head's folder says how
    nbest: tuple[Candidate, ...] = ()  # as many as were asked for, best first, no answer not among them

    def line(self) -> str:
        said = f"{self.text}  [{self.start}:{self.end}]" if self.text else "(no answer) "
        return f"{said} p={self.probability:.3f}  no answer p={self.no_answer_probability:.3f}"


@dataclass(frozen=True)
class SpanAnswers:
    data: SpanData
    windows: Windows  # what was decoded; candidates point into them
    decode: DecodeConfig  # how they were found; its threshold is the one applied where none is given
    score_diff: NDArray[np.float64]  # (Q,) no answer minus best candidate; plus infinity without a candidate
    null_score: NDArray[
        np.float64
    ]  # (Q,) of no answer, merged over windows; minus infinity: none votes for it
    null_logits: NDArray[np.float64]  # (Q, 2) start and end logit behind `null_score`
    nbest_score: NDArray[np.float64]  # (Q, n) of the candidates, best first; minus infinity behind the last
    nbest_logits: NDArray[np.float64]  # (Q, n, 2) their start and end logits
    nbest_token: NDArray[
        np.int32
    ]  # (Q, n, 3) window, first and last token inside it, up to the last candidate

    def __len__(self) -> int:
        return len(self.score_diff)

    @cached_property
    def ids(self) -> list[str]:
        return [example.id for example in self.data.examples]

    @cached_property
    def exists(self) -> NDArray[np.bool_]:
        """(Q, n) False behind the last candidate."""
        return np.isfinite(self.nbest_score)

    @cached_property
    def nbest_span(self) -> NDArray[np.int32]:
        """(Q, n, 2) first character of the candidates in their paragraph and one past the last, cut to the context;
        (-1, -1): none in the paragraph."""
        windows, window = self.windows, self.nbest_token[..., 0]
        first = np.maximum(self.nbest_token[..., 1], windows.context[window, 0])
        last = np.minimum(self.nbest_token[..., 2], windows.context[window, 1] - 1)
        inside, base = self.exists & (first <= last), windows.offsets[window]
        sides = [windows.chars[base + np.where(inside, at, 0), i] for i, at in enumerate((first, last))]
        return np.where(inside[..., None], np.stack(sides, axis=-1), -1)

    def text(self, question: int, start: int, end: int) -> str:
        """`bertvision` decoding may point into the question: a wrong answer, which must not read as "no answer"."""
        example = self.data.examples[question]
        return self.data.paragraphs[example.paragraph][start:end] if start >= 0 else example.question

    @cached_property
    def best(self) -> list[str]:
        """The text of each question's best candidate, whether or not no answer beats it; "" where there is none."""
        places = zip(self.nbest_span[:, 0].tolist(), self.exists[:, 0].tolist(), strict=True)
        return [self.text(q, *span) if there else "" for q, (span, there) in enumerate(places)]

    def is_null(self, threshold: float | None = None) -> NDArray[np.bool_]:
        """(Q,) where no answer is predicted: no candidate, or `score_diff` above the threshold."""
        limit = self.decode.null_score_diff_threshold if threshold is None else threshold
        return (self.score_diff > limit) | ~self.exists[:, 0]

    def predictions(self, threshold: float | None = None) -> dict[str, str]:
        """Question id to answer, "" for no answer."""
        null = self.is_null(threshold).tolist()
        return {i: "" if n else t for i, n, t in zip(self.ids, null, self.best, strict=True)}

    def token_ids(self) -> dict[str, list[int]]:
        """Question id to the token ids of its answer as the encoder read them, [] for no answer."""
        windows, (window, first, last) = self.windows, self.nbest_token[:, 0].T
        begin = windows.offsets[window]
        rows = zip(self.ids, begin + first, begin + last + 1, self.is_null(), strict=True)
        return {key: [] if null else windows.ids[start:stop].tolist() for key, start, stop, null in rows}

    @cached_property
    def answerable(self) -> NDArray[np.bool_]:
        """(Q,) whether the paragraph holds an answer."""
        return np.array([example.answerable for example in self.data.examples], np.bool_)

    @cached_property
    def judged_apart(self) -> NDArray[np.float64]:
        """(2, Q, 2) exact match and F1 of the best candidate, whether or not no answer beats it, and of no answer."""
        examples = self.data.examples
        best = [question_score(example, text) for example, text in zip(examples, self.best, strict=True)]
        return np.array([best, [question_score(example, "") for example in examples]], np.float64)

    def judged(self, threshold: float | None = None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(Q,) exact match and (Q,) F1 between 0 and 1 of the predictions at a threshold."""
        best, empty = self.judged_apart
        exact, f1 = np.where(self.is_null(threshold)[:, None], empty, best).T
        return exact, f1

    @cached_property
    def _kept(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(Q,) candidates that stay in the n-best list, and how many of them stand before no answer: it takes one of
        the n places when it is good enough and is added to them when it is not; the best candidate always stays."""
        n = self.nbest_score.shape[1]
        before = (self.exists & (self.nbest_score >= self.null_score[:, None])).sum(axis=1)
        return np.where(before < n, np.minimum(self.exists.sum(axis=1), max(n - 1, 1)), n), before

    @cached_property
    def probabilities(self) -> NDArray[np.float64]:
        """(Q, n + 1) softmax over the n-best list: candidates, 0 behind the last, and in the last column no answer."""
        kept, _ = self._kept
        scores = np.concatenate([self.nbest_score, self.null_score[:, None]], axis=1)
        scores = np.clip(scores, -_HUGE, _HUGE)
        scores[:, :-1][np.arange(self.nbest_score.shape[1]) >= kept[:, None]] = -np.inf
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)

    @property
    def null_odds(self) -> dict[str, float]:
        """Question id to `score_diff`, infinities replaced by the largest float32 (JSON knows none)."""
        return dict(zip(self.ids, np.clip(self.score_diff, -_HUGE, _HUGE).tolist(), strict=True))

    @property
    def nbest(self) -> dict[str, list[dict[str, Any]]]:
        """Question id to its candidates, best first and no answer (text "") at its place among them."""
        kept, before = (array.tolist() for array in self._kept)
        # Plain columns: lists of pairs would make half a million small objects.
        columns = (*np.moveaxis(self.nbest_logits, 2, 0), *np.moveaxis(self.nbest_span, 2, 0))
        rows = zip(*(column.tolist() for column in columns), self.probabilities.tolist(), strict=True)
        nulls = np.clip(self.null_logits, -_HUGE, _HUGE).tolist()
        lists: dict[str, list[dict[str, Any]]] = {}
        for q, (key, row) in enumerate(zip(self.ids, rows, strict=True)):
            found = [*islice(zip(*row, strict=False), kept[q])]
            entries = [(i, j, self.text(q, first, last), p) for i, j, first, last, p in found]
            entries.insert(before[q], (*nulls[q], "", row[-1][-1]))
            names = ("start_logit", "end_logit", "text", "probability")
            lists[key] = [dict(zip(names, entry, strict=True)) for entry in entries]
        return lists

    def detailed(self, threshold: float | None, no_answer: NoAnswer | None, n_best: int) -> list[Prediction]:
        """Predictions with probabilities that sum to 1 over no answer and the candidates of the n-best list.

        With a calibration no answer has the calibrated probability, and the candidates share the rest in the ratio of
        their softmax; without one, no answer is one more candidate of that softmax. A span that two windows propose is
        one candidate with the shares of both, at the place of the better one.
        """
        best, absent = self.probabilities[:, :-1], self.probabilities[:, -1]  # (Q, n), (Q,)
        spans = self.nbest_span
        same = (spans[:, :, None] == spans[:, None]).all(axis=-1)  # (Q, n, n)
        again = np.tril(same, k=-1).any(axis=2)
        if again.any():
            best = np.where(again, 0.0, np.einsum("qij,qj->qi", same, best))
        if no_answer is not None:
            absent = no_answer.probability(self.score_diff)
            # Without a candidate the softmax is no answer's alone, and so is the calibrated probability.
            best = best * ((1 - absent) / np.maximum(best.sum(axis=1), 1e-300))[:, None]
        different, null, found = self.exists & ~again, self.is_null(threshold).tolist(), []
        for q, text in enumerate(self.best):
            nbest = []
            for i in np.flatnonzero(different[q])[:n_best].tolist():
                start, end = spans[q, i].tolist()
                nbest.append(Candidate(self.text(q, start, end), start, end, float(best[q, i])))
            text, start, end = ("", -1, -1) if null[q] else (text, *spans[q, 0].tolist())
            found.append(Prediction(text, start, end, float(best[q, 0]), float(absent[q]), tuple(nbest)))
        return found


def best_threshold(answers: SpanAnswers) -> float:
    """The threshold with the highest F1; of equally good ones, the closest to 0. It stands half-way between the last
    question that is answered and the first that is not; all such places are tried."""
    if not len(answers):
        raise DataError(f"{answers.data.name} has no questions: a threshold needs some to be tuned on")
    order = np.argsort(answers.score_diff, kind="stable")
    null = (~answers.answerable).astype(np.float64)
    gain = (answers.judged_apart[0, :, 1] - null)[order]
    reached = null.sum() + np.concatenate([[0.0], np.cumsum(gain)])  # (Q + 1,) with the first k answered
    values = _cut_values(answers.score_diff[order])
    reached[np.isnan(values)] = -np.inf
    # Sums in another order differ in the last digits; such cuts are equally good.
    good = np.flatnonzero(reached >= reached.max() - 1e-9 * len(answers))
    return float(values[good[np.argmin(np.abs(values[good]))]])


def _cut_values(diff: NDArray[np.float64]) -> NDArray[np.float64]:
    """(Q + 1,) a finite threshold that answers the first k questions; NaN where none does. `diff` rises; equal
    neighbours cannot be separated, and infinite ones lie on one side of every threshold."""
    below, above = np.append(-np.inf, diff), np.append(diff, np.inf)
    with np.errstate(invalid="ignore"):  # between minus and plus infinity: set to 0 below
        values = (below + above) / 2
    values = np.where(np.isneginf(values), above - 1.0, np.where(np.isposinf(values), below + 1.0, values))
    values = np.where(values >= above, below, values)  # no number lies between them: rounded up
    values[(below <= 0) & (above > 0)] = 0.0
    return np.where((below <= values) & (values < above), values, np.nan)
