"""Comparisons against known probabilities, scipy, and resampling that scores every resample anew."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

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
    metric, classes, positive = CASES[name]
    assert metric.predictions is not None
    random, found = np.random.default_rng(seed), []
    for i in [np.arange(examples), *(random.integers(0, examples, examples) for _ in range(40))]:
        scores = [float(metric.predictions(right[i], values[i], classes, positive)) for values in members]
        found.append(np.mean(scores[:ours]) - (np.mean(scores[ours:]) if theirs else 0.0))
    expected = (found[0], *np.quantile(found[1:], [0.025, 0.975]))
    given = difference(name, right, members[:ours], members[ours:], resamples=40, seed=seed)
    assert given == pytest.approx(expected, abs=1e-9)


def test_means_of_numbers_equal_a_plain_loop() -> None:
    random = np.random.default_rng(5)
    a, b, c = random.random((3, 37))
    gap = (a + b) / 2 - c
    loop = np.random.default_rng(9)
    means = [gap[loop.integers(0, 37, 37)].mean() for _ in range(400)]
    found = mean_difference([a, b], [c], resamples=400, seed=9)
    assert found.difference == pytest.approx(gap.mean())
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])))
    alone = mean_difference([a])
    assert alone.low < a.mean() < alone.high


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


@pytest.mark.parametrize(
    ("first", "second"), [(0, 0), (5, 5), (0, 5), (1, 7), (10, 2), (2600, 2450), (5000, 0)]
)
def test_mcnemar_is_the_binomial_test(first: int, second: int) -> None:
    """Right together, only the first, only the second, neither."""
    counts = [3, first, second, 4]
    a, b = np.repeat([1.0, 1.0, 0.0, 0.0], counts), np.repeat([1.0, 0.0, 1.0, 0.0], counts)
    p = stats.binomtest(first, first + second).pvalue if first + second else 1.0
    assert mcnemar(a, b) == mcnemar(b, a) == pytest.approx(p, rel=1e-9)


def test_other_examples_are_refused() -> None:
    for compared in (
        lambda: mean_difference([np.zeros(3)], [np.zeros(4)]),
        lambda: metric_difference(LABEL["accuracy"], np.zeros(3), [np.zeros(3)], [np.zeros(4)], classes=2),
        lambda: mcnemar(np.zeros(0), np.zeros(0)),
    ):
        with pytest.raises(DataError, match="same examples"):
            compared()
