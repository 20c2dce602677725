"""The tuned threshold against trying every threshold there is."""

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from span_cases import make_case, make_logits

from bertvision.data.examples import Answer, SpanData
from bertvision.tasks.settings import DecodeConfig
from bertvision.tasks.span_decode import decode
from bertvision.tasks.squad import score
from bertvision.tasks.threshold import best_threshold


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["google", "bertvision"]),
    st.booleans(),
)
def test_equal_to_brute_force(
    seed: int,
    decoding: Literal["google", "bertvision"],
    ties: bool,
) -> None:
    data, windows = make_case(seed, questions=8)
    logits = make_logits(seed, windows, ties=ties)
    answers = decode(windows, logits, data, DecodeConfig(decoding=decoding))
    found = best_threshold(answers)
    diffs = answers.score_diff[np.isfinite(answers.score_diff)].tolist()
    tried = {t: score(data, answers.predictions(t)) for t in [*diffs, min(diffs, default=0.0) - 1.0, 0.0]}
    reached = score(data, answers.predictions(found))["f1"]
    assert reached == pytest.approx(max(s["f1"] for s in tried.values()), abs=1e-9)
    # Of equally good thresholds the one closest to 0: so 0 itself whenever it is among the best.
    if tried[0.0]["f1"] >= reached - 1e-12:
        assert found == 0.0


def test_value_stands_between_answered_and_not() -> None:
    data, windows = make_case(21, questions=30)
    answers = decode(windows, make_logits(21, windows), data, DecodeConfig())
    found = best_threshold(answers)
    assert np.isfinite(found)
    assert not (answers.score_diff == found).any()


def test_neighbouring_floats_are_separated() -> None:
    data, windows = make_case(6, questions=2, most_windows=1)
    answers = decode(windows, make_logits(6, windows), data, DecodeConfig(max_context=False))
    begin, end = answers.span[0].tolist()
    # The first question is answered rightly and the second has no answer: only a cut between them is perfect.
    first = replace(data.examples[0], answers=(Answer(data.paragraphs[0][begin:end], begin),))
    second = replace(data.examples[1], answers=())
    tuned = SpanData(data.paragraphs, [first, second])
    low = 1.0 + 2.0**-52  # half-way to its neighbour rounds up to the neighbour
    diffs = np.array([low, np.nextafter(low, 2)])
    assert diffs.mean() == diffs[1]
    answers = replace(answers, data=tuned, score_diff=diffs)
    assert best_threshold(answers) == low
    assert score(tuned, answers.predictions(low))["f1"] == 100.0
