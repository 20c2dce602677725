"""What a span was made of, for a page or a person to look at: where starts and ends are likely in the paragraph."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertvision.data.windows import Windows
from bertvision.tasks.logits import Logits, softmax
from bertvision.tasks.predictions import Prediction
from bertvision.tasks.span_answers import SpanAnswers


def shown_tokens(answers: SpanAnswers) -> NDArray[np.int32]:
    """(t, 2) characters of the paragraph's tokens in the window that holds the best candidate."""
    found = np.isfinite(answers.score[0])
    return _window_chars(answers.windows, int(answers.nbest_token[0, 0, 0]) if found else 0)


def _window_chars(windows: Windows, window: int) -> NDArray[np.int32]:
    first, last = windows.offsets[window] + windows.context[window]
    return windows.chars[first:last]


def best_place(prediction: Prediction) -> dict[str, Any]:
    """The best candidate, whatever no answer scores."""
    best = prediction.nbest[0] if prediction.nbest else None
    place = {
        "text": best.text if best else "",
        "start": best.start if best else -1,
        "end": best.end if best else -1,
    }
    return {
        "answer": place,
        "probability": prediction.probability,
        "no_answer": prediction.no_answer_probability,
    }


def heat(windows: Windows, logits: Logits, chars: NDArray[np.int32]) -> dict[str, list[float]]:
    """The probability that the answer starts, and that it ends, at each of the tokens that are shown.

    Systems that cut the paragraph otherwise show the window of theirs that holds most of these tokens; what does not
    lie in it has the probability 0.
    """
    if not len(chars):
        return {"start": [], "end": []}
    begin, end = int(chars[0, 0]), int(chars[-1, 1])
    own = [_window_chars(windows, window) for window in range(len(windows))]
    common = [min(end, int(p[-1, 1])) - max(begin, int(p[0, 0])) if len(p) else -1 for p in own]
    # Of equal ones that which has nothing else: where both cut alike it is the same window.
    window = max(range(len(windows)), key=lambda w: (common[w], -len(own[w])))
    rows = slice(int(windows.offsets[window]), int(windows.offsets[window + 1]))
    inside = slice(*windows.context[window].tolist())
    found: dict[str, list[float]] = {}
    for side in ("start", "end"):
        p = softmax(logits[side][rows])[inside]
        if np.array_equal(own[window], chars):
            found[side] = p.tolist()
        else:
            by_place = dict(zip(map(tuple, own[window].tolist()), p.tolist(), strict=True))
            found[side] = [by_place.get((a, b), 0.0) for a, b in chars.tolist()]
    return found
