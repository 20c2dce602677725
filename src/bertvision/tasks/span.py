"""Spans: the answer to a question, cut out of a paragraph, or no answer.

A head gives a start and an end logit for every token (span_logits.py); decoding makes them answers (span_decode.py,
span_answers.py). Metrics are the official ones of SQuAD (squad.py), at the decoding's threshold and at the threshold
tuned on dev.

On disk, the three files that users of run_qa.py know: predictions.json (id -> text, "" for no answer),
nbest_predictions.json (id -> list of {start_logit, end_logit, text, probability}, best first) and null_odds.json
(id -> score of no answer minus that of the best candidate), which `bertvision score --na-prob` reads.

Shapes: Q questions, n candidates of each, W windows, B windows of a batch, T tokens.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bertvision.artifacts import write_json_rows
from bertvision.config import to_mapping
from bertvision.data.examples import SpanData, TextData
from bertvision.data.reframe import Reframe
from bertvision.data.windows import WindowConfig, Windows
from bertvision.errors import ConfigError
from bertvision.shapes import Float, Int
from bertvision.tasks import metrics, span_explain, squad
from bertvision.tasks.base import Task, Tuning, register
from bertvision.tasks.calibrate import NoAnswer, fit_no_answer
from bertvision.tasks.compare import Difference, mcnemar, mean_difference
from bertvision.tasks.logits import Logits
from bertvision.tasks.predictions import Candidate, Prediction
from bertvision.tasks.settings import PLAIN, DecodeConfig, TextConfig
from bertvision.tasks.span_answers import SpanAnswers
from bertvision.tasks.span_decode import decode
from bertvision.tasks.span_logits import SpanCollector, check_spans, combine
from bertvision.tasks.texts import as_questions
from bertvision.tasks.threshold import best_threshold

if TYPE_CHECKING:
    from torch import Tensor

    from bertvision.states.batch import StateBatch


@dataclass(frozen=True)
class SpanTuning(Tuning):
    """What decides whether a question is answered, and the decoding it was fitted with."""

    threshold: float = 0.0
    """No answer is given where its score exceeds the best candidate's by more than this."""
    no_answer: NoAnswer | None = None
    """The calibrated probability of no answer; None where dev has no questions of both kinds."""
    decode: DecodeConfig = field(default_factory=DecodeConfig)

    def __post_init__(self) -> None:
        if not math.isfinite(self.threshold):
            raise ConfigError(f"--threshold must be a finite number, not {self.threshold}")


@register
@dataclass(frozen=True)
class SpanTask(Task):
    """Find the answer to a question in a paragraph."""

    kind = "span"
    unit = "token"
    metrics = metrics.SPAN
    tuning_class = SpanTuning
    arrays = ("start", "end")
    abstains = True
    joins = ("max", "mean", "product")
    limits = "Heads for spans copy a part of the text they are given, or say that there is none."

    metric: str = "tuned_f1"
    weights: tuple[float, float] = (1.0, 1.0)
    """What a window with the answer and one without it count in the loss; no file keeps it, because nothing that
    reads a head asks for it."""

    @property
    def head(self) -> str:
        return "last_state"

    @property
    def outputs(self) -> int:
        return 2

    @property
    def reads_questions(self) -> bool:
        return True

    @property
    def texts_read(self) -> int:
        return 2

    @property
    def hub_task(self) -> str:
        return "question-answering"

    @property
    def about(self) -> str:
        return "Given a question and a text it returns the span that answers it, or says that the text holds no answer."

    @property
    def call(self) -> str:
        return '"question", "context"'

    def config(self) -> dict[str, Any]:
        return {"kind": self.kind, "metric": self.metric}

    # ---- from data to a task

    @classmethod
    def of(cls, data: SpanData, text: TextConfig, windows: WindowConfig) -> "SpanTask":
        if text.learning != PLAIN or text.columns.named or text.reframe != Reframe():
            raise ConfigError(
                f"--text... says how texts with labels or scores are read, and {data.name} holds questions over "
                "paragraphs: leave it out"
            )
        return cls()

    def prepare(self, data: SpanData | TextData, how: Reframe) -> SpanData:
        return as_questions(data)

    def describe(self, data: SpanData) -> dict[str, Any]:
        absent = sum(not example.answerable for example in data.examples)
        return {"counts": {"answer": len(data) - absent, "no answer": absent}}

    # ---- training

    def targets(self, data: SpanData, windows: Windows) -> NDArray[np.int32]:
        """(W, 2) first and last token of the answer; the null token twice where a window has none."""
        return windows.labels

    def loss(self, logits: "Tensor", batch: "StateBatch") -> "Tensor":
        from bertvision.tasks.span_loss import span_loss

        loss, weight = span_loss(logits, batch.mask, batch.targets), self._weight(batch.targets, batch.bounds)
        return loss if weight is None else loss * weight

    def _weight(
        self, targets: "Int[Tensor, 'B 2']", bounds: "Int[Tensor, 'B 2']"
    ) -> "Float[Tensor, ' B'] | None":
        """What each window counts, without looking at values: a step with it can be captured and replayed."""
        if self.weights == (1.0, 1.0):
            return None
        # The token that means "no answer" stands outside the paragraph, wherever an encoder has it.
        start = targets[:, 0]
        found = (start >= bounds[:, 0]) & (start < bounds[:, 1])  # (B,)
        # Products: `where` would have to send both numbers to the device in every step.
        return found * self.weights[0] + ~found * self.weights[1]

    def sampling_classes(self, data: SpanData, windows: Windows, bins: int) -> NDArray[np.int64]:
        """1 for windows with the answer, 0 for those without it."""
        return (windows.labels[:, 0] != windows.null).astype(np.int64)

    def weighted(
        self, data: SpanData, windows: Windows, *, balance: bool = False, null_weight: float = 1.0
    ) -> Task:
        """The mean weight over all windows stays 1, so that learning rates keep their meaning."""
        if balance or null_weight == 1:
            return super().weighted(data, windows, balance=balance)
        without = int((windows.labels[:, 0] == windows.null).sum())
        count = len(windows)
        unit = count / (count - without + null_weight * without) if count else 1.0
        return replace(self, weights=(unit, null_weight * unit))

    # ---- logits

    def collector(self, windows: Windows) -> SpanCollector:
        return SpanCollector(windows)

    def check_logits(self, logits: Logits, windows: Windows) -> None:
        check_spans(logits, windows)

    def join(self, members: Sequence[Logits], windows: Windows, how: str = "") -> Logits:
        return combine(members, windows, self.join_how(how, members))

    # ---- answers

    def untuned(self, decode: DecodeConfig | None = None) -> SpanTuning:
        decode = decode or DecodeConfig()
        return SpanTuning(decode.null_score_diff_threshold, None, decode)

    def answer(
        self, windows: Windows, logits: Logits, data: SpanData, tuning: SpanTuning | None = None
    ) -> SpanAnswers:
        """Decode as the tuning says; its threshold is applied later."""
        return decode(windows, logits, data, (tuning or SpanTuning()).decode)

    def tune(self, answers: SpanAnswers) -> SpanTuning:
        """The threshold with the best F1, and the probability of no answer where both kinds of questions occur."""
        absent, known = ~answers.answerable, np.isfinite(answers.score_diff)
        both = absent[known].any() and (~absent[known]).any()
        calibration = fit_no_answer(answers.score_diff[known], absent[known]) if both else None
        return SpanTuning(best_threshold(answers), calibration, answers.decode)

    def score(self, answers: SpanAnswers, tuning: SpanTuning | None = None) -> dict[str, float]:
        """Official scores at the decoding's threshold and at the tuned one, in percent."""
        tuned = best_threshold(answers) if tuning is None else tuning.threshold
        found: dict[str, float] = {}
        for prefix, threshold in (("", None), ("tuned_", tuned)):
            official = squad.summary(*answers.judged(threshold), answers.answerable)
            found |= {
                f"{prefix}{name}": value for name, value in official.items() if not name.endswith("total")
            }
        return found

    def compare(
        self,
        metric: str,
        ours: Sequence[tuple[SpanAnswers, SpanTuning]],
        theirs: Sequence[tuple[SpanAnswers, SpanTuning]] = (),
    ) -> Difference:
        sides = [[100 * _judged(metric, *member) for member in members] for members in (ours, theirs)]
        return mean_difference(sides[0], sides[1])

    def mcnemar(self, ours: tuple[SpanAnswers, SpanTuning], theirs: tuple[SpanAnswers, SpanTuning]) -> float:
        """Of exact match at the tuned thresholds."""
        return mcnemar(_judged("tuned_exact", *ours), _judged("tuned_exact", *theirs))

    # ---- what a user gets

    def predictions(
        self, answers: SpanAnswers, tuning: SpanTuning | None = None, *, n_best: int = 0
    ) -> list[Prediction]:
        """All probabilities of a question sum to 1: no answer, and the candidates of the n-best list.

        With a calibration no answer has the calibrated probability, and the candidates share the rest in the ratio of
        their softmax; without one, no answer is one more candidate of that softmax. A span that two windows propose is
        one candidate with the shares of both, at the place of the better one.
        """
        null = answers.is_null(None if tuning is None else tuning.threshold).tolist()
        texts, spans = answers.text, answers.span.tolist()
        best, absent = _probabilities(answers, None if tuning is None else tuning.no_answer)
        firsts, absents = best[:, 0].tolist(), absent.tolist()
        return [
            Prediction(
                text="" if null[i] else texts[i],
                start=-1 if null[i] else spans[i][0],
                end=-1 if null[i] else spans[i][1],
                probability=firsts[i],
                no_answer_probability=absents[i],
                nbest=_candidates(answers, i, best[i], n_best) if n_best else (),
            )
            for i in range(len(answers))
        ]

    def write_answers(self, folder: Path, answers: SpanAnswers, tuning: SpanTuning | None = None) -> None:
        write_json_rows(folder / "nbest_predictions.json", answers.nbest)
        write_json_rows(folder / "null_odds.json", answers.null_odds)
        threshold = None if tuning is None else tuning.threshold
        write_json_rows(folder / "predictions.json", answers.predictions(threshold))

    def shown_tokens(self, answers: SpanAnswers) -> NDArray[np.int32]:
        return span_explain.shown_tokens(answers)

    def explain(
        self,
        answers: SpanAnswers,
        logits: Logits,
        tuning: SpanTuning,
        chars: NDArray[np.int32],
        *,
        n_best: int = 1,
        layer: bool = False,
    ) -> dict[str, Any]:
        (prediction,) = self.predictions(answers, tuning, n_best=n_best)
        heat = span_explain.heat(answers.windows, logits, chars)
        if layer:
            return span_explain.best_place(prediction) | heat
        shown = asdict(prediction)
        calibration = tuning.no_answer
        return heat | {
            "kind": self.kind,
            "nbest": list(shown.pop("nbest")),
            "prediction": shown,
            "no_answer": prediction.no_answer_probability,
            "score_diff": next(iter(answers.null_odds.values())),
            "threshold": tuning.threshold,
            "shift": calibration.shift if calibration else None,
            "temperature": calibration.temperature if calibration else None,
        }

    # ---- what a report shows

    def judge(self, data: SpanData, predictions: Mapping[str, str]) -> dict[str, Difference]:
        """Of the predictions at the tuned threshold, which is what the file holds."""
        scores = squad.per_question(data, predictions)
        names = ("tuned_exact", "tuned_f1")
        return {name: mean_difference([100 * own], []) for name, own in zip(names, scores, strict=True)}

    def details(self, answers: SpanAnswers, tuning: SpanTuning | None = None) -> dict[str, Any]:
        return {} if tuning is None else to_mapping(tuning)

    def baselines(
        self, train: SpanData, parts: Mapping[str, SpanData]
    ) -> dict[str, dict[str, dict[str, float]]]:
        """Always no answer; on the demo set also the sentence that shares most words with the question."""
        nothing = {name: [""] * len(data) for name, data in parts.items()}
        found = {"always no answer": _baseline(parts, nothing, nothing)}
        if train.name.startswith("demo"):
            from bertvision.data.demo import abstain, overlap_answers

            guesses = {name: overlap_answers(data) for name, data in parts.items()}
            # Its threshold is tuned on dev like everybody else's.
            cuts = sorted({overlap for _, overlap in guesses["dev"]})
            best = max(cuts, key=lambda cut: _of_texts(parts["dev"], abstain(guesses["dev"], cut))["f1"])
            given = {name: [text for text, _ in own] for name, own in guesses.items()}
            kept = {name: abstain(own, best) for name, own in guesses.items()}
            found["best-overlapping sentence"] = _baseline(parts, given, kept)
        return found

    def example(self, data: SpanData, number: int) -> dict[str, Any]:
        one = data.examples[number]
        golds = [answer.text for answer in one.answers]
        return {"texts": [one.question], "context": data.context(one), "truth": golds}

    def said(
        self, answers: SpanAnswers, tuning: SpanTuning | None = None
    ) -> tuple[list[Any], Sequence[bool]]:
        threshold = None if tuning is None else tuning.threshold
        exact, _ = answers.judged(threshold)
        return list(answers.predictions(threshold).values()), (exact > 0.5).tolist()


SPAN = SpanTask()


def _of_texts(data: SpanData, texts: list[str]) -> dict[str, float]:
    official = squad.score(data, {e.id: text for e, text in zip(data.examples, texts, strict=True)})
    return {name: value for name, value in official.items() if not name.endswith("total")}


def _baseline(
    parts: Mapping[str, SpanData], given: Mapping[str, list[str]], kept: Mapping[str, list[str]]
) -> dict[str, dict[str, float]]:
    """Scores of all answers, and of those that are kept at the tuned threshold."""
    return {
        name: _of_texts(data, given[name])
        | {f"tuned_{metric}": value for metric, value in _of_texts(data, kept[name]).items()}
        for name, data in parts.items()
    }


def _judged(metric: str, answers: SpanAnswers, tuning: SpanTuning | None) -> NDArray[np.float64]:
    """(Q,) exact match or F1 between 0 and 1 of every question."""
    tuned = metric.startswith("tuned_") and tuning is not None
    exact, f1 = answers.judged(tuning.threshold if tuned and tuning else None)
    return exact if metric.endswith("exact") else f1


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


def _candidates(
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
