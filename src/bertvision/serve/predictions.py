"""What `predict` tells of an example: an answer with its rivals, a label, or a score.

Of spans all probabilities of an example sum to 1: no answer, and the candidates of the n-best list. Where the head's
folder holds a calibration (tasks/span/calibration.py), no answer has the calibrated probability, and the candidates
share what is left in the ratio of their softmax; without one, no answer is one more candidate of that softmax. A span
that two windows propose is one candidate with the shares of both, at the place of the better one.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertvision.errors import ConfigError
from bertvision.tasks.span.answers import SpanAnswers
from bertvision.tasks.span.calibration import NoAnswer
from bertvision.tasks.text.answers import TextAnswers

__all__ = [
    "AnyPrediction",
    "Candidate",
    "LabelPrediction",
    "Prediction",
    "ScorePrediction",
    "candidates",
    "check_n_best",
    "span_predictions",
    "text_predictions",
    "words_of",
]


@dataclass(frozen=True)
class Candidate:
    """One of the best answers that were found, whether or not any is given."""

    text: str
    start: int
    """First character in the context; -1 where the paper's decoding points into the question."""
    end: int
    """One past its last character."""
    probability: float


@dataclass(frozen=True)
class Prediction:
    text: str
    """The answer; empty for no answer."""
    start: int
    """First character of the answer in the context, -1 for no answer."""
    end: int
    """One past its last character, -1 for no answer."""
    probability: float
    """Of the best answer found, whether or not it was given."""
    no_answer_probability: float
    """Calibrated on the split the threshold was tuned on, where the head's folder holds a calibration."""
    nbest: tuple[Candidate, ...] = ()
    """The best candidates, best first, no answer not among them; as many as were asked for (n_best)."""


@dataclass(frozen=True)
class LabelPrediction:
    label: str
    """The class with the greatest probability."""
    probability: float
    """Its probability."""
    probabilities: dict[str, float]
    """Of every class."""


@dataclass(frozen=True)
class ScorePrediction:
    score: float


AnyPrediction = Prediction | LabelPrediction | ScorePrediction


def words_of(prediction: AnyPrediction) -> dict[str, Any]:
    """A prediction as JSON tells it; candidates stand there only where some were asked for."""
    told = asdict(prediction)
    if not told.get("nbest", True):
        del told["nbest"]
    return told


def check_n_best(count: int) -> int:
    """How many candidates to tell; 0 = none."""
    if count < 0:
        raise ConfigError(f"--n-best must not be negative, not {count}: 0 tells the answer alone")
    return count


def span_predictions(
    answers: SpanAnswers, no_answer: NoAnswer | None = None, *, n_best: int = 0
) -> list[Prediction]:
    """One `Prediction` a question, at the decoding's threshold."""
    null, texts, spans = answers.is_null().tolist(), answers.text, answers.span.tolist()
    best, absent = _probabilities(answers, no_answer)
    firsts, absents = best[:, 0].tolist(), absent.tolist()
    return [
        Prediction(
            text="" if null[i] else texts[i],
            start=-1 if null[i] else spans[i][0],
            end=-1 if null[i] else spans[i][1],
            probability=firsts[i],
            no_answer_probability=absents[i],
            nbest=candidates(answers, i, best[i], n_best) if n_best else (),
        )
        for i in range(len(answers))
    ]


def _probabilities(
    answers: SpanAnswers, no_answer: NoAnswer | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(Q, n) of the candidates and (Q,) of no answer."""
    best = _summed(answers)
    if no_answer is None:
        return best, answers.no_answer_probability
    absent = no_answer.probability(answers.score_diff)
    # Without a candidate the softmax is no answer's alone, and so is the calibrated probability.
    return best * ((1 - absent) / np.maximum(best.sum(axis=1), 1e-300))[:, None], absent


def _summed(answers: SpanAnswers) -> NDArray[np.float64]:
    """(Q, n) probabilities of the candidates; of equal spans the first has the shares of all, and the others none."""
    shares, spans = answers.candidate_probabilities, answers.nbest_span
    same = (spans[:, :, None] == spans[:, None]).all(axis=-1)  # (Q, n, n)
    again = np.tril(same, k=-1).any(axis=2)
    if not again.any():
        return shares
    return np.where(again, 0.0, np.einsum("qij,qj->qi", same, shares))


def candidates(
    answers: SpanAnswers, question: int, probabilities: NDArray[np.float64], count: int
) -> tuple[Candidate, ...]:
    """The best `count` different spans of a question; one that two windows propose stands once."""
    example = answers.data.examples[question]
    context = answers.data.paragraphs[example.paragraph]
    found: dict[tuple[int, int], Candidate] = {}
    exists = np.isfinite(answers.nbest_score[question]).tolist()
    places = zip(answers.nbest_span[question].tolist(), probabilities.tolist(), exists, strict=True)
    for (start, end), probability, there in places:
        if not there or len(found) == count:
            break
        text = context[start:end] if start >= 0 else example.question
        found.setdefault((start, end), Candidate(text, start, end, probability))
    return tuple(found.values())


def text_predictions(answers: TextAnswers) -> list[LabelPrediction | ScorePrediction]:
    """One prediction an example."""
    if answers.probabilities is None:
        return [ScorePrediction(value) for value in answers.values.tolist()]
    names = answers.task.classes
    return [
        LabelPrediction(names[best], row[best], dict(zip(names, row, strict=True)))
        for best, row in zip(answers.values.tolist(), answers.probabilities.tolist(), strict=True)
    ]
