"""Official SQuAD 2.0 scoring: the same keys, the same order, the same digits.

`score` gives what the official evaluation script prints; `per_question` the scores behind it. Sums run in the order of
the data, one after the other, because the last digits depend on it. Nothing here needs torch.

`score_wordpiece` gives the paper's numbers, on lists of token ids without the official normalisation. They are *not*
official SQuAD scores; they exist to stand beside the paper's tables.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bertvision.data.examples import Example, SpanData
from bertvision.errors import DataError

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
