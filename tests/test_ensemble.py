"""Ensembles against the formulas, window by window."""

from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from span_cases import make_case, make_logits

from bertvision.errors import ArtifactError, ConfigError
from bertvision.tasks.settings import DecodeConfig
from bertvision.tasks.span import SPAN
from bertvision.tasks.span_decode import decode
from bertvision.tasks.span_logits import check_spans, combine, span_logits


def softmax(values: np.ndarray) -> np.ndarray:
    weights = np.exp(values.astype(np.float64) - values.max())
    return weights / weights.sum()


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.sampled_from(["max", "mean", "product"]))
def test_equal_to_the_formula(seed: int, models: int, how: Literal["max", "mean", "product"]) -> None:
    _, windows = make_case(seed)
    members = [make_logits(seed + m, windows) for m in range(models)]
    together = combine(members, windows, how=how)
    assert together.log_probs
    operation = {"max": np.max, "mean": np.mean, "product": np.prod}[how]
    for begin, end in zip(windows.offsets[:-1], windows.offsets[1:], strict=True):
        for name in ("start", "end"):
            probabilities = np.stack([softmax(m[name][begin:end]) for m in members])
            found = np.exp(together[name][begin:end].astype(np.float64))
            np.testing.assert_allclose(found, operation(probabilities, axis=0), rtol=1e-5)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6))
def test_max_with_bertvision_decoding_is_equation_1(seed: int) -> None:
    data, windows = make_case(seed)
    members = [make_logits(seed + m, windows) for m in range(2)]
    answers = decode(windows, combine(members, windows), data, DecodeConfig(decoding="bertvision"))
    for q in range(len(data)):
        scores, texts = [], []
        for w in np.flatnonzero(windows.example == q):
            part = slice(windows.offsets[w], windows.offsets[w + 1])
            start = np.maximum(*(softmax(m["start"][part]) for m in members))
            end = np.maximum(*(softmax(m["end"][part]) for m in members))
            i, j = int(start.argmax()), int(end.argmax())
            # The product of the two maxima, which do not sum to one over the window.
            scores.append(start[i] * end[j])
            texts.append(None if (i == j == windows.null[w] or j < i) else (w, i, j))
        best = int(np.argmax(scores))
        assert bool(answers.is_null()[q]) == (texts[best] is None)
        if texts[best] is not None:
            assert tuple(answers.nbest_token[q, 0].tolist()) == texts[best]
            np.testing.assert_allclose(np.exp(answers.score[q]), scores[best], rtol=1e-5)


def test_one_model_keeps_its_answers() -> None:
    data, windows = make_case(8, questions=20, most_windows=1)
    logits = make_logits(8, windows)
    alone = decode(windows, logits, data, DecodeConfig())
    for how in ("max", "mean", "product"):
        # One window a question: the softmax only shifts all scores of a question.
        assert decode(windows, combine([logits], windows, how=how), data, DecodeConfig()).text == alone.text


def test_extreme_logits_stay_finite() -> None:
    _, windows = make_case(1)
    logits = make_logits(1, windows)
    sharp = span_logits(logits["start"] * np.float32(1e4), logits["end"] * np.float32(1e4))
    for how in ("max", "mean", "product"):
        check_spans(combine([sharp, logits], windows, how=how), windows)


def test_bad_ensembles_are_refused() -> None:
    _, windows = make_case(1)
    logits = make_logits(1, windows)
    with pytest.raises(ConfigError, match="at least one"):
        SPAN.join([], windows)
    with pytest.raises(ConfigError, match="not by sum"):
        SPAN.join([logits], windows, "sum")
    with pytest.raises(ArtifactError, match="rows of start"):
        combine([logits, span_logits(logits["start"][1:], logits["end"][1:])], windows)
