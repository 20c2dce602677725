"""The calibrated probability of no answer: against a brute-force search, on data of a known law, in odd cases."""

import json
from pathlib import Path

import numpy as np
import pytest

from bertvision.errors import DataError
from bertvision.tasks.span.calibration import NoAnswer, fit_no_answer


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


def test_questions_that_are_told_apart_do_not_make_it_sure() -> None:
    diff = np.array([-3.0, -2.0, -1.0, 1.0, 2.0, 3.0])
    found = fit_no_answer(diff, diff > 0)
    p = found.probability(diff)
    assert (np.diff(p) > 0).all()
    assert 0.01 < p[0] < 0.25
    assert 0.75 < p[-1] < 0.99


@pytest.mark.parametrize(
    ("diff", "absent"),
    [
        (np.array([1.0, 2.0, 3.0, 4.0]), np.array([True, True, False, False])),  # the wrong way round
        (np.full(4, 2.0), np.array([True, False, False, False])),  # tells nothing
        (np.array([-1e30, 1e30, 0.0, 1.0]), np.array([False, True, True, False])),
    ],
)
def test_a_head_that_knows_nothing_still_rises(diff: np.ndarray, absent: np.ndarray) -> None:
    found = fit_no_answer(diff, absent)
    assert found.temperature > 0
    assert np.isfinite([found.shift, found.temperature]).all()
    assert (np.diff(found.probability(np.sort(diff))) >= 0).all()


def test_one_kind_of_question_is_not_enough() -> None:
    with pytest.raises(DataError, match="with and without an answer"):
        fit_no_answer(np.array([1.0, 2.0]), np.array([True, True]))


def test_infinite_differences() -> None:
    p = NoAnswer(0.0, 1.0).probability(np.array([-np.inf, -1e300, 0.0, 1e300, np.inf]))
    assert p.tolist() == pytest.approx([0, 0, 0.5, 1, 1], abs=1e-12)


def test_a_run_keeps_a_calibration_that_serves(finished_run: Path) -> None:
    """Of the best head: it is what a fit to its own answers on dev gives, and `load` uses it."""
    import bertvision as bv
    from bertvision.train.trained import read_trained

    folder = read_trained(finished_run).folder
    metrics = json.loads((folder / "metrics.json").read_text())
    if "no_answer" not in metrics:
        pytest.fail("dev of the finished run has questions with and without an answer")
    assert metrics["no_answer"]["tuned_on"] == metrics["threshold"]["tuned_on"]
    model = bv.load(finished_run)
    told = model.explain("Who built it?", "The mill was built by Ada Holt.")["tasks"]
    (one,) = told.values()
    expected = 1 / (1 + np.exp(-(one["score_diff"] - one["shift"]) / one["temperature"]))
    assert one["no_answer"] == pytest.approx(expected)
    assert one["shift"] == metrics["no_answer"]["shift"]
