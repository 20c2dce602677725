"""Metrics, comparisons and calibration against closed formulas, scikit-learn, scipy, brute force and odd cases."""

import json
import math
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as reference
from text_cases import make_answers, make_texts, said, task_of

from bertvision.data.examples import TextData, TextExample
from bertvision.errors import ConfigError, DataError
from bertvision.tasks.logits import softmax
from bertvision.tasks.metrics import (
    LABEL,
    SCORE,
    Metric,
    NoAnswer,
    calibration_curve,
    calibration_error,
    fit_no_answer,
    fit_temperature,
    mcnemar,
    mean_difference,
    metric_difference,
    pearson,
    ranks,
    spearman,
)

Pairs = list[tuple[int, int]]
labels = st.integers(2, 5).flatmap(
    lambda c: st.lists(st.tuples(st.integers(0, c - 1), st.integers(0, c - 1)), min_size=1, max_size=40)
)


def scored(pairs: Pairs, classes: int, **settings: int) -> tuple[dict[str, float], Any]:
    """Scores and confusions where `pairs` are labels and predictions."""
    examples = [TextExample(str(i), "text", None, label) for i, (label, _) in enumerate(pairs)]
    data = TextData(examples, "label", make_texts(0, classes=classes).classes)
    task = task_of(data, **settings)
    answers = said(task, data, np.array([second for _, second in pairs]))
    return task.score(answers), task.details(answers)["confusion"]


@settings(max_examples=150, deadline=None)
@given(labels)
def test_labels_agree_with_sklearn(pairs: Pairs) -> None:
    classes = max(2, 1 + max(max(pair) for pair in pairs))
    found, confusion = scored(pairs, classes)
    right, given = zip(*pairs, strict=True)
    np.testing.assert_array_equal(confusion, reference.confusion_matrix(right, given, labels=range(classes)))
    how: dict[str, Any] = {"zero_division": 0, "average": None, "labels": range(classes)}
    f1: Any = reference.f1_score(right, given, **how)
    present = sorted({*right, *given})
    assert found["accuracy"] == pytest.approx(reference.accuracy_score(right, given))
    assert found["f1"] == pytest.approx(f1[1] if classes == 2 else np.mean(f1[present]))
    mcc = reference.matthews_corrcoef(right, given) if len(present) > 1 else 0
    assert found["mcc"] == pytest.approx(mcc, abs=1e-9)
    shares = [0.6 + 0.4 / classes if t == s else 0.4 / classes for t, s in pairs]
    assert found["log_loss"] == pytest.approx(-sum(map(math.log, shares)) / len(pairs))
    if classes == 2:
        assert scored(pairs, 2, positive=0)[0]["f1"] == pytest.approx(f1[0])


numbers = st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), min_size=1, max_size=30)


@settings(max_examples=150, deadline=None)
@given(numbers)
def test_correlations_agree_with_scipy(pairs: Pairs) -> None:
    x, y = (np.array(side, np.float64) for side in zip(*pairs, strict=True))
    assert ranks(x).tolist() == stats.rankdata(x).tolist()
    assert pearson(np.full(7, 0.1), np.arange(7.0)) == 0, "a constant without an exact mean"
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert pearson(x, y) == spearman(x, y) == 0
        return
    assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y)[0], abs=1e-9)
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y)[0], abs=1e-9)


def test_errors_of_scores() -> None:
    data = make_texts(7, examples=60, classes=0)
    task = task_of(data)
    answers = make_answers(8, data, task)
    found, errors = task.score(answers), (answers.values - answers.truth).tolist()
    assert list(found) == ["pearson", "spearman", "mse", "mae"]
    assert found["mse"] == pytest.approx(sum(e * e for e in errors) / 60)
    assert found["mae"] == pytest.approx(sum(map(abs, errors)) / 60)


def test_what_cannot_be_scored_is_said() -> None:
    data = make_texts(1)
    unknown = TextData([*data.examples[:-1], TextExample("z", "text")], "label", data.classes)
    task = task_of(data)
    with pytest.raises(DataError, match="1 of 12 examples have no label"):
        task.score(make_answers(1, unknown, task))


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


def drawn(resamples: int, seed: int = 0) -> Any:
    return patch.multiple("bertvision.tasks.metrics", _RESAMPLES=resamples, _SEED=seed)


def members_of(name: str, seed: int, examples: int, members: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Labels, and predictions that are right more often than not; scores have ties."""
    random, classes = np.random.default_rng(seed), CASES[name][1]
    if not classes:
        right = random.integers(0, 11, examples) / 2
        return right, [np.round(right + random.normal(0, 1, examples), 1) for _ in range(members)]
    right = random.integers(0, classes, examples)
    wrong = random.random((members, examples)) < 0.3
    return right, list(np.where(wrong, random.integers(0, classes, (members, examples)), right))


def difference(name: str, right: Any, ours: Any, theirs: Any) -> tuple[float, float, float]:
    metric, classes, positive = CASES[name]
    found = metric_difference(metric, right, ours, theirs, classes=classes, positive=positive)
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
    right, members = members_of(name, seed, examples, ours + theirs)
    metric, classes, positive = CASES[name]
    assert metric.predictions is not None
    random, found = np.random.default_rng(seed), []
    for i in [np.arange(examples), *(random.integers(0, examples, examples) for _ in range(40))]:
        scores = [float(metric.predictions(right[i], values[i], classes, positive)) for values in members]
        found.append(np.mean(scores[:ours]) - (np.mean(scores[ours:]) if theirs else 0.0))
    with drawn(40, seed):
        given = difference(name, right, members[:ours], members[ours:])
    assert given == pytest.approx((found[0], *np.quantile(found[1:], [0.025, 0.975])), abs=1e-9)


def test_the_interval_is_that_of_a_paired_mean() -> None:
    a, b, c = np.random.default_rng(1).random((3, 5000))
    found, gap = mean_difference([a, c], [b]), (a + c) / 2 - b
    spread = 1.96 * gap.std() / math.sqrt(5000)
    assert found.difference == pytest.approx(gap.mean())
    assert found.high - found.difference == pytest.approx(spread, rel=0.1)
    assert found.difference - found.low == pytest.approx(spread, rel=0.1)
    assert found == mean_difference([a, c], [b]), "seeded"


def test_pearson_keeps_its_digits_far_from_zero() -> None:
    right, (first, second) = members_of("pearson", 1, 300, 2)
    near = difference("pearson", right, [first], [second])
    far = difference("pearson", right + 1e6, [first + 1e6], [second + 1e6])
    assert far == pytest.approx(near, abs=1e-7)


@pytest.mark.parametrize(("first", "second"), [(0, 0), (5, 5), (1, 7), (2600, 2450), (5000, 0)])
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
    curve = calibration_curve(np.array([[0.6, 0.4], [0.8, 0.2], [1.0, 0.0]]), np.array([0, 0, 0]))
    assert [i for i, part in enumerate(curve) if part["count"]] == [8, 11, 14], "a bin holds its upper edge"
    right = np.array([0, 1, 1])
    assert calibration_error(right, np.eye(2)[1 - right]) == 1


@pytest.mark.parametrize("planted", [0.4, 1.0, 5.0])
def test_the_temperature_that_was_planted_is_found(planted: float) -> None:
    random = np.random.default_rng(0)
    honest = random.normal(0, 2, (20_000, 3))
    drawn = (softmax(honest).cumsum(axis=1) < random.random((20_000, 1))).sum(axis=1)
    found = fit_temperature(honest * planted, drawn)
    assert found == pytest.approx(planted, rel=0.03)

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


@pytest.mark.parametrize("count", [6, 40, 500, 35])
def test_no_other_pair_of_numbers_is_better(count: int) -> None:
    rng = np.random.default_rng(count)
    diff = rng.normal(0, 6, count)
    absent = rng.random(count) < 1 / (1 + np.exp(-(diff - 1) / 2))
    if count == 35:  # far outliers, few without an answer: whole steps of Newton's would not arrive
        rng = np.random.default_rng(705)
        diff, absent = 10 * rng.standard_t(1, 35), rng.random(35) < 0.05
    ones, zeros = absent.sum(), (~absent).sum()
    target = np.where(absent, (ones + 1) / (ones + 2), 1 / (zeros + 2))  # Platt's

    def loss(shift: float, temperature: float) -> float:
        p = np.clip(NoAnswer(shift, temperature).probability(diff), 1e-12, 1 - 1e-12)
        return float(-(target * np.log(p) + (1 - target) * np.log(1 - p)).sum())

    found = fit_no_answer(diff, absent)
    least = loss(found.shift, found.temperature)
    for shift in np.concatenate([np.linspace(-8, 8, 65), np.linspace(diff.min(), diff.max(), 129)]):
        for temperature in np.geomspace(0.05, 50, 61):
            assert least <= loss(float(shift), float(temperature)) + 1e-6


def test_odd_cases_of_no_answer() -> None:
    for odd, absent in (
        ([1.0, 2.0, 3.0, 4.0], [True, True, False, False]),  # the wrong way round
        ([2.0, 2.0, 2.0, 2.0], [True, False, False, False]),  # says nothing
        ([-1e30, 1e30, 0.0, 1.0], [False, True, True, False]),
    ):
        found = fit_no_answer(np.array(odd), np.array(absent))
        assert found.temperature > 0
        assert np.isfinite([found.shift, found.temperature]).all()
        assert (np.diff(found.probability(np.sort(odd))) >= 0).all()
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
    (one,) = (
        bv.load(finished_run).explain("Who built it?", "The mill was built by Ada Holt.")["tasks"].values()
    )
    expected = 1 / (1 + np.exp(-(one["score_diff"] - one["shift"]) / one["temperature"]))
    assert one["no_answer"] == pytest.approx(expected)
    assert one["shift"] == tuning["no_answer"]["shift"]
