"""Metrics of labels and scores against loops, closed formulas, scikit-learn and scipy."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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


def f1_by_hand(pairs: Pairs, k: int) -> float | None:
    """None where the class occurs on neither side."""
    right = sum(label == predicted == k for label, predicted in pairs)
    wrong, missed = sum(s == k != t for t, s in pairs), sum(t == k != s for t, s in pairs)
    return None if right + wrong + missed == 0 else right / (right + (wrong + missed) / 2)


def mcc_by_hand(pairs: Pairs, classes: int) -> float:
    """Gorodkin's form: the correlation of the two one-hot matrices, summed over classes."""
    t, s = np.eye(classes)[[p[0] for p in pairs]], np.eye(classes)[[p[1] for p in pairs]]
    t, s = t - t.mean(axis=0), s - s.mean(axis=0)
    spread = math.sqrt((t * t).sum() * (s * s).sum())
    return (t * s).sum() / spread if spread > 1e-9 else 0.0


@settings(max_examples=150, deadline=None)
@given(labels)
def test_labels_by_hand(pairs: Pairs) -> None:
    classes = max(2, 1 + max(max(pair) for pair in pairs))
    found = scored(pairs, classes)
    each = [f1_by_hand(pairs, k) for k in range(classes)]
    known = [f for f in each if f is not None]
    assert found["accuracy"] == pytest.approx(sum(t == s for t, s in pairs) / len(pairs))
    assert found["f1"] == pytest.approx((each[1] or 0.0) if classes == 2 else sum(known) / len(known))
    assert found["mcc"] == pytest.approx(mcc_by_hand(pairs, classes), abs=1e-9)
    shares = [0.6 + 0.4 / classes if t == s else 0.4 / classes for t, s in pairs]
    assert found["log_loss"] == pytest.approx(-sum(map(math.log, shares)) / len(pairs))
    if classes == 2:
        assert scored(pairs, 2, positive=0)["f1"] == pytest.approx(each[0] or 0.0)


@pytest.mark.parametrize("classes", [2, 4])
def test_labels_agree_with_sklearn(classes: int) -> None:
    reference = pytest.importorskip("sklearn.metrics")
    data = make_texts(5, examples=400, classes=classes)
    answers = make_answers(6, data, task_of(data))
    found, right = answers.task.score(answers), answers.truth
    average = "binary" if classes == 2 else "macro"
    assert found["accuracy"] == pytest.approx(reference.accuracy_score(right, answers.values))
    assert found["f1"] == pytest.approx(reference.f1_score(right, answers.values, average=average))
    assert found["mcc"] == pytest.approx(reference.matthews_corrcoef(right, answers.values))
    assert found["log_loss"] == pytest.approx(reference.log_loss(right, answers.probabilities))
    np.testing.assert_array_equal(answers.confusion, reference.confusion_matrix(right, answers.values))


def rank_by_hand(values: list[float], i: int) -> float:
    below, same = sum(v < values[i] for v in values), sum(v == values[i] for v in values)
    return below + (same + 1) / 2


numbers = st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), min_size=1, max_size=30)


@settings(max_examples=150, deadline=None)
@given(numbers)
def test_correlations_by_hand(pairs: Pairs) -> None:
    x, y = (np.array(side, np.float64) for side in zip(*pairs, strict=True))
    by_hand = [[rank_by_hand(side.tolist(), i) for i in range(len(side))] for side in (x, y)]
    assert ranks(x).tolist() == by_hand[0]
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert pearson(x, y) == spearman(x, y) == 0
        return
    assert pearson(x, y) == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-9)
    expected = np.corrcoef(by_hand[0], by_hand[1])[0, 1]
    assert spearman(x, y) == pytest.approx(expected, abs=1e-9)
    assert spearman(np.exp(x), y) == pytest.approx(expected, abs=1e-9), "order is all that counts"


def test_correlations_in_odd_cases() -> None:
    x = np.random.default_rng(0).permutation(50).astype(np.float64)
    d = ranks(x) - np.arange(1, 51)  # without ties: the formula of rank differences
    assert spearman(x, np.arange(50.0)) == pytest.approx(1 - 6 * (d @ d) / (50 * (50**2 - 1)))
    assert pearson(np.full(7, 0.1), np.arange(7.0)) == 0, "a constant that has no exact mean"


def test_scores_by_hand_and_by_scipy() -> None:
    data = make_texts(7, examples=60, classes=0)
    task = task_of(data)
    answers = make_answers(8, data, task)
    found, errors = task.score(answers), (answers.values - answers.truth).tolist()
    assert list(found) == ["pearson", "spearman", "mse", "mae"]
    assert found["mse"] == pytest.approx(sum(e * e for e in errors) / 60)
    assert found["mae"] == pytest.approx(sum(map(abs, errors)) / 60)
    stats = pytest.importorskip("scipy.stats")
    assert found["pearson"] == pytest.approx(stats.pearsonr(answers.truth, answers.values)[0])
    assert found["spearman"] == pytest.approx(stats.spearmanr(answers.truth, answers.values)[0])


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
