"""What an answer was made of: `Bundle.explain(first, second)`, for a page or a person to look at.

Everything comes from the walk that answers, of which nothing else is kept; the dict goes into JSON as it stands.

    text        the paragraph that was read, or the text
    tokens      [{"start", "end"}] characters of the paragraph's tokens in the window that holds the best candidate of
                the first task that finds spans; [] without such a task
    tasks       by name, in the order they were asked:
      span      kind, prediction, nbest, start and end (a probability for each of `tokens`), no_answer, score_diff,
                threshold (no answer is given where score_diff exceeds it), shift and temperature (of no_answer; null:
                not calibrated), layer_weights (how much each hidden state counts, null: the head has no such weights),
                pooled_weight (how much the pooler's vector counts beside them, null: it is not one of them)
      label     kind, label, probabilities by class, layer_weights, pooled_weight
      score     kind, score, layer_weights, pooled_weight
    layers      by task, where a package holds readers of its hidden states, lowest first:
      span      layer, answer (text, start, end; of the best candidate, whatever no answer scores), probability,
                no_answer, start, end
      label     layer, probabilities
      score     layer, score

Probabilities of starts and ends are over all tokens of the window; what is missing to 1 lies on the question and on the
token that means no answer.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from bertvision.data.windows import Windows
from bertvision.serve.calibrate import read_no_answer, read_temperature
from bertvision.serve.predictions import LabelPrediction, span_predictions, text_predictions
from bertvision.tasks.span.answers import SpanAnswers
from bertvision.tasks.span.calibration import NoAnswer
from bertvision.tasks.span.logits import SpanLogits
from bertvision.tasks.text.answers import TextAnswers, softmax

if TYPE_CHECKING:
    from bertvision.serve.bundle import Bundle, Walked
    from bertvision.train.trained import Trained

__all__ = ["explain"]


@dataclass(frozen=True)
class _Calibration:
    """What the folder of a reader of a layer says about its probabilities."""

    temperature: float
    no_answer: NoAnswer | None


_read: "WeakKeyDictionary[Bundle, dict[str, list[_Calibration]]]" = WeakKeyDictionary()


def _calibrations(bundle: "Bundle") -> dict[str, list[_Calibration]]:
    """Of all readers by their task. Read when a bundle explains for the first time: a server does so when it starts,
    and asks no disk afterwards."""
    if bundle not in _read:
        _read[bundle] = {
            name: [_Calibration(read_temperature(one.folder), read_no_answer(one.folder)) for one in readers]
            for name, readers in bundle.layers.items()
        }
    return _read[bundle]


def explain(
    bundle: "Bundle", walks: "Sequence[Walked]", asked: Sequence[str], *, text: str, n_best: int
) -> dict[str, Any]:
    """The dict for one example, whose walks and text are given; see the module for what it holds."""
    home = {name: walked for walked in walks for name in walked.names}
    answers = {name: bundle.merged(home[name], name, home[name].logits[name]) for name in asked}
    shown = next((one for one in answers.values() if isinstance(one, SpanAnswers)), None)
    chars = _shown_tokens(shown) if shown is not None else np.zeros((0, 2), np.int32)
    tasks: dict[str, Any] = {}
    layers: dict[str, list[dict[str, Any]]] = {}
    for name in asked:
        walked, found = home[name], answers[name]
        told = _span(bundle, name, found, n_best) if isinstance(found, SpanAnswers) else _text(found)
        if isinstance(found, SpanAnswers):
            told |= _heat(walked.windows, walked.logits[name], chars)
        tasks[name] = told | _layer_weights(bundle.systems[name], bundle.encoder.num_states)
        if walked.layers.get(name):
            readers = zip(walked.layers[name].items(), _calibrations(bundle)[name], strict=True)
            rows = [_layer(bundle, walked, name, layer, seen, own, chars) for (layer, seen), own in readers]
            layers[name] = sorted(rows, key=lambda row: row["layer"])
    return {
        "text": text,
        "tokens": [{"start": begin, "end": end} for begin, end in chars.tolist()],
        "tasks": tasks,
        "layers": layers,
    }


def _shown_tokens(answers: SpanAnswers) -> NDArray[np.int32]:
    """(t, 2) characters of the paragraph's tokens in the window that holds the best candidate."""
    found = np.isfinite(answers.score[0])
    return _window_chars(answers.windows, int(answers.nbest_token[0, 0, 0]) if found else 0)


def _window_chars(windows: Windows, window: int) -> NDArray[np.int32]:
    first, last = windows.offsets[window] + windows.context[window]
    return windows.chars[first:last]


# ---- what each kind of task tells


def _span(bundle: "Bundle", name: str, answers: SpanAnswers, n_best: int) -> dict[str, Any]:
    calibration = bundle.no_answers[name]
    (prediction,) = span_predictions(answers, calibration, n_best=n_best)
    told = asdict(prediction)
    nbest = told.pop("nbest")
    return {
        "kind": "span",
        "prediction": told,
        "nbest": list(nbest),
        "no_answer": prediction.no_answer_probability,
        "score_diff": next(iter(answers.null_odds.values())),
        "threshold": answers.threshold,
        "shift": calibration.shift if calibration else None,
        "temperature": calibration.temperature if calibration else None,
    }


def _text(answers: TextAnswers) -> dict[str, Any]:
    (prediction,) = text_predictions(answers)
    if isinstance(prediction, LabelPrediction):
        return {"kind": "label", "label": prediction.label, "probabilities": prediction.probabilities}
    return {"kind": "score", "score": prediction.score}


def _layer(
    bundle: "Bundle",
    walked: "Walked",
    name: str,
    layer: int,
    logits: Any,
    own: _Calibration,
    chars: NDArray[np.int32],
) -> dict[str, Any]:
    """What the reader of one hidden state makes of the example."""
    answers = bundle.merged(walked, name, logits, temperature=own.temperature)
    if isinstance(answers, TextAnswers):
        told = _text(answers)
        return {"layer": layer} | {key: told[key] for key in ("probabilities", "score") if key in told}
    (prediction,) = span_predictions(answers, own.no_answer, n_best=1)
    best = prediction.nbest[0] if prediction.nbest else None
    return {
        "layer": layer,
        "answer": {
            "text": best.text if best else "",
            "start": best.start if best else -1,
            "end": best.end if best else -1,
        },
        "probability": prediction.probability,
        "no_answer": prediction.no_answer_probability,
    } | _heat(walked.windows, logits, chars)


def _heat(windows: Windows, logits: Any, chars: NDArray[np.int32]) -> dict[str, list[float]]:
    """The probability that the answer starts, and that it ends, at each of the tokens that are shown.

    Systems that cut the paragraph otherwise show the window of theirs that holds most of these tokens; what does not
    lie in it has the probability 0.
    """
    assert isinstance(logits, SpanLogits)
    if not len(chars):
        return {"start": [], "end": []}
    begin, end = int(chars[0, 0]), int(chars[-1, 1])
    own = [_window_chars(windows, window) for window in range(len(windows))]
    common = [min(end, int(p[-1, 1])) - max(begin, int(p[0, 0])) if len(p) else -1 for p in own]
    # Of equal ones that which has nothing else: where both cut alike it is the same window.
    window = max(range(len(windows)), key=lambda w: (common[w], -len(own[w])))
    rows = slice(int(windows.offsets[window]), int(windows.offsets[window + 1]))
    inside = slice(*windows.context[window].tolist())
    heat: dict[str, list[float]] = {}
    for side, values in (("start", logits.start), ("end", logits.end)):
        p = softmax(values[rows])[inside]
        if np.array_equal(own[window], chars):
            heat[side] = p.tolist()
        else:
            by_place = dict(zip(map(tuple, own[window].tolist()), p.tolist(), strict=True))
            heat[side] = [by_place.get((a, b), 0.0) for a, b in chars.tolist()]
    return heat


def _layer_weights(system: "Trained", num_states: int) -> dict[str, Any]:
    """How much each hidden state of the encoder counts, 0 for those the head does not read, and the pooled vector."""
    own = system.heads[0].layer_weights() if len(system.heads) == 1 else None
    if own is None:
        return {"layer_weights": None, "pooled_weight": None}
    numbers = system.selections[0].numbers(num_states)
    shares, pooled = [float(weight) for weight in own], None
    if len(shares) == len(numbers) + 1:  # heads/channels.py: one more channel, before or behind the others
        pooled = shares.pop(0 if system.heads[0].config.order == "first" else -1)
    weights = [0.0] * num_states
    for number, weight in zip(numbers, shares, strict=True):
        weights[number] = weight
    return {"layer_weights": weights, "pooled_weight": pooled}
