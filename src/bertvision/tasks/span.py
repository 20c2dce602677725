"""Spans: the answer to a question, cut out of a paragraph, or no answer.

A head gives a start and an end logit for every token, decoding makes them answers (span_decode.py, span_answers.py).
Metrics are the official ones of SQuAD, at the decoding's threshold and at the threshold tuned on dev.

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
from bertvision.data.texts import Reframe
from bertvision.data.windows import WindowConfig, Windows
from bertvision.errors import ConfigError
from bertvision.tasks import metrics
from bertvision.tasks.base import (
    Baselines,
    CardText,
    DecodeConfig,
    Member,
    Task,
    TextConfig,
    Tuning,
    register,
)
from bertvision.tasks.logits import Logits, softmax
from bertvision.tasks.metrics import Difference, NoAnswer, fit_no_answer, mcnemar, mean_difference
from bertvision.tasks.span_answers import Prediction, Scores, SpanAnswers, best_threshold, score, summary
from bertvision.tasks.span_decode import SIDES, SpanCollector, combine, decode, span_loss
from bertvision.tasks.texts import as_questions

if TYPE_CHECKING:
    from torch import Tensor

    from bertvision.states.base import StateBatch


@dataclass(frozen=True)
class SpanTuning(Tuning):
    """What decides whether a question is answered, and the decoding it was fitted with."""

    threshold: float = 0.0  # no answer where its score exceeds the best candidate's by more than this
    no_answer: NoAnswer | None = None  # None where dev has no questions of both kinds
    decode: DecodeConfig = field(default_factory=DecodeConfig)

    def __post_init__(self) -> None:
        if not math.isfinite(self.threshold):
            raise ConfigError(f"--threshold must be a finite number, not {self.threshold}")


@register
@dataclass(frozen=True)
class SpanTask(Task):
    kind = "span"
    unit = "token"
    metrics = metrics.SPAN
    tuning_class = SpanTuning
    abstains = True
    joins = ("max", "mean", "product")
    outputs = 2
    head = "last_state"
    asks = True

    metric: str = "tuned_f1"
    weights: tuple[float, float] = (1.0, 1.0)
    """What a window with the answer and one without it count in the loss; no file keeps it, because nothing that
    reads a head asks for it."""

    card = CardText(
        "question-answering",
        '"question", "context"',
        "Given a question and a text it returns the span that answers it, or says that the text holds no answer.",
        "Heads for spans copy a part of the text they are given, or say that there is none.",
    )

    def config(self) -> dict[str, Any]:
        return {"kind": self.kind, "metric": self.metric}

    @classmethod
    def of(cls, data: SpanData, text: TextConfig, windows: WindowConfig) -> "SpanTask":
        if text.learning != TextConfig() or text.columns.named or text.reframe != Reframe():
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

    def loss(self, logits: "Tensor", batch: "StateBatch") -> "Tensor":
        """The target is the first and the last token of the answer; the null token twice where a window has none."""
        loss = span_loss(logits, batch.mask, batch.targets)
        if self.weights == (1.0, 1.0):
            return loss
        # Without looking at values, so that a step can be captured and replayed. The token that means "no answer"
        # stands outside the paragraph, wherever an encoder has it.
        start = batch.targets[:, 0]
        found = (start >= batch.bounds[:, 0]) & (start < batch.bounds[:, 1])  # (B,)
        # Products: `where` would have to send both numbers to the device in every step.
        return loss * (found * self.weights[0] + ~found * self.weights[1])

    def sampling_classes(self, windows: Windows, bins: int) -> NDArray[np.int64]:
        """1 for windows with the answer, 0 for those without it."""
        return (windows.labels[:, 0] != windows.null).astype(np.int64)

    def null_weighted(self, windows: Windows, weight: float) -> Task:
        """The mean weight over all windows stays 1, so that learning rates keep their meaning."""
        without = int((windows.labels[:, 0] == windows.null).sum())
        unit = len(windows) / max(1.0, len(windows) - without + weight * without)
        return replace(self, weights=(unit, weight * unit))

    def collector(self, windows: Windows) -> SpanCollector:
        return SpanCollector(windows)

    def join(self, members: Sequence[Logits], windows: Windows, how: str = "") -> Logits:
        return combine(members, windows, self.join_how(how))

    def untuned(self, decode: DecodeConfig | None = None) -> SpanTuning:
        decode = decode or DecodeConfig()
        return SpanTuning(decode.null_score_diff_threshold, None, decode)

    def answer(self, windows: Windows, logits: Logits, data: SpanData, tuning: Any = None) -> SpanAnswers:
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
        return _scores(*(summary(*answers.judged(at), answers.answerable) for at in (None, tuned)))

    def compare(self, metric: str, ours: Sequence[Member], theirs: Sequence[Member] = ()) -> Difference:
        return mean_difference(*([100 * _judged(metric, *one) for one in side] for side in (ours, theirs)))

    def mcnemar(self, ours: Member, theirs: Member) -> float:
        return mcnemar(*(_judged("tuned_exact", *member) for member in (ours, theirs)))

    def predictions(self, answers: Any, tuning: Any = None, *, n_best: int = 0) -> list[Prediction]:
        return answers.detailed(_threshold(tuning), tuning and tuning.no_answer, n_best)

    def write_answers(self, folder: Path, answers: SpanAnswers, tuning: SpanTuning | None = None) -> None:
        write_json_rows(folder / "nbest_predictions.json", answers.nbest)
        write_json_rows(folder / "null_odds.json", answers.null_odds)
        write_json_rows(folder / "predictions.json", answers.predictions(_threshold(tuning)))

    def shown_tokens(self, answers: SpanAnswers) -> NDArray[np.int32]:
        """Of the paragraph, in the window that holds the best candidate."""
        window = int(answers.nbest_token[0, 0, 0]) if answers.exists[0, 0] else 0
        return _window_chars(answers.windows, window)

    def explain(
        self, member: Member, logits: Logits, chars: NDArray[Any], *, n_best: int = 1, layer: bool = False
    ) -> dict[str, Any]:
        answers, tuning = member
        (prediction,) = self.predictions(answers, tuning, n_best=n_best)
        heat = _heat(answers.windows, logits, chars)
        shown = asdict(prediction)
        nbest, absent = list(shown.pop("nbest")), shown["no_answer_probability"]
        if layer:  # the best candidate, whatever no answer scores
            best = nbest[0] if nbest else {"text": "", "start": -1, "end": -1}
            place = {key: best[key] for key in ("text", "start", "end")}
            return heat | {"answer": place, "probability": shown["probability"], "no_answer": absent}
        calibration = tuning.no_answer
        return heat | {
            "kind": self.kind,
            "nbest": nbest,
            "prediction": shown,
            "no_answer": absent,
            "score_diff": answers.null_odds[answers.ids[0]],
            "threshold": tuning.threshold,
            "shift": calibration.shift if calibration else None,
            "temperature": calibration.temperature if calibration else None,
        }

    def details(self, answers: SpanAnswers, tuning: SpanTuning | None = None) -> dict[str, Any]:
        return {} if tuning is None else to_mapping(tuning)

    def baselines(self, train: SpanData, parts: Mapping[str, SpanData]) -> Baselines:
        """Always no answer; on the demo set also the sentence that shares most words with the question."""
        from bertvision.data.demo import overlap_answers

        ways: dict[str, Any] = {"always no answer": lambda data: [("", 0.0)] * len(data)}
        if train.name.startswith("demo"):
            ways["best-overlapping sentence"] = overlap_answers
        found = {}
        for label, way in ways.items():
            guesses = {name: (data, way(data)) for name, data in parts.items()}
            # The threshold is tuned on dev like everybody else's.
            cuts = sorted({sure for _, sure in guesses["dev"][1]})
            reached = {cut: _at_least(cut, *guesses["dev"])["f1"] for cut in cuts}
            best = max(reached, key=reached.__getitem__)
            found[label] = {
                name: _scores(_at_least(-math.inf, *own), _at_least(best, *own))
                for name, own in guesses.items()
            }
        return found

    def examples(self, member: Member) -> list[dict[str, Any]]:
        answers, tuning = member
        (exact, _), data = answers.judged(_threshold(tuning)), answers.data
        said = answers.predictions(_threshold(tuning)).values()
        return [
            {"id": one.id, "texts": [one.question], "context": data.context(one)}
            | {"truth": [answer.text for answer in one.answers], "said": text, "right": right}
            for one, text, right in zip(data.examples, said, (exact > 0.5).tolist(), strict=True)
        ]


SPAN = SpanTask()


def _threshold(tuning: SpanTuning | None) -> float | None:
    return None if tuning is None else tuning.threshold


def _at_least(cut: float, data: SpanData, guesses: Sequence[tuple[str, float]]) -> Scores:
    """Official scores of the guesses that are at least so sure."""
    rows = zip(data.examples, guesses, strict=True)
    return score(data, {one.id: text if sure >= cut else "" for one, (text, sure) in rows})


def _scores(plain: Scores, tuned: Scores) -> dict[str, float]:
    both = plain | {f"tuned_{name}": value for name, value in tuned.items()}
    return {name: value for name, value in both.items() if not name.endswith("total")}


def _judged(metric: str, answers: SpanAnswers, tuning: SpanTuning | None) -> NDArray[np.float64]:
    """(Q,) exact match or F1 between 0 and 1 of every question."""
    exact, f1 = answers.judged(_threshold(tuning) if metric.startswith("tuned_") else None)
    return exact if metric.endswith("exact") else f1


def _window_chars(windows: Windows, window: int) -> NDArray[np.int32]:
    """(t, 2) characters of the paragraph's tokens in a window."""
    first, last = windows.offsets[window] + windows.context[window]
    return windows.chars[first:last]


def _heat(windows: Windows, logits: Logits, chars: NDArray[np.int32]) -> dict[str, list[float]]:
    """The probability that the answer starts, and that it ends, at each of the tokens that are shown. Systems that cut
    the paragraph otherwise show the window of theirs that holds most of these tokens; what does not lie in it has the
    probability 0."""
    if not len(chars):
        return {side: [] for side in SIDES}
    begin, end = int(chars[0, 0]), int(chars[-1, 1])
    own = [_window_chars(windows, window) for window in range(len(windows))]
    common = [min(end, int(p[-1, 1])) - max(begin, int(p[0, 0])) if len(p) else -1 for p in own]
    # Of equal ones that which has nothing else: where both cut alike it is the same window.
    window = max(range(len(windows)), key=lambda w: (common[w], -len(own[w])))
    rows = slice(int(windows.offsets[window]), int(windows.offsets[window + 1]))
    found: dict[str, list[float]] = {}
    for side in SIDES:
        found[side] = softmax(logits[side][rows])[slice(*windows.context[window])].tolist()
        if not np.array_equal(own[window], chars):
            by_place = dict(zip(map(tuple, own[window].tolist()), found[side], strict=True))
            found[side] = [by_place.get((a, b), 0.0) for a, b in chars.tolist()]
    return found
