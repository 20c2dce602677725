"""Paired differences against resampling that scores every resample anew, example by example."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertvision.errors import DataError
from bertvision.tasks.span.compare import paired_bootstrap
from bertvision.tasks.text import TextTask, mcnemar, metric, paired_difference

TASKS = [
    TextTask("label", ("a", "b"), metric="accuracy"),
    TextTask("label", ("a", "b"), metric="f1", positive=0),
    TextTask("label", ("a", "b"), "bce", metric="mcc"),
    TextTask("label", ("a", "b", "c", "d"), metric="f1"),
    TextTask("label", ("a", "b", "c", "d"), metric="mcc"),
    TextTask("score", (), "mse", metric="pearson"),
    TextTask("score", (), "mse", metric="spearman"),
]
NAMES = [f"{task.metric}-{len(task.classes)}" for task in TASKS]


def case(task: TextTask, seed: int, examples: int, members: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Labels, and predictions that are right more often than not; scores have ties."""
    random = np.random.default_rng(seed)
    if task.kind == "score":
        right = random.integers(0, 11, examples) / 2
        return right, [np.round(right + random.normal(0, 1, examples), 1) for _ in range(members)]
    classes = len(task.classes)
    right = random.integers(0, classes, examples)
    wrong = random.random((members, examples)) < 0.3
    return right, list(np.where(wrong, random.integers(0, classes, (members, examples)), right))


def brute(task: TextTask, right: Any, ours: list[Any], theirs: list[Any], draws: int, seed: int) -> Any:
    random = np.random.default_rng(seed)
    found = []
    for _ in range(draws):
        i = random.integers(0, len(right), len(right))
        first = np.mean([metric(task, right[i], values[i]) for values in ours])
        second = np.mean([metric(task, right[i], values[i]) for values in theirs])
        found.append(first - second)
    return np.quantile(found, [0.025, 0.975])


@pytest.mark.parametrize("task", TASKS, ids=NAMES)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6), examples=st.integers(1, 60), ours=st.integers(1, 3))
def test_equal_to_scoring_every_resample(task: TextTask, seed: int, examples: int, ours: int) -> None:
    right, members = case(task, seed, examples, ours + 2)
    found = paired_difference(task, right, members[:ours], members[ours:], resamples=40, seed=seed)
    low, high = brute(task, right, members[:ours], members[ours:], 40, seed)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-9)
    scores = [metric(task, right, values) for values in members]
    assert found.difference == pytest.approx(np.mean(scores[:ours]) - np.mean(scores[ours:]))


def test_by_accuracy_it_is_the_bootstrap_of_spans() -> None:
    right, members = case(TASKS[0], 0, 500, 4)
    found = paired_difference(TASKS[0], right, members[:2], members[2:])
    first, second = (np.mean([v == right for v in part], axis=0) for part in (members[:2], members[2:]))
    expected = paired_bootstrap(first, second)
    assert 100 * found.difference == pytest.approx(expected.difference)
    assert (100 * found.low, 100 * found.high) == pytest.approx((expected.low, expected.high))


def test_pearson_keeps_its_digits_far_from_zero() -> None:
    task = TASKS[-2]
    right, members = case(task, 1, 300, 2)
    near = paired_difference(task, right, members[:1], members[1:], resamples=200)
    far = paired_difference(task, right + 1e6, [members[0] + 1e6], [members[1] + 1e6], resamples=200)
    assert (far.difference, far.low, far.high) == pytest.approx(
        (near.difference, near.low, near.high), abs=1e-7
    )


@pytest.mark.parametrize("task", TASKS, ids=NAMES)
def test_a_system_is_level_with_itself(task: TextTask) -> None:
    right, members = case(task, 2, 80, 2)
    found = paired_difference(task, right, members, members, resamples=50)
    assert (found.difference, found.low, found.high) == pytest.approx((0, 0, 0), abs=1e-12)


def test_the_better_one_is_seen() -> None:
    for task in TASKS:
        right, members = case(task, 3, 400, 1)
        assert paired_difference(task, right, [right], members, resamples=200).low > 0
        assert paired_difference(task, right, members, [right], resamples=200).high < 0


def test_mcnemar_on_right_and_wrong() -> None:
    ours, theirs = np.array([1] * 8 + [0] * 2 + [1] * 5), np.array([0] * 8 + [1] * 2 + [1] * 5)
    assert mcnemar(ours, theirs) == pytest.approx(2 * (1 + 10 + 45) / 2**10)


def test_other_examples_are_refused() -> None:
    right, members = case(TASKS[0], 4, 20, 2)
    with pytest.raises(DataError, match="20 labels and 20, 19 predictions"):
        paired_difference(TASKS[0], right, members[:1], [members[1][:-1]])
    with pytest.raises(DataError, match="same examples"):
        paired_difference(TASKS[0], right, [], members)
