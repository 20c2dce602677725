"""Answers to questions: the official SQuAD 2.0 scores; candidates, probabilities and the threshold of a dataset.

`score` gives what the official evaluation script prints: the same keys, the same order, the same digits. Sums run in
the order of the data, one after the other, because the last digits depend on it. `score_wordpiece` gives the paper's
numbers, on token ids without the official normalisation: they stand beside the paper's tables and are *not* official.

A question's candidates are kept whatever wins, so that any threshold can be applied later without decoding again: no
answer is predicted where `score_diff`, the score of no answer minus that of the best candidate, exceeds the threshold.

Shapes: Q questions in the order of the data, n candidates kept for each (`n_best_size`).
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bertvision.data.examples import Example, SpanData
from bertvision.data.windows import Windows
from bertvision.errors import DataError
from bertvision.tasks.base import DecodeConfig
from bertvision.tasks.metrics import NoAnswer

Scores = dict[str, float | int]

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalise(text: str) -> str:
    """Lower case, no ASCII punctuation, no English articles, single spaces: what answers are compared by."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def token_f1(gold: Sequence[object], prediction: Sequence[object]) -> float:
    """F1 of two bags of tokens; if either is empty, 1 when both are and 0 otherwise."""
    if not gold or not prediction:
        return float(not gold and not prediction)
    same = (Counter(gold) & Counter(prediction)).total()
    if not same:
        return 0.0
    precision, recall = same / len(prediction), same / len(gold)
    return (2 * precision * recall) / (precision + recall)


def question_score(example: Example, prediction: str) -> tuple[float, float]:
    """Exact match and F1 of one prediction, each the best over the accepted answers."""
    said = normalise(prediction)
    # Of the accepted answers those of which anything is left; without any, no answer is right.
    golds = [text for answer in example.answers if (text := normalise(answer.text))] or [""]
    return float(said in golds), max(token_f1(gold.split(), said.split()) for gold in golds)


def _complete(examples: Sequence[Example], values: Mapping[str, object], what: str, way_out: str) -> None:
    missing = [example.id for example in examples if example.id not in values]
    if missing:
        of = f"{len(missing)} of the {len(examples)} questions, first {missing[0]!r}"
        raise DataError(f"the {what} lack {of}: {way_out}")


def per_question(
    data: SpanData, predictions: Mapping[str, str], *, allow_missing: bool = False
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(Q,) exact match and (Q,) F1 between 0 and 1, in the order of the data; NaN where none is given."""
    if not allow_missing:
        what = f"predictions of {data.name}"
        _complete(data.examples, predictions, what, "predict them, or allow missing ones")
    scores = [
        question_score(example, predictions[example.id]) if example.id in predictions else (np.nan, np.nan)
        for example in data.examples
    ]
    exact, f1 = np.array(scores, np.float64).reshape(-1, 2).T
    return exact, f1


def _in_order_sum(values: NDArray[np.float64]) -> float:
    """Sum from first to last; `np.sum` adds pairwise and `sum` compensates from Python 3.12 on."""
    return float(np.cumsum(values)[-1]) if values.size else 0.0


def summary(exact: NDArray[np.float64], f1: NDArray[np.float64], answerable: NDArray[np.bool_]) -> Scores:
    """Percentages over all questions, the answerable (HasAns) and the unanswerable (NoAns) ones."""
    result: Scores = {}
    for prefix, part in (("", np.ones_like(answerable)), ("HasAns_", answerable), ("NoAns_", ~answerable)):
        total = int(part.sum())
        if total:
            result[f"{prefix}exact"] = 100.0 * _in_order_sum(exact[part]) / total
            result[f"{prefix}f1"] = 100.0 * _in_order_sum(f1[part]) / total
            result[f"{prefix}total"] = total
    return result


def score(
    data: SpanData,
    predictions: Mapping[str, str],
    *,
    na_probs: Mapping[str, float] | None = None,
    na_prob_thresh: float = 1.0,
    allow_missing: bool = False,
) -> Scores:
    """The official numbers. With `na_probs` (any number that grows with no answer, such as null odds), predictions
    above `na_prob_thresh` count as no answer, and the best thresholds and average precisions are added."""
    exact, f1 = per_question(data, predictions, allow_missing=allow_missing)
    scored = np.flatnonzero(~np.isnan(exact))
    if not scored.size:
        raise DataError(
            f"none of the {len(data)} questions of {data.name} has a prediction: nothing to score"
        )
    exact, f1 = exact[scored], f1[scored]
    examples = [data.examples[i] for i in scored.tolist()]
    answerable = np.array([example.answerable for example in examples])
    odds = np.zeros(len(examples))
    if na_probs is not None:
        _complete(examples, na_probs, "no-answer probabilities", "they must cover every predicted question")
        odds = np.array([na_probs[example.id] for example in examples], np.float64)
    null = odds > na_prob_thresh
    result = summary(np.where(null, ~answerable, exact), np.where(null, ~answerable, f1), answerable)
    if na_probs is None:
        return result

    # Questions of equal odds stay in the order of the na_probs file, as a stable sort leaves them.
    place = {example.id: i for i, example in enumerate(examples)}
    listed = np.array([place[key] for key in na_probs if key in place])
    order = listed[np.argsort(odds[listed], kind="stable")]
    answered = np.array([bool(predictions[example.id]) for example in examples])
    for name, values in (("exact", exact), ("f1", f1)):
        best, threshold = _best_threshold(values[order], answered[order], answerable[order], odds[order])
        result[f"best_{name}"], result[f"best_{name}_thresh"] = best, threshold
    if answerable.any():
        for name, values in (("exact", exact), ("f1", f1), ("oracle", answerable.astype(np.float64))):
            right = np.where(answerable, values, 0.0)
            result[f"pr_{name}_ap"] = _average_precision(right[order], odds[order], int(answerable.sum()))
    return result


def _best_threshold(
    values: NDArray[np.float64],
    answered: NDArray[np.bool_],
    answerable: NDArray[np.bool_],
    odds: NDArray[np.float64],
) -> tuple[float, float]:
    """Best percentage over all thresholds and the threshold, questions in rising order of `odds`. As in the official
    script, a cut between questions of equal odds counts although no threshold can make it."""
    gains = np.where(answerable, values, np.where(answered, -1.0, 0.0))
    reached = np.cumsum(np.concatenate([[float((~answerable).sum())], gains]))
    best = int(reached.argmax())
    return 100.0 * float(reached[best]) / len(values), float(odds[best - 1]) if best else 0.0


def _average_precision(right: NDArray[np.float64], odds: NDArray[np.float64], positives: int) -> float:
    """Area under precision over recall, in percent; questions in rising order of `odds`."""
    cut = np.append(odds[1:] != odds[:-1], True)  # where a threshold can stand
    found = np.cumsum(right)
    precision = (found / np.arange(1, len(right) + 1))[cut]
    recall = (found / positives)[cut]
    return 100.0 * _in_order_sum(precision * np.diff(recall, prepend=0.0))


def score_wordpiece(
    data: SpanData, predictions: Mapping[str, Sequence[int]], tokenize: Callable[[list[str]], list[list[int]]]
) -> Scores:
    """Percentages of predicted token ids, [] for no answer; `tokenize` gives those of texts, without special tokens."""
    _complete(data.examples, predictions, f"predictions of {data.name}", "predict them all")
    known = sorted({answer.text for example in data.examples for answer in example.answers} - {""})
    ids = {"": []} | dict(zip(known, tokenize(known), strict=True))
    scores = []
    for example in data.examples:
        said = list(predictions[example.id])
        accepted = [ids[answer.text] for answer in example.answers] or [[]]
        scores.append((said in accepted, max(token_f1(gold, said) for gold in accepted)))
    exact, f1 = np.array(scores, np.float64).reshape(-1, 2).T
    return summary(exact, f1, np.array([example.answerable for example in data.examples]))


# ---- answers of a dataset

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
    null_score: NDArray[np.float64]  # (Q,) of no answer over all windows; minus infinity: none votes for it
    null_logits: NDArray[np.float64]  # (Q, 2) start and end logit behind `null_score`
    nbest_score: NDArray[np.float64]  # (Q, n) of the candidates, best first; minus infinity behind the last
    nbest_logits: NDArray[np.float64]  # (Q, n, 2) their start and end logits
    nbest_token: NDArray[np.int32]  # (Q, n, 3) window, first and last token in it, up to the last candidate

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
    def answerable(self) -> NDArray[np.bool_]:  # (Q,)
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
        """Predictions with probabilities that sum to 1 over no answer and the candidates of the n-best list. With a
        calibration no answer has the calibrated probability, and the candidates share the rest in the ratio of their
        softmax; without one, no answer is one more candidate of that softmax. A span that two windows propose is one
        candidate with the shares of both, at the place of the better one."""
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
