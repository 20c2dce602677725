"""Comparisons against known probabilities and against resampling that scores every resample anew."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertvision.errors import DataError
from bertvision.tasks.compare import mcnemar, mean_difference, metric_difference
from bertvision.tasks.metrics import LABEL, SCORE, Metric

CASES: dict[str, tuple[Metric, int, int]] = {
    "accuracy": (LABEL["accuracy"], 2, 1),
    "f1": (LABEL["f1"], 2, 0),
    "mcc": (LABEL["mcc"], 2, 1),
    "f1 of 4": (LABEL["f1"], 4, 1),
    "mcc of 4": (LABEL["mcc"], 4, 1),
    "pearson": (SCORE["pearson"], 0, 1),
    "spearman": (SCORE["spearman"], 0, 1),
    "mae": (SCORE["mae"], 0, 1),
}


def drawn(name: str, seed: int, examples: int, members: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Labels, and predictions that are right more often than not; scores have ties."""
    random, classes = np.random.default_rng(seed), CASES[name][1]
    if not classes:
        right = random.integers(0, 11, examples) / 2
        return right, [np.round(right + random.normal(0, 1, examples), 1) for _ in range(members)]
    right = random.integers(0, classes, examples)
    wrong = random.random((members, examples)) < 0.3
    return right, list(np.where(wrong, random.integers(0, classes, (members, examples)), right))


def score(name: str, right: Any, values: Any) -> float:
    metric, classes, positive = CASES[name]
    assert metric.predictions is not None
    return float(metric.predictions(right, values, classes, positive))


def difference(name: str, right: Any, ours: Any, theirs: Any, **how: Any) -> tuple[float, float, float]:
    metric, classes, positive = CASES[name]
    found = metric_difference(metric, right, ours, theirs, classes=classes, positive=positive, **how)
    return found.difference, found.low, found.high


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    examples=st.integers(1, 60),
    ours=st.integers(1, 3),
    theirs=st.sampled_from([0, 2]),
)
def test_equal_to_scoring_every_resample(name: str, seed: int, examples: int, ours: int, theirs: int) -> None:
    right, members = drawn(name, seed, examples, ours + theirs)
    random, found = np.random.default_rng(seed), []
    for i in [np.arange(examples), *(random.integers(0, examples, examples) for _ in range(40))]:
        scores = [score(name, right[i], values[i]) for values in members]
        found.append(np.mean(scores[:ours]) - (np.mean(scores[ours:]) if theirs else 0.0))
    expected = (found[0], *np.quantile(found[1:], [0.025, 0.975]))
    assert difference(name, right, members[:ours], members[ours:], resamples=40, seed=seed) == pytest.approx(
        expected, abs=1e-9
    )


def test_means_of_numbers_equal_a_plain_loop() -> None:
    random = np.random.default_rng(5)
    a, b, c = random.random((3, 37))
    gap = (a + b) / 2 - c
    loop = np.random.default_rng(9)
    means = [gap[loop.integers(0, 37, 37)].mean() for _ in range(400)]
    found = mean_difference([a, b], [c], resamples=400, seed=9)
    assert found.difference == pytest.approx(gap.mean())
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])))
    alone = mean_difference([a], [])
    assert alone.low < a.mean() < alone.high


def test_by_accuracy_both_bootstraps_are_one() -> None:
    right, members = drawn("accuracy", 0, 500, 4)
    hits = [(values == right).astype(np.float64) for values in members]
    found = mean_difference(hits[:2], hits[2:])
    assert difference("accuracy", right, members[:2], members[2:]) == pytest.approx(
        (found.difference, found.low, found.high)
    )


def test_the_interval_is_that_of_a_paired_mean() -> None:
    random = np.random.default_rng(1)
    a, b = random.random((2, 5000))
    found = mean_difference([a], [b])
    spread = 1.96 * (a - b).std() / math.sqrt(5000)
    assert found.high - found.difference == pytest.approx(spread, rel=0.1)
    assert found.difference - found.low == pytest.approx(spread, rel=0.1)
    assert found == mean_difference([a], [b]), "seeded"
    assert found != mean_difference([a], [b], seed=1)
    paired = mean_difference([a], [a - 0.01])
    assert (paired.low, paired.high) == pytest.approx((0.01, 0.01)), "the same gap everywhere leaves no doubt"


def test_pearson_keeps_its_digits_far_from_zero() -> None:
    right, (first, second) = drawn("pearson", 1, 300, 2)
    near = difference("pearson", right, [first], [second], resamples=200)
    far = difference("pearson", right + 1e6, [first + 1e6], [second + 1e6], resamples=200)
    assert far == pytest.approx(near, abs=1e-7)


@pytest.mark.parametrize("name", [name for name in CASES if name != "mae"])
def test_level_with_itself_and_the_better_one_is_seen(name: str) -> None:
    right, members = drawn(name, 2, 400, 2)
    assert difference(name, right, members, members, resamples=50) == (0, 0, 0)
    assert difference(name, right, [right], members, resamples=200)[1] > 0
    assert difference(name, right, members, [right], resamples=200)[2] < 0


def outcomes(both: int, first: int, second: int, none: int) -> tuple[np.ndarray, np.ndarray]:
    """Exact matches of two systems: right together, only the first, only the second, neither."""
    a = np.repeat([1.0, 1.0, 0.0, 0.0], [both, first, second, none])
    b = np.repeat([1.0, 0.0, 1.0, 0.0], [both, first, second, none])
    return a, b


@pytest.mark.parametrize(
    ("first", "second", "p"),
    [
        (0, 0, 1.0),
        (5, 5, 1.0),
        (0, 5, 2 / 32),
        (1, 7, 2 * (1 + 8) / 256),
        (10, 2, 2 * (1 + 12 + 66) / 4096),
    ],
)
def test_mcnemar_by_hand(first: int, second: int, p: float) -> None:
    assert mcnemar(*outcomes(3, first, second, 4)) == pytest.approx(p, rel=1e-12)
    assert mcnemar(*outcomes(1, second, first, 0)) == pytest.approx(p, rel=1e-12)


def test_mcnemar_of_many_questions_is_near_the_normal_law() -> None:
    first, second = 2600, 2450
    z = (first - second - 1) / math.sqrt(first + second)  # with continuity correction
    expected = math.erfc(z / math.sqrt(2))
    assert mcnemar(*outcomes(4000, first, second, 2823)) == pytest.approx(expected, rel=0.01)
    assert mcnemar(*outcomes(0, 5000, 0, 0)) == 0.0, "too small for a float, and no overflow"


def test_other_examples_are_refused() -> None:
    with pytest.raises(DataError, match="same examples"):
        mean_difference([np.zeros(3)], [np.zeros(4)])
    with pytest.raises(DataError, match="3 examples"):
        metric_difference(LABEL["accuracy"], np.zeros(3), [np.zeros(3)], [np.zeros(4)], classes=2)
    with pytest.raises(DataError, match="same examples"):
        mcnemar(np.zeros(0), np.zeros(0))
