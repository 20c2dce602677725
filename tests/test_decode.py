"""Answers to questions: decoding, thresholds and ensembles against loops over windows, pairs and thresholds.

Also of heads that score starts and ends together (`joint`): decoding, marginals and files against loops over all pairs.
"""

import json
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from span_cases import RANK, evaluated, log_sum, make_case, make_joint, make_logits, pair_score

from bertvision.data.examples import Answer, SpanData
from bertvision.data.windows import Windows
from bertvision.errors import ConfigError
from bertvision.tasks.base import DecodeConfig
from bertvision.tasks.logits import Logits
from bertvision.tasks.span import SPAN, SpanTuning
from bertvision.tasks.span_answers import best_threshold, score
from bertvision.tasks.span_decode import decode, marginals, second_best, span_logits

INF = float("inf")


def softmax(values: np.ndarray) -> np.ndarray:
    weights = np.exp(values.astype(np.float64) - values.max())
    return weights / weights.sum()


def best_tokens(values: np.ndarray, count: int) -> list[int]:
    return sorted(range(len(values)), key=lambda t: (-values[t], t))[:count]


def window_nbest(windows: Windows, logits: Logits, w: int, config: DecodeConfig) -> tuple[list[Any], float]:
    """(score, start logit, end logit, characters, tokens) of every valid pair; the null score."""
    begin, end = windows.offsets[w : w + 2].tolist()
    start, stop = logits["start"][begin:end], logits["end"][begin:end]
    tokens = logits["pairs"][begin:end].astype(np.float64).tolist() if "pairs" in logits.arrays else None
    (low, high), found = windows.context[w].tolist(), []

    def scored(i: int, j: int) -> tuple[float, float, float]:
        if tokens is None:
            return start[i] + stop[j], start[i], stop[j]
        total = pair_score(tokens[i], tokens[j])
        half = (total - tokens[i][0] - tokens[j][1]) / 2
        return total, tokens[i][0] + half, tokens[j][1] + half

    for i in best_tokens(start, config.n_best_size):
        for j in best_tokens(stop, config.n_best_size):
            if not low <= i <= j < high or j - i >= config.max_answer_length:
                continue
            if config.decoding == "google" and config.max_context and not windows.best[begin + i]:
                continue
            span = (int(windows.chars[begin + i, 0]), int(windows.chars[begin + j, 1]))
            if span[0] < span[1]:
                found.append((*scored(i, j), span, (w, i, j)))
    null = int(windows.null[w])
    return found, float(scored(null, null)[0])


def window_argmax(windows: Windows, logits: Logits, w: int, _: DecodeConfig) -> tuple[list[Any], float]:
    """The paper's single proposal of a window, or its vote for no answer."""
    begin, end = windows.offsets[w : w + 2].tolist()
    start, stop = softmax(logits["start"][begin:end]), softmax(logits["end"][begin:end])
    i, j = int(np.argmax(logits["start"][begin:end])), int(np.argmax(logits["end"][begin:end]))
    score = float(np.log(start[i]) + np.log(stop[j]))
    if i == j == windows.null[w] or j < i:
        return [], score
    low, high = windows.context[w]
    first, last = max(i, low), min(j, high - 1)
    span = (-1, -1)
    if first <= last:
        span = (int(windows.chars[begin + first, 0]), int(windows.chars[begin + last, 1]))
    return [(score, np.log(start[i]), np.log(stop[j]), span, (w, i, j))], -INF


def brute_force(
    data: SpanData, windows: Windows, logits: Logits, config: DecodeConfig
) -> list[tuple[list[Any], float, float]]:
    """For every question all its candidates, best first, how far no answer is ahead of the best, its score by `min`."""
    one = window_argmax if config.decoding == "bertvision" else window_nbest
    merging = config.merging or {"google": "min", "nbest": "max", "bertvision": "prod_max"}[config.decoding]
    result = []
    for q in range(len(data)):
        proposals = [one(windows, logits, w, config) for w in np.flatnonzero(windows.example == q).tolist()]
        # Stable, as the rule for ties says.
        pooled = sorted((c for found, _ in proposals for c in found), key=lambda c: -c[0])
        nulls = [null for _, null in proposals]
        if merging == "any_null":
            diff = max(null - max((float(c[0]) for c in found), default=-INF) for found, null in proposals)
        else:
            diff = (min if merging == "min" else max)(nulls) - (float(pooled[0][0]) if pooled else -INF)
        result.append((pooled, diff, min(nulls)))
    return result


modes = st.builds(
    DecodeConfig,
    decoding=st.sampled_from(["google", "nbest", "bertvision"]),
    merging=st.sampled_from([None, "min", "max", "prod_max", "any_null"]),
    n_best_size=st.sampled_from([1, 2, 5, 20, 200]),
    max_answer_length=st.sampled_from([1, 3, 30]),
    null_score_diff_threshold=st.sampled_from([-1.0, 0.0, 0.5]),
    max_context=st.booleans(),
)


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 10**6), modes, st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_equal_to_brute_force(
    seed: int, config: DecodeConfig, ties: bool, empty: bool, null_inside: bool, joint: bool
) -> None:
    data, windows = make_case(seed, empty_tokens=empty, null_inside=null_inside)
    logits = (make_joint if joint else make_logits)(seed, windows, ties=ties)
    answers = decode(windows, logits, data, config)
    predictions = answers.predictions()
    near: Any = {"rtol": 1e-4, "atol": 1e-4} if joint else {"rtol": 1e-5, "atol": 1e-5}
    for q, (every, diff, _) in enumerate(brute_force(data, windows, logits, config)):
        candidates = every[: config.n_best_size]
        kept = len(candidates)
        assert int(np.isfinite(answers.nbest_score[q]).sum()) == kept
        tokens = [tuple(t) for t in answers.nbest_token[q, :kept].tolist()]
        np.testing.assert_allclose(answers.nbest_score[q, :kept], [c[0] for c in candidates], **near)
        if ties or not joint or config.decoding == "bertvision":
            assert tokens == [c[4] for c in candidates]
            assert [tuple(s) for s in answers.nbest_span[q, :kept].tolist()] == [c[3] for c in candidates]
        else:  # neighbours may differ by less than float32 can tell: each has its score, and none comes twice
            assert len(set(tokens)) == kept
            scores = {c[4]: c[0] for c in every}
            np.testing.assert_allclose(answers.nbest_score[q, :kept], [scores[t] for t in tokens], **near)
        np.testing.assert_allclose(
            answers.nbest_logits[q, :kept].sum(1), answers.nbest_score[q, :kept], **near
        )
        if not (config.merging == "any_null" or config.decoding == "bertvision"):
            np.testing.assert_allclose(answers.null_logits[q].sum(), answers.null_score[q], **near)
        np.testing.assert_allclose(answers.score_diff[q], diff, **near)
        example, clear = data.examples[q], abs(diff - config.null_score_diff_threshold) > 1e-3
        if candidates and clear and tokens[0] == candidates[0][4]:
            first, last = candidates[0][3]
            text = data.context(example)[first:last] if first >= 0 else example.question
            null = diff > config.null_score_diff_threshold
            assert predictions[example.id] == ("" if null else text)
            w, i, j = tokens[0]
            shown = windows.ids[windows.offsets[w] :][i : j + 1].tolist()
            assert answers.token_ids()[example.id] == ([] if null else shown)
        if not candidates:
            assert predictions[example.id] == ""


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 5, 20]), st.booleans())
def test_nbest_lists_have_null_at_its_place(seed: int, size: int, ties: bool) -> None:
    data, windows = make_case(seed)
    logits, config = make_logits(seed, windows, ties=ties), DecodeConfig(n_best_size=size)
    answers = decode(windows, logits, data, config)
    for q, (candidates, diff, null) in enumerate(brute_force(data, windows, logits, config)):
        example = data.examples[q]
        pooled = [(float(c[0]), data.context(example)[slice(*c[3])]) for c in candidates[:size]]
        expected = sorted([*pooled, (null, "")], key=lambda c: -c[0])[:size]
        if not any(text == "" for _, text in expected):
            expected.append((null, ""))
        if size == 1 and candidates and len(expected) == 1:
            expected.append(pooled[0])  # the best candidate stays in the list whatever its size
        entries = answers.nbest[example.id]
        assert [entry["text"] for entry in entries] == [text for _, text in expected]
        scores = np.array([score for score, _ in expected])
        np.testing.assert_allclose([entry["probability"] for entry in entries], softmax(scores), rtol=1e-5)
        sums = [entry["start_logit"] + entry["end_logit"] for entry in entries]
        np.testing.assert_allclose(sums, scores, rtol=1e-5)
        null_at = [entry["text"] for entry in entries].index("")
        best, absent = answers.probabilities[q, [0, -1]].tolist()
        assert absent == entries[null_at]["probability"]
        if candidates:
            assert best == entries[0 if null_at else 1]["probability"]
            assert (absent > best) == (diff > 0)
        else:
            assert absent == 1


@pytest.mark.parametrize("make", [make_logits, make_joint])
def test_chunks_and_threads_do_not_change_answers(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data, windows = make_case(3, questions=40)
    logits = make(3, windows, ties=True)
    whole = decode(windows, logits, data, DecodeConfig())
    monkeypatch.setattr(sys.modules["bertvision.tasks.span_decode"], "_CELLS", 50)
    parts = decode(windows, logits, data, DecodeConfig())
    assert (whole.nbest, whole.null_odds) == (parts.nbest, parts.null_odds)


def test_second_best_masks_both_tops() -> None:
    _, windows = make_case(5)
    logits = make_joint(5, windows)
    masked = second_best(windows, logits)
    assert "pairs" not in masked.arrays
    for begin, end in pairwise(windows.offsets):
        for side in ("start", "end"):
            expected = logits[side][begin:end].copy()
            expected[np.argmax(expected)] = -1000
            np.testing.assert_array_equal(masked[side][begin:end], expected)
    assert logits["start"].min() > -1000, "the given logits stay as they are"


def test_files_have_the_structure_of_run_qa(tmp_path: Path) -> None:
    data, windows = make_case(4)
    answers = decode(windows, make_logits(4, windows), data, DecodeConfig(decoding="bertvision"))
    SPAN.write_answers(tmp_path, answers, SpanTuning(-1e30))
    predictions, nbest, odds = (
        json.loads((tmp_path / name).read_text(), parse_constant=pytest.fail)
        for name in ("predictions.json", "nbest_predictions.json", "null_odds.json")
    )
    assert list(predictions) == list(nbest) == list(odds) == answers.ids
    assert set(nbest["id-0"][0]) == {"start_logit", "end_logit", "text", "probability"}
    assert sum(entry["probability"] for entry in nbest["id-0"]) == pytest.approx(1)
    assert all(isinstance(value, float) for value in odds.values())


def test_collected_pairs_and_marginals(monkeypatch: pytest.MonkeyPatch) -> None:
    _, windows = make_case(3)
    values = np.random.default_rng(0).normal(0, 2, (windows.num_tokens, 2 + 2 * RANK)).astype(np.float32)
    plain, pairs = evaluated(windows, values[:, :2]), evaluated(windows, values)
    np.testing.assert_array_equal(np.stack([plain["start"], plain["end"]], axis=1), values[:, :2])
    assert "pairs" not in plain.arrays
    np.testing.assert_array_equal(pairs["pairs"], values)
    for begin, end in pairwise(windows.offsets):
        tokens, n = values[begin:end].astype(np.float64).tolist(), int(end - begin)
        starts = [log_sum([pair_score(tokens[i], tokens[j]) for j in range(i, n)]) for i in range(n)]
        ends = [log_sum([pair_score(tokens[i], tokens[j]) for i in range(j + 1)]) for j in range(n)]
        np.testing.assert_allclose(pairs["start"][begin:end], starts, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(pairs["end"][begin:end], ends, rtol=1e-5, atol=1e-5)
        assert log_sum(starts) == pytest.approx(log_sum(ends)), "both are shares of one distribution"
    logits, mask = torch.randn(4, 7, 8), torch.arange(7) < torch.tensor([7, 5, 3, 1])[:, None]
    whole = marginals(logits, mask)
    monkeypatch.setattr(sys.modules["bertvision.tasks.span_decode"], "_PAIR_CELLS", 2 * 7 * 7)
    torch.testing.assert_close(marginals(logits, mask), whole)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["google", "bertvision"]), st.booleans())
def test_no_threshold_is_better(seed: int, decoding: Literal["google", "bertvision"], ties: bool) -> None:
    data, windows = make_case(seed, questions=8)
    answers = decode(windows, make_logits(seed, windows, ties=ties), data, DecodeConfig(decoding=decoding))
    found = best_threshold(answers)
    diffs = answers.score_diff[np.isfinite(answers.score_diff)].tolist()
    tried = {t: score(data, answers.predictions(t)) for t in [*diffs, min(diffs, default=0.0) - 1.0, 0.0]}
    reached = score(data, answers.predictions(found))["f1"]
    assert reached == pytest.approx(max(s["f1"] for s in tried.values()), abs=1e-9)
    # Of equally good thresholds the one closest to 0: so 0 itself whenever it is among the best.
    if tried[0.0]["f1"] >= reached - 1e-12:
        assert found == 0.0
    if not ties:
        assert found not in diffs, "half-way between the last that is answered and the first that is not"


def test_neighbouring_floats_are_separated() -> None:
    data, windows = make_case(6, questions=2, most_windows=1)
    answers = decode(windows, make_logits(6, windows), data, DecodeConfig(max_context=False))
    begin, end = answers.nbest_span[0, 0].tolist()
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


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.sampled_from(["max", "mean", "product"]), st.booleans())
def test_an_ensemble_is_the_formula(seed: int, models: int, how: str, sharp: bool) -> None:
    _, windows = make_case(seed)
    members = [make_joint(seed, windows), *(make_logits(seed + m, windows) for m in range(1, models))]
    if sharp:
        members[0] = span_logits(*(members[0][name] * np.float32(1e4) for name in ("start", "end")))
    together = SPAN.join(members, windows, how)
    assert together.log_probs
    assert together.finite
    assert "pairs" not in together.arrays
    operation = {"max": np.max, "mean": np.mean, "product": np.prod}[how]
    for begin, end in pairwise(windows.offsets):
        for name in ("start", "end"):
            probabilities = np.stack([softmax(m[name][begin:end]) for m in members])
            found = np.exp(together[name][begin:end].astype(np.float64))
            np.testing.assert_allclose(found, operation(probabilities, axis=0), rtol=1e-5, atol=1e-37)
    with pytest.raises(ConfigError, match="not by sum"):
        SPAN.join(members, windows, "sum")


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6))
def test_max_with_bertvision_decoding_is_equation_1(seed: int) -> None:
    data, windows = make_case(seed)
    members = [make_logits(seed + m, windows) for m in range(2)]
    answers = decode(windows, SPAN.join(members, windows), data, DecodeConfig(decoding="bertvision"))
    for q in range(len(data)):
        scores, tokens = [], []
        for w in np.flatnonzero(windows.example == q):
            part = slice(windows.offsets[w], windows.offsets[w + 1])
            start, end = (np.maximum(*(softmax(m[side][part]) for m in members)) for side in ("start", "end"))
            i, j = int(start.argmax()), int(end.argmax())
            # The product of the two maxima, which do not sum to one over the window.
            scores.append(start[i] * end[j])
            tokens.append(None if (i == j == windows.null[w] or j < i) else (w, i, j))
        best = int(np.argmax(scores))
        assert bool(answers.is_null()[q]) == (tokens[best] is None)
        if tokens[best] is not None:
            assert tuple(answers.nbest_token[q, 0].tolist()) == tokens[best]
            np.testing.assert_allclose(np.exp(answers.nbest_score[q, 0]), scores[best], rtol=1e-5)
