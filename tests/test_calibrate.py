"""Calibration: temperatures and the probability of no answer against brute force, known laws and odd cases."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertvision.errors import ConfigError, DataError
from bertvision.tasks.calibrate import (
    NoAnswer,
    calibration_curve,
    calibration_error,
    fit_no_answer,
    fit_temperature,
)
from bertvision.tasks.logits import softmax

# ---- classes


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(2, 4))
def test_calibration_by_hand(seed: int, examples: int, classes: int) -> None:
    random = np.random.default_rng(seed)
    chances, right = random.dirichlet(np.ones(classes), examples), random.integers(0, classes, examples)
    total = 0.0
    for low in range(15):
        inside = [i for i in range(examples) if low / 15 < chances[i].max() <= (low + 1) / 15]
        if inside:
            sure = sum(chances[i].max() for i in inside) / len(inside)
            hit = sum(chances[i].argmax() == right[i] for i in inside) / len(inside)
            total += len(inside) / examples * abs(sure - hit)
    assert calibration_error(right, chances) == pytest.approx(total)
    curve = calibration_curve(chances, right)
    assert sum(part["count"] for part in curve) == examples
    assert (curve[0]["low"], curve[-1]["high"]) == (0.0, 1.0)


def test_edges_and_certainty() -> None:
    curve = calibration_curve(np.array([[0.5, 0.5], [0.75, 0.25], [1.0, 0.0]]), np.array([0, 0, 0]), bins=4)
    assert [part["count"] for part in curve] == [0, 1, 1, 1], "a bin holds its upper edge"
    right = np.array([0, 1, 1])
    assert calibration_error(right, np.eye(2)[right]) == 0
    assert calibration_error(right, np.eye(2)[1 - right]) == 1


@pytest.mark.parametrize("planted", [0.4, 1.0, 5.0])
def test_the_temperature_that_was_planted_is_found(planted: float) -> None:
    random = np.random.default_rng(0)
    honest = random.normal(0, 2, (20_000, 3))
    drawn = (softmax(honest).cumsum(axis=1) < random.random((20_000, 1))).sum(axis=1)
    found = fit_temperature(honest * planted, drawn)
    assert found == pytest.approx(planted, rel=0.03)
    assert calibration_error(drawn, softmax(honest * planted / found)) < 0.02

    def log_loss(temperature: float) -> float:
        return float(-np.log(softmax(honest * planted / temperature)[np.arange(20_000), drawn]).mean())

    assert all(log_loss(found) < log_loss(found * factor) for factor in (0.8, 0.95, 1.05, 1.25))


def test_a_few_rows_do_not_make_a_head_certain() -> None:
    right = np.random.default_rng(0).integers(0, 2, 40)
    mild = np.eye(2)[right] * 0.5  # all right, and modestly so
    assert 0.1 < fit_temperature(mild, right) < 1
    assert fit_temperature(np.zeros((40, 2)), right) == pytest.approx(1)
    assert 1 < fit_temperature(np.eye(2)[1 - right[:5]] * 9, right[:5]) < 20  # all wrong, and loudly so


def test_labels_that_are_not_known_do_not_count() -> None:
    logits = np.random.default_rng(1).normal(0, 1, (50, 2))
    right = np.random.default_rng(2).integers(0, 2, 50)
    hidden = np.where(np.arange(50) < 30, right, -1)
    assert fit_temperature(logits, hidden) == fit_temperature(logits[:30], right[:30])
    with pytest.raises(DataError, match="none of these has a label"):
        fit_temperature(logits, np.full(50, -1))


# ---- no answer


def drawn(shift: float, temperature: float, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Differences, and questions without an answer as often as the law says."""
    rng = np.random.default_rng(seed)
    diff = rng.normal(0, 6, count)
    return diff, rng.random(count) < 1 / (1 + np.exp(-(diff - shift) / temperature))


def loss(found: NoAnswer, diff: np.ndarray, absent: np.ndarray) -> float:
    """Log loss with Platt's targets, written down anew."""
    ones, zeros = absent.sum(), (~absent).sum()
    target = np.where(absent, (ones + 1) / (ones + 2), 1 / (zeros + 2))
    p = np.clip(found.probability(diff), 1e-12, 1 - 1e-12)
    return float(-(target * np.log(p) + (1 - target) * np.log(1 - p)).sum())


@pytest.mark.parametrize(("shift", "temperature"), [(0.0, 1.0), (-4.0, 3.0), (5.0, 0.5)])
def test_the_law_is_found_again(shift: float, temperature: float) -> None:
    found = fit_no_answer(*drawn(shift, temperature, 20_000))
    assert found.shift == pytest.approx(shift, abs=0.2)
    assert found.temperature == pytest.approx(temperature, rel=0.1)


@pytest.mark.parametrize("count", [6, 40, 500])
def test_no_other_pair_of_numbers_is_better(count: int) -> None:
    diff, absent = drawn(1.0, 2.0, count, seed=count)
    found = fit_no_answer(diff, absent)
    least = loss(found, diff, absent)
    for shift in np.linspace(-8, 8, 65):
        for temperature in np.geomspace(0.05, 50, 61):
            assert least <= loss(NoAnswer(float(shift), float(temperature)), diff, absent) + 1e-6


@pytest.mark.parametrize(
    ("diff", "absent"),
    [
        (np.array([1.0, 2.0, 3.0, 4.0]), np.array([True, True, False, False])),  # the wrong way round
        (np.full(4, 2.0), np.array([True, False, False, False])),  # says nothing
        (np.array([-1e30, 1e30, 0.0, 1.0]), np.array([False, True, True, False])),
    ],
)
def test_a_head_that_knows_nothing_still_rises(diff: np.ndarray, absent: np.ndarray) -> None:
    found = fit_no_answer(diff, absent)
    assert found.temperature > 0
    assert np.isfinite([found.shift, found.temperature]).all()
    assert (np.diff(found.probability(np.sort(diff))) >= 0).all()


def test_odd_cases_of_no_answer() -> None:
    diff = np.array([-3.0, -2.0, -1.0, 1.0, 2.0, 3.0])
    p = fit_no_answer(diff, diff > 0).probability(diff)
    assert 0.01 < p[0] < 0.25, "questions that are separated do not make it sure"
    assert 0.75 < p[-1] < 0.99
    p = NoAnswer(0.0, 1.0).probability(np.array([-np.inf, -1e300, 0.0, 1e300, np.inf]))
    assert p.tolist() == pytest.approx([0, 0, 0.5, 1, 1], abs=1e-12)
    with pytest.raises(DataError, match="with and without an answer"):
        fit_no_answer(np.array([1.0, 2.0]), np.array([True, True]))
    for numbers in ((np.nan, 1.0), (0.0, 0.0), (0.0, np.inf)):
        with pytest.raises(ConfigError, match="finite shift and a positive temperature"):
            NoAnswer(*numbers)


def test_a_run_keeps_a_calibration_that_serves(finished_run: Path) -> None:
    """Of the best head: it is what a fit to its own answers on dev gives, and `load` uses it."""
    import bertvision as bv
    from bertvision.model.trained import read_trained

    tuning = json.loads((read_trained(finished_run).folder / "metrics.json").read_text())["tuning"]
    assert tuning["on"]
    told = bv.load(finished_run).explain("Who built it?", "The mill was built by Ada Holt.")["tasks"]
    (one,) = told.values()
    expected = 1 / (1 + np.exp(-(one["score_diff"] - one["shift"]) / one["temperature"]))
    assert one["no_answer"] == pytest.approx(expected)
    assert one["shift"] == tuning["no_answer"]["shift"]
