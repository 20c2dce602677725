"""Merging of windows against loops over them; logits on disk."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_cases import make_answers, make_logits, make_texts, make_windows

from bertvision.errors import ArtifactError, ConfigError, DataError
from bertvision.tasks.text import (
    Merge,
    TextLogits,
    TextTask,
    answer,
    class_logits,
    joined_logits,
    task_of,
    write_text_answers,
)


def softmax(row: list[float]) -> np.ndarray:
    weights = np.exp(np.array(row, np.float64) - max(row))
    return weights / weights.sum()


counts = st.lists(st.integers(1, 4), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(counts, st.integers(0, 10**6), st.sampled_from([1, 2]), st.sampled_from([2, 3]), st.booleans())
def test_mean_of_probabilities(number: list[int], seed: int, group: int, classes: int, bce: bool) -> None:
    data, windows = make_texts(seed, examples=len(number), classes=classes), make_windows(number, group)
    loss = "bce" if bce and classes == 2 else "ce"
    task = TextTask("label", data.classes, loss, group=group)
    logits = make_logits(seed, sum(number), task.outputs)
    answers = answer(windows, logits, data, task)
    assert answers.ids == [example.id for example in data.examples]
    assert answers.probabilities is not None
    rows = iter(logits.values.tolist())
    for e, own in enumerate(number):
        each = [next(rows) for _ in range(own)]
        mean = np.mean([softmax([0.0, *row] if loss == "bce" else row) for row in each], axis=0)
        np.testing.assert_allclose(answers.probabilities[e], mean, atol=1e-9)
        assert answers.values[e] == mean.argmax()


@settings(max_examples=60, deadline=None)
@given(counts, st.integers(0, 10**6), st.sampled_from([0, 1]), st.sampled_from(["min", "max", "any_null"]))
def test_one_window_decides(number: list[int], seed: int, positive: int, merge: Merge) -> None:
    """min: all windows must vote for the positive class; max and any_null: one is enough."""
    data = make_texts(seed, examples=len(number), classes=2)
    task = TextTask("label", data.classes, positive=positive, merge=merge)
    logits = make_logits(seed, sum(number), 2)
    answers = answer(make_windows(number), logits, data, task)
    assert answers.probabilities is not None
    votes, chances = iter(logits.values.argmax(axis=1).tolist()), iter(logits.values.tolist())
    for e, own in enumerate(number):
        mine = [next(votes) == positive for _ in range(own)]
        assert (answers.values[e] == positive) == (all(mine) if merge == "min" else any(mine))
        least_or_most = min if merge == "min" else max
        chance = least_or_most(softmax(next(chances))[positive] for _ in range(own))
        assert answers.probabilities[e, positive] == pytest.approx(chance)
    np.testing.assert_allclose(answers.probabilities.sum(axis=1), 1.0)


@settings(max_examples=40, deadline=None)
@given(counts, st.integers(0, 10**6), st.sampled_from(["mean", "min", "max"]))
def test_scores_return_to_their_units(number: list[int], seed: int, merge: Merge) -> None:
    data = make_texts(seed, examples=len(number), classes=0)
    task = TextTask("score", (), "mse", "pearson", merge=merge, shift=300.0, scale=40.0)
    logits = make_logits(seed, sum(number), 1)
    answers = answer(make_windows(number), logits, data, task)
    assert answers.probabilities is None
    merged = {"mean": np.mean, "min": np.min, "max": np.max}[merge]
    ends = np.cumsum(number)
    for e, (end, own) in enumerate(zip(ends, number, strict=True)):
        scores = 300 + 40 * logits.values[end - own : end, 0].astype(np.float64)
        assert answers.values[e] == pytest.approx(merged(scores))


def test_a_temperature_softens_and_changes_no_single_window() -> None:
    data, windows, logits = make_texts(0), make_windows([1] * 12), make_logits(0, 12, 3)
    plain = answer(windows, logits, data, task_of(data))
    soft = answer(windows, logits, data, task_of(data), temperature=3.0)
    assert plain.probabilities is not None
    assert soft.probabilities is not None
    np.testing.assert_array_equal(plain.values, soft.values)
    assert (soft.probabilities.max(axis=1) < plain.probabilities.max(axis=1)).all()
    np.testing.assert_allclose(soft.probabilities[5], softmax((logits.values[5] / 3.0).tolist()), rtol=1e-6)


def test_what_does_not_belong_together_is_refused() -> None:
    data, windows, logits = make_texts(0), make_windows([2] * 12), make_logits(0, 24, 3)
    task = task_of(data)
    with pytest.raises(ArtifactError, match="ask for 24 rows"):
        answer(windows, TextLogits(logits.values[:-1]), data, task)
    with pytest.raises(ArtifactError, match="2 columns but the task has 3 outputs"):
        answer(windows, make_logits(0, 24, 2), data, task)
    with pytest.raises(DataError, match=r"toy.tsv has 11: make the windows from this data"):
        answer(windows, logits, data.take(range(11)), task)
    with pytest.raises(DataError, match="fitted for the classes a, b"):
        answer(windows, logits, data, TextTask("label", ("a", "b")))
    logits.values[7, 1] = np.nan
    with pytest.raises(ArtifactError, match="the first in window 7"):
        answer(windows, logits, data, task)


@pytest.mark.parametrize("loss", ["ce", "bce"])
def test_an_ensemble_is_the_mean_of_probabilities(loss: Any) -> None:
    task = TextTask("label", ("a", "b"), loss=loss)
    members = [make_logits(seed, 9, task.outputs) for seed in range(3)]
    chances = [[softmax(list(row)) for row in class_logits(m.values, task)] for m in members]
    mean = np.mean(chances, axis=0)
    joined = joined_logits(members, task)
    assert joined.values.shape == (9, task.outputs)
    found = [softmax(list(row)) for row in class_logits(joined.values, task)]
    np.testing.assert_allclose(found, mean, atol=1e-6)


def test_an_ensemble_of_scores_is_their_mean() -> None:
    task = TextTask("score", loss="mse", metric="pearson", shift=2.0, scale=3.0)
    members = [make_logits(seed, 4, 1) for seed in range(2)]
    np.testing.assert_allclose(
        joined_logits(members, task).values, (members[0].values + members[1].values) / 2, rtol=1e-6
    )
    with pytest.raises(ConfigError, match="at least one model"):
        joined_logits([], task)


def test_logits_on_disk(tmp_path: Path) -> None:
    path, logits = tmp_path / "dev.safetensors", make_logits(1, 5, 3)
    logits.save(path, "f" * 32)
    np.testing.assert_array_equal(TextLogits.load(path, "f" * 32).values, logits.values)
    with pytest.raises(ArtifactError, match="belongs to other windows"):
        TextLogits.load(path, "e" * 32)
    with pytest.raises(ArtifactError, match="is missing"):
        TextLogits.load(tmp_path / "other", "f" * 32)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ArtifactError, match="is damaged"):
        TextLogits.load(path, "f" * 32)
    assert [file.name for file in tmp_path.iterdir()] == ["dev.safetensors"]


def test_answers_as_files(tmp_path: Path) -> None:
    data = make_texts(4)
    answers = make_answers(4, data, task_of(data))
    write_text_answers(tmp_path, answers)
    said = json.loads((tmp_path / "predictions.json").read_text())
    chances = json.loads((tmp_path / "probabilities.json").read_text())
    assert list(said) == answers.ids
    for name, chance in chances.items():
        assert said[name] == max(chance, key=lambda c: chance[c])
    scores = make_texts(4, classes=0)
    write_text_answers(tmp_path / "scores", make_answers(4, scores, task_of(scores)))
    assert [file.name for file in (tmp_path / "scores").iterdir()] == ["predictions.json"]
