"""Metrics of labels and scores against closed formulas, scikit-learn and scipy."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as reference
from text_cases import make_answers, make_texts, said, task_of

from bertvision.data.examples import TextData, TextExample
from bertvision.errors import DataError
from bertvision.tasks.base import kinds
from bertvision.tasks.metrics import pearson, ranks, spearman

Pairs = list[tuple[int, int]]
labels = st.integers(2, 5).flatmap(
    lambda c: st.lists(st.tuples(st.integers(0, c - 1), st.integers(0, c - 1)), min_size=1, max_size=40)
)


def scored(pairs: Pairs, classes: int, **settings: int) -> dict[str, float]:
    """Scores where `pairs` are labels and predictions."""
    data = make_texts(0, examples=len(pairs), classes=classes)
    examples = [
        TextExample(e.id, e.first, None, label) for e, (label, _) in zip(data.examples, pairs, strict=True)
    ]
    data = TextData(examples, "label", data.classes)
    task = task_of(data, **settings)
    return task.score(said(task, data, np.array([second for _, second in pairs])))


@settings(max_examples=150, deadline=None)
@given(labels)
def test_labels_agree_with_sklearn(pairs: Pairs) -> None:
    classes = max(2, 1 + max(max(pair) for pair in pairs))
    found = scored(pairs, classes)
    right, given = zip(*pairs, strict=True)
    how: dict[str, Any] = {"zero_division": 0, "average": None, "labels": range(classes)}
    f1: Any = reference.f1_score(right, given, **how)
    present = sorted({*right, *given})
    assert found["accuracy"] == pytest.approx(reference.accuracy_score(right, given))
    assert found["f1"] == pytest.approx(f1[1] if classes == 2 else np.mean(f1[present]))
    if len(present) > 1:
        assert found["mcc"] == pytest.approx(reference.matthews_corrcoef(right, given), abs=1e-9)
    else:
        assert found["mcc"] == 0
    shares = [0.6 + 0.4 / classes if t == s else 0.4 / classes for t, s in pairs]
    assert found["log_loss"] == pytest.approx(-sum(map(math.log, shares)) / len(pairs))
    if classes == 2:
        assert scored(pairs, 2, positive=0)["f1"] == pytest.approx(f1[0])


def test_probabilities_and_confusions_agree_with_sklearn() -> None:
    data = make_texts(5, examples=400, classes=4)
    answers = make_answers(6, data, task_of(data))
    found = answers.task.score(answers)
    assert found["log_loss"] == pytest.approx(reference.log_loss(answers.truth, answers.probabilities))
    confusion = reference.confusion_matrix(answers.truth, answers.values)
    np.testing.assert_array_equal(answers.confusion, confusion)


numbers = st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), min_size=1, max_size=30)


@settings(max_examples=150, deadline=None)
@given(numbers)
def test_correlations_agree_with_scipy(pairs: Pairs) -> None:
    x, y = (np.array(side, np.float64) for side in zip(*pairs, strict=True))
    assert ranks(x).tolist() == stats.rankdata(x).tolist()
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert pearson(x, y) == spearman(x, y) == 0
        return
    assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y)[0], abs=1e-9)
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y)[0], abs=1e-9)
    assert spearman(np.exp(x), y) == pytest.approx(spearman(x, y), abs=1e-9), "order is all that counts"


def test_a_constant_without_an_exact_mean_correlates_with_nothing() -> None:
    assert pearson(np.full(7, 0.1), np.arange(7.0)) == 0


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


@pytest.mark.parametrize("cls", kinds().values(), ids=list(kinds()))
def test_every_metric_has_a_title_of_its_own(cls: type) -> None:
    table = cls.metrics  # pyright: ignore[reportAttributeAccessIssue]
    assert len({metric.title for metric in table.values()}) == len(table)
    assert all(metric.higher for metric in table.values() if metric.selects)
