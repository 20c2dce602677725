"""Answers: what the user gets back, for every question of a data set.

Shapes: Q questions in the order of the data, n candidates kept for each (`n_best_size`).

A question's candidates are kept whatever wins, so that any threshold can be applied later without
decoding again: no answer is predicted where `score_diff`, the score of no answer minus that of the best
candidate, exceeds the threshold.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertvision.data.examples import SpanData
from bertvision.data.windows import Windows
from bertvision.tasks.settings import DecodeConfig
from bertvision.tasks.squad import question_score

# Stands for an infinite score or score difference where a finite number is needed (JSON, softmax).
_HUGE = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class SpanAnswers:
    data: SpanData
    windows: Windows
    """What was decoded; candidates point into them."""
    decode: DecodeConfig
    """How they were found; its threshold is the one applied where none is given."""
    score_diff: NDArray[np.float64]
    """(Q,) no answer minus best candidate; plus infinity where no candidate exists."""
    null_score: NDArray[np.float64]
    """(Q,) score of no answer, merged over the question's windows; minus infinity: no window votes for it."""
    null_logits: NDArray[np.float64]
    """(Q, 2) start and end logit behind `null_score`."""
    nbest_score: NDArray[np.float64]
    """(Q, n) scores of the candidates, best first; minus infinity behind the last."""
    nbest_logits: NDArray[np.float64]
    """(Q, n, 2) their start and end logits."""
    nbest_token: NDArray[np.int32]
    """(Q, n, 3) window, first and last token (inclusive) inside it; no meaning behind the last candidate."""

    def __len__(self) -> int:
        return len(self.score_diff)

    @cached_property
    def ids(self) -> list[str]:
        return [example.id for example in self.data.examples]

    @property
    def score(self) -> NDArray[np.float64]:
        """(Q,) score of the best candidate."""
        return self.nbest_score[:, 0]

    @cached_property
    def span(self) -> NDArray[np.int32]:
        """(Q, 2) first character of the best candidate in its paragraph and one past its last."""
        return self._characters(self.nbest_token[:, 0])

    @cached_property
    def nbest_span(self) -> NDArray[np.int32]:
        """(Q, n, 2) characters of the candidates; (-1, -1): none in the paragraph."""
        return np.where(np.isfinite(self.nbest_score)[..., None], self._characters(self.nbest_token), -1)

    def _characters(self, token: NDArray[np.int32]) -> NDArray[np.int32]:
        """(..., 2) characters of token spans, cut to the context; (-1, -1) where they do not touch it."""
        windows, window = self.windows, token[..., 0]
        first = np.maximum(token[..., 1], windows.context[window, 0])
        last = np.minimum(token[..., 2], windows.context[window, 1] - 1)
        inside, base = first <= last, windows.offsets[window]
        span = np.empty((*window.shape, 2), np.int32)
        span[..., 0] = np.where(inside, windows.chars[base + np.where(inside, first, 0), 0], -1)
        span[..., 1] = np.where(inside, windows.chars[base + np.where(inside, last, 0), 1], -1)
        return span

    @cached_property
    def text(self) -> list[str]:
        """The best candidate of each question, whether or not no answer beats it; "" where there is none."""
        paragraphs = self.data.paragraphs
        # `bertvision` decoding may point into the question. That is an answer, a wrong one, and it must
        # not read as "no answer"; the question itself is the nearest text there is.
        texts = [
            paragraphs[example.paragraph][begin:end] if begin >= 0 else example.question
            for example, (begin, end) in zip(self.data.examples, self.span.tolist(), strict=True)
        ]
        for q in np.flatnonzero(~np.isfinite(self.score)).tolist():
            texts[q] = ""
        return texts

    def is_null(self, threshold: float | None = None) -> NDArray[np.bool_]:
        """(Q,) where no answer is predicted: no candidate, or `score_diff` above the threshold."""
        limit = self.decode.null_score_diff_threshold if threshold is None else threshold
        return (self.score_diff > limit) | ~np.isfinite(self.score)

    def predictions(self, threshold: float | None = None) -> dict[str, str]:
        """Question id to answer, "" for no answer."""
        null = self.is_null(threshold).tolist()
        return {i: "" if n else t for i, n, t in zip(self.ids, null, self.text, strict=True)}

    @cached_property
    def answerable(self) -> NDArray[np.bool_]:
        """(Q,) whether the paragraph holds an answer."""
        return np.array([example.answerable for example in self.data.examples], np.bool_)

    @cached_property
    def _judged(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(Q, 2) exact match and F1 of the best candidate, and (Q, 2) those of no answer."""
        examples = self.data.examples
        best = [question_score(example, text) for example, text in zip(examples, self.text, strict=True)]
        empty = [question_score(example, "") for example in examples]
        return np.array(best, np.float64).reshape(-1, 2), np.array(empty, np.float64).reshape(-1, 2)

    def judged(self, threshold: float | None = None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(Q,) exact match and (Q,) F1 between 0 and 1 of the predictions at a threshold."""
        best, empty = self._judged
        values = np.where(self.is_null(threshold)[:, None], empty, best)
        return values[:, 0], values[:, 1]

    @property
    def candidates_judged(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(Q,) exact match and (Q,) F1 of the best candidates, whether or not no answer beats them."""
        best, _ = self._judged
        return best[:, 0], best[:, 1]

    @property
    def null_odds(self) -> dict[str, float]:
        """Question id to `score_diff`, infinities replaced by the largest float32 (JSON knows none)."""
        return dict(zip(self.ids, np.clip(self.score_diff, -_HUGE, _HUGE).tolist(), strict=True))

    @cached_property
    def _kept(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(Q,) candidates that stay in the n-best list, and how many of them stand before no answer.

        No answer takes one of the n places when it is good enough and is added to them when it is not;
        the best candidate always stays.
        """
        n = self.nbest_score.shape[1]
        count = np.isfinite(self.nbest_score).sum(axis=1)
        before = (np.isfinite(self.nbest_score) & (self.nbest_score >= self.null_score[:, None])).sum(axis=1)
        return np.where(before < n, np.minimum(count, max(n - 1, 1)), n), before

    @cached_property
    def _probabilities(self) -> NDArray[np.float64]:
        """(Q, n + 1) softmax over the kept candidates and, in the last column, no answer."""
        kept, _ = self._kept
        scores = np.concatenate([self.nbest_score, self.null_score[:, None]], axis=1)
        scores = np.clip(scores, -_HUGE, _HUGE)
        scores[:, :-1][np.arange(self.nbest_score.shape[1]) >= kept[:, None]] = -np.inf
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)

    @property
    def probability(self) -> NDArray[np.float64]:
        """(Q,) probability of the best candidate among the n-best list and no answer."""
        return self._probabilities[:, 0]

    @property
    def candidate_probabilities(self) -> NDArray[np.float64]:
        """(Q, n) probability of each candidate among the n-best list and no answer; 0 behind the last."""
        return self._probabilities[:, :-1]

    @property
    def no_answer_probability(self) -> NDArray[np.float64]:
        """(Q,) probability of no answer among the n-best list and no answer."""
        return self._probabilities[:, -1]

    @property
    def nbest(self) -> dict[str, list[dict[str, Any]]]:
        """Question id to its candidates, best first and no answer (text "") at its place among them."""
        kept, before = (array.tolist() for array in self._kept)
        # Plain columns: lists of pairs would make half a million small objects.
        columns = (*np.moveaxis(self.nbest_logits, 2, 0), *np.moveaxis(self.nbest_span, 2, 0))
        rows = zip(*(column.tolist() for column in columns), self._probabilities.tolist(), strict=True)
        nulls = np.clip(self.null_logits, -_HUGE, _HUGE).tolist()
        lists: dict[str, list[dict[str, Any]]] = {}
        for q, (example, row) in enumerate(zip(self.data.examples, rows, strict=True)):
            context = self.data.paragraphs[example.paragraph]
            entries = [
                {
                    "start_logit": start,
                    "end_logit": end,
                    "text": context[first:last] if first >= 0 else example.question,
                    "probability": probability,
                }
                for start, end, first, last, probability in islice(zip(*row, strict=False), kept[q])
            ]
            start, end = nulls[q]
            null = {"start_logit": start, "end_logit": end, "text": "", "probability": row[-1][-1]}
            entries.insert(before[q], null)
            lists[example.id] = entries
        return lists
