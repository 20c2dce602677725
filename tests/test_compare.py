"""Comparisons against known probabilities and plain resampling."""

import math

import numpy as np
import pytest

from bertvision.errors import DataError
from bertvision.tasks.span import mcnemar, paired_bootstrap


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
    assert mcnemar(*outcomes(4000, first, second, 2823)) == pytest.approx(
        math.erfc(z / math.sqrt(2)), rel=0.01
    )
    assert mcnemar(*outcomes(0, 5000, 0, 0)) == 0.0, "too small for a float, and no overflow"


def test_bootstrap_equals_a_plain_loop() -> None:
    random = np.random.default_rng(5)
    a, b = random.random(37), random.random(37)
    drawn = np.random.default_rng(9)
    means = [100 * float((a[i] - b[i]).mean()) for i in (drawn.integers(0, 37, 37) for _ in range(400))]
    found = paired_bootstrap(a, b, resamples=400, seed=9)
    assert found.difference == pytest.approx(100 * (a - b).mean())
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])))


def test_bootstrap_interval_is_that_of_the_mean() -> None:
    random = np.random.default_rng(1)
    a, b = random.random(5000), random.random(5000)
    found = paired_bootstrap(a, b)
    spread = 1.96 * 100 * (a - b).std() / math.sqrt(5000)
    assert found.high - found.difference == pytest.approx(spread, rel=0.1)
    assert found.difference - found.low == pytest.approx(spread, rel=0.1)
    assert found == paired_bootstrap(a, b), "seeded"
    assert found != paired_bootstrap(a, b, seed=1)


def test_bootstrap_is_paired() -> None:
    a = np.random.default_rng(2).random(300)
    found = paired_bootstrap(a, a - 0.01)
    assert (found.low, found.high) == pytest.approx((1.0, 1.0)), "the same gap everywhere leaves no doubt"


def test_unequal_question_sets_are_refused() -> None:
    with pytest.raises(DataError, match="same questions"):
        paired_bootstrap(np.zeros(3), np.zeros(4))
    with pytest.raises(DataError, match="same questions"):
        mcnemar(np.zeros(0), np.zeros(0))
