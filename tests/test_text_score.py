"""Metrics of labels and scores against loops, closed formulas and other libraries where they are installed."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_cases import make_answers, make_texts

from bertvision.data.texts import TextData
from bertvision.errors import DataError
from bertvision.tasks.text import (
    TextAnswers,
    TextTask,
    answers_metric,
    calibration_curve,
    calibration_error,
    confusion,
    fit_temperature,
    label_counts,
    score_errors,
    score_texts,
    task_of,
    truth,
)
from bertvision.tasks.text.answers import softmax
from bertvision.tasks.text.metrics import pearson, ranks, spearman

labels = st.integers(2, 5).flatmap(
    lambda c: st.lists(st.tuples(st.integers(0, c - 1), st.integers(0, c - 1)), min_size=1, max_size=40)
)


def answered(pairs: list[tuple[int, int]], classes: int) -> tuple[TextAnswers, TextData]:
    """Data with the labels of `pairs` and answers with their predictions."""
    data = make_texts(0, examples=len(pairs), classes=classes)
    examples = [
        type(example)(example.id, example.first, None, label)
        for example, (label, _) in zip(data.examples, pairs, strict=True)
    ]
    data = TextData(examples, "label", data.classes)
    values = np.array([said for _, said in pairs])
    chances = np.eye(classes)[values] * 0.6 + 0.4 / classes
    return TextAnswers([e.id for e in examples], task_of(data), chances, values), data


def f1_by_hand(pairs: list[tuple[int, int]], k: int) -> float | None:
    """None where the class occurs on neither side."""
    right = sum(label == said == k for label, said in pairs)
    wrong, missed = sum(s == k != t for t, s in pairs), sum(t == k != s for t, s in pairs)
    return None if right + wrong + missed == 0 else right / (right + (wrong + missed) / 2)


def mcc_by_hand(pairs: list[tuple[int, int]], classes: int) -> float:
    """Gorodkin's form: the correlation of the two one-hot matrices, summed over classes."""
    t, s = np.eye(classes)[[p[0] for p in pairs]], np.eye(classes)[[p[1] for p in pairs]]
    t, s = t - t.mean(axis=0), s - s.mean(axis=0)
    spread = math.sqrt((t * t).sum() * (s * s).sum())
    return (t * s).sum() / spread if spread > 1e-9 else 0.0


@settings(max_examples=150, deadline=None)
@given(labels)
def test_label_metrics_by_hand(pairs: list[tuple[int, int]]) -> None:
    classes = max(2, 1 + max(max(pair) for pair in pairs))
    answers, data = answered(pairs, classes)
    found = score_texts(answers, data)
    assert found["accuracy"] == pytest.approx(sum(t == s for t, s in pairs) / len(pairs))
    each = [f1_by_hand(pairs, k) for k in range(classes)]
    known = [f for f in each if f is not None]
    expected = (each[1] or 0.0) if classes == 2 else sum(known) / len(known)
    assert found["f1"] == pytest.approx(expected)
    assert found["mcc"] == pytest.approx(mcc_by_hand(pairs, classes), abs=1e-9)
    table = confusion(answers, data)
    for t in range(classes):
        for s in range(classes):
            assert table[t, s] == pairs.count((t, s))
    true, said = label_counts(answers, data)
    assert (true.tolist(), said.tolist()) == (table.sum(1).tolist(), table.sum(0).tolist())


def test_closed_cases() -> None:
    # 2 x 2: mcc = (tp tn - fp fn) / sqrt(...), f1 = 2 tp / (2 tp + fp + fn)
    tp, tn, fp, fn = 6, 3, 1, 2
    pairs = [(1, 1)] * tp + [(0, 0)] * tn + [(0, 1)] * fp + [(1, 0)] * fn
    found = score_texts(*answered(pairs, 2))
    assert found["f1"] == pytest.approx(12 / 15)
    assert found["mcc"] == pytest.approx((18 - 2) / math.sqrt(7 * 8 * 4 * 5))
    assert found["log_loss"] == pytest.approx(-(9 * math.log(0.8) + 3 * math.log(0.2)) / 12)
    assert found["calibration_error"] == pytest.approx(abs(0.8 - 9 / 12))
    always = score_texts(*answered([(0, 1), (1, 1), (1, 1)], 2))  # one class for everything says nothing
    assert always["mcc"] == 0
    assert always["accuracy"] == pytest.approx(2 / 3)


def test_f1_is_of_the_positive_class() -> None:
    answers, data = answered([(0, 0), (0, 1), (1, 1), (0, 0)], 2)
    other = TextTask("label", data.classes, metric="f1", positive=0)
    turned = TextAnswers(answers.ids, other, answers.probabilities, answers.values)
    assert score_texts(turned, data)["f1"] == pytest.approx(4 / 5)
    assert answers_metric(turned, data) == pytest.approx(4 / 5)
    assert score_texts(answers, data)["f1"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("classes", [2, 4])
def test_labels_agree_with_sklearn(classes: int) -> None:
    reference = pytest.importorskip("sklearn.metrics")
    data = make_texts(5, examples=400, classes=classes)
    answers, right = make_answers(6, data, task_of(data)), truth(data)
    found = score_texts(answers, data)
    average = "binary" if classes == 2 else "macro"
    assert found["accuracy"] == pytest.approx(reference.accuracy_score(right, answers.values))
    assert found["f1"] == pytest.approx(reference.f1_score(right, answers.values, average=average))
    assert found["mcc"] == pytest.approx(reference.matthews_corrcoef(right, answers.values))
    assert found["log_loss"] == pytest.approx(reference.log_loss(right, answers.probabilities))
    np.testing.assert_array_equal(confusion(answers, data), reference.confusion_matrix(right, answers.values))


def rank_by_hand(values: list[float], i: int) -> float:
    below, same = sum(v < values[i] for v in values), sum(v == values[i] for v in values)
    return below + (same + 1) / 2


numbers = st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), min_size=1, max_size=30)


@settings(max_examples=150, deadline=None)
@given(numbers)
def test_correlations_by_hand(pairs: list[tuple[int, int]]) -> None:
    x, y = (np.array(side, np.float64) for side in zip(*pairs, strict=True))
    assert ranks(x).tolist() == [rank_by_hand(x.tolist(), i) for i in range(len(x))]
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert pearson(x, y) == spearman(x, y) == 0
        return
    assert pearson(x, y) == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-9)
    expected = np.corrcoef(
        [rank_by_hand(x.tolist(), i) for i in range(len(x))],
        [rank_by_hand(y.tolist(), i) for i in range(len(y))],
    )[0, 1]
    assert spearman(x, y) == pytest.approx(expected, abs=1e-9)
    assert spearman(np.exp(x), y) == pytest.approx(expected, abs=1e-9)  # order is all that counts


def test_without_ties_spearman_is_the_formula_of_rank_differences() -> None:
    x = np.random.default_rng(0).permutation(50).astype(np.float64)
    d = ranks(x) - np.arange(1, 51)
    assert spearman(x, np.arange(50.0)) == pytest.approx(1 - 6 * (d @ d) / (50 * (50**2 - 1)))


def test_a_constant_that_has_no_exact_mean_correlates_with_nothing() -> None:
    assert pearson(np.full(7, 0.1), np.arange(7.0)) == 0


def test_scores() -> None:
    data = make_texts(7, examples=60, classes=0)
    answers, right = make_answers(8, data, task_of(data)), truth(data)
    found = score_texts(answers, data)
    assert list(found) == ["pearson", "spearman", "mse", "mae"]
    errors = score_errors(answers, data)
    assert errors.tolist() == [v - r for v, r in zip(answers.values.tolist(), right.tolist(), strict=True)]
    assert found["mse"] == pytest.approx(sum(e * e for e in errors.tolist()) / 60)
    assert found["mae"] == pytest.approx(sum(abs(e) for e in errors.tolist()) / 60)
    assert answers_metric(answers, data) == found["pearson"]
    stats = pytest.importorskip("scipy.stats")
    assert found["pearson"] == pytest.approx(stats.pearsonr(right, answers.values)[0])
    assert found["spearman"] == pytest.approx(stats.spearmanr(right, answers.values)[0])


def test_what_cannot_be_scored_is_said() -> None:
    data = make_texts(1)
    answers = make_answers(1, data, task_of(data))
    with pytest.raises(DataError, match="not those of the 11 examples"):
        score_texts(answers, data.take(range(11)))
    unknown = TextData([*data.examples[:-1], type(data.examples[0])("z", "text")], "label", data.classes)
    with pytest.raises(DataError, match="1 of 12 examples have no label"):
        score_texts(answers, unknown)


# ---- calibration


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
    assert calibration_error(chances, right) == pytest.approx(total)
    curve = calibration_curve(chances, right)
    assert sum(part.count for part in curve) == examples
    assert (curve[0].low, curve[-1].high) == (0.0, 1.0)


def test_a_bin_holds_its_upper_edge() -> None:
    curve = calibration_curve(np.array([[0.5, 0.5], [0.75, 0.25], [1.0, 0.0]]), np.array([0, 0, 0]), bins=4)
    assert [part.count for part in curve] == [0, 1, 1, 1]


def test_certainty_that_is_always_right_has_no_error() -> None:
    right = np.array([0, 1, 1])
    assert calibration_error(np.eye(2)[right], right) == 0
    assert calibration_error(np.eye(2)[1 - right], right) == 1


def log_loss(logits: np.ndarray, right: np.ndarray, temperature: float) -> float:
    return float(-np.log(softmax(logits / temperature)[np.arange(len(right)), right]).mean())


@pytest.mark.parametrize("planted", [0.4, 1.0, 5.0])
def test_the_temperature_that_was_planted_is_found(planted: float) -> None:
    random = np.random.default_rng(0)
    honest = random.normal(0, 2, (20_000, 3))
    drawn = (softmax(honest).cumsum(axis=1) < random.random((20_000, 1))).sum(axis=1)
    found = fit_temperature(honest * planted, drawn)
    assert found == pytest.approx(planted, rel=0.03)
    assert calibration_error(softmax(honest * planted / found), drawn) < 0.02
    best = log_loss(honest * planted, drawn, found)
    grid = [log_loss(honest * planted, drawn, found * factor) for factor in (0.8, 0.95, 1.05, 1.25)]
    assert all(best < other for other in grid)


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
