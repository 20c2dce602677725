"""What every kind of task must keep, and the merging of windows against loops over them."""

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from span_cases import make_case
from span_cases import make_logits as span_logits
from text_cases import make_logits, make_texts, make_windows, task_of

from bertvision.config import to_mapping
from bertvision.data.windows import WindowConfig
from bertvision.errors import ArtifactError, ConfigError, DataError
from bertvision.tasks.base import KINDS, DecodeConfig, Merge, TextConfig, task_for, task_from_config, to_json
from bertvision.tasks.label_score import LabelTask, LabelTuning, ScoreTask
from bertvision.tasks.logits import Logits
from bertvision.tasks.span import SpanTask, SpanTuning
from bertvision.tasks.triplet import TripletTask

TASKS: dict[str, Any] = {
    "span": SpanTask(),
    "label": LabelTask(("red", "green", "blue"), metric="f1"),
    "two labels": LabelTask(("red", "green"), "bce", merge="max", positive=0),
    "score": ScoreTask(metric="spearman", merge="min", shift=2.0, scale=3.0),
    "triplet": TripletTask("paper", 0.5, group=4),
}
ANSWERING = {name: task for name, task in TASKS.items() if task.predicts}


def case(name: str, seed: int = 0) -> tuple[Any, Any, Any, Logits]:
    """A task, data, windows and logits."""
    task = TASKS[name]
    if task.kind == "span":
        data, windows = make_case(seed, questions=30)
        return task, data, windows, span_logits(seed, windows)
    data = make_texts(seed, examples=30, classes=len(task.classes))
    counts = np.random.default_rng(seed).integers(1, 4, 30).tolist()
    return task, data, make_windows(counts, data=data), make_logits(seed, sum(counts), task.outputs)


@pytest.mark.parametrize("name", TASKS)
def test_a_task_survives_its_config(name: str) -> None:
    task = TASKS[name]
    assert task_from_config(json.loads(json.dumps(task.config())), "here") == task
    assert SpanTask(weights=(0.5, 2.0)).config() == SpanTask().config(), "weights are for the loss alone"
    assert KINDS[task.kind] is type(task)
    assert task.metric in task.metrics
    for config in (None, "span", {"kind": "no such"}, {"kind": task.kind, "nonsense": 1}):
        with pytest.raises(ArtifactError, match="fit the head again"):
            task_from_config(config, "here")


@pytest.mark.parametrize("name", ANSWERING)
def test_from_logits_to_scores_files_and_predictions(name: str, tmp_path: Path) -> None:
    task, data, windows, logits = case(name)
    answers = task.answer(windows, logits, data)
    tuning = task.tune(answers)
    scores = task.score(answers, tuning)
    assert set(scores) <= set(task.metrics)
    assert task.score(answers)[task.metric] == scores[task.metric], "tuned on these very answers"
    assert next(iter(task.cells(scores))) == task.title(task.metric)
    # The tuning and the answers survive the disk.
    stored = {"on": "dev.json"} | json.loads(json.dumps(to_mapping(tuning)))
    assert task.tuning_from(stored, "here") == tuning
    task.write_answers(tmp_path, answers, tuning)
    written = json.loads((tmp_path / "predictions.json").read_text(), parse_constant=pytest.fail)
    assert list(written) == task.ids(data)
    alone = task.compare(task.metric, [(answers, tuning)])
    assert alone.difference == pytest.approx(scores[task.metric])
    assert alone.low <= alone.difference <= alone.high
    found = task.compare(task.metric, [(answers, tuning)], [(answers, tuning)])
    assert (found.difference, found.low, found.high) == (0, 0, 0)
    assert task.mcnemar((answers, tuning), (answers, tuning)) in (None, 1.0)
    predictions = task.predictions(answers, tuning)
    assert len(predictions) == len(answers) == len(data)
    for prediction in predictions:
        assert json.dumps(to_json(prediction))
        assert prediction.line()
        assert prediction.kind == task.kind

    # What a report shows.
    assert json.dumps(task.details(answers, tuning))
    shown = json.loads(json.dumps(task.examples((answers, tuning))))
    assert all({"texts", "truth"} <= set(one) for one in shown)
    assert [(one["id"], one["said"]) for one in shown] == list(written.items())
    if name != "score":
        exact = 100 * np.mean([one["right"] for one in shown])
        assert exact == pytest.approx(scores["tuned_exact"] if name == "span" else 100 * scores["accuracy"])
    for scores in task.baselines(data, {"dev": data, "test": data}).values():
        assert scores["dev"] == scores["test"]
        assert task.metric in scores["dev"]


def test_logits_on_disk(tmp_path: Path) -> None:
    logits, path = case("span")[3], tmp_path / "dev.safetensors"
    for log_probs in (False, True):
        replace(logits, log_probs=log_probs).save(path, "f" * 32)
        loaded = Logits.load(path, "f" * 32)
        assert loaded.log_probs == log_probs
        assert set(loaded.arrays) == set(logits.arrays)
        for key, values in logits.arrays.items():
            np.testing.assert_array_equal(loaded[key], values)
    with pytest.raises(ArtifactError, match="belongs to other windows"):
        Logits.load(path, "e" * 32)
    with pytest.raises(ArtifactError, match="is missing"):
        Logits.load(tmp_path / "other", "f" * 32)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ArtifactError, match="is damaged"):
        Logits.load(path, "f" * 32)
    assert [file.name for file in tmp_path.iterdir()] == ["dev.safetensors"]


@pytest.mark.parametrize("name", ANSWERING)
def test_logits_of_other_windows_are_refused(name: str) -> None:
    task, data, windows, logits = case(name)
    short = Logits({key: values[:-1] for key, values in logits.arrays.items()})
    with pytest.raises(ArtifactError, match="rows of"):
        task.answer(windows, short, data)
    with pytest.raises(ArtifactError, match="hold no"):
        task.answer(windows, Logits({"other": np.zeros(3, np.float32)}), data)
    with pytest.raises(DataError, match="make the windows from this data"):
        task.answer(windows, logits, data.take(range(29)))
    broken = {key: values.copy() for key, values in logits.arrays.items()}
    next(iter(broken.values()))[-1] = np.nan
    with pytest.raises(ArtifactError, match=f"the first in window {len(windows) - 1}"):
        task.answer(windows, Logits(broken), data)
    if task.unit == "window":
        with pytest.raises(ArtifactError, match=f"the task has {task.outputs} outputs"):
            task.answer(windows, make_logits(0, len(windows), 4), data)


def softmax(row: list[float]) -> np.ndarray:
    weights = np.exp(np.array(row, np.float64) - max(row))
    return weights / weights.sum()


counts = st.lists(st.integers(1, 4), min_size=1, max_size=6)
MERGES: dict[str, Any] = {"mean": np.mean, "min": np.min, "max": np.max, "any_null": np.max}


@settings(max_examples=120, deadline=None)
@given(
    counts, st.integers(0, 10**6), st.sampled_from([1, 2]), st.sampled_from([2, 3]), st.booleans(),
    st.sampled_from([0, 1]), st.sampled_from([*MERGES]),
)  # fmt: skip
def test_probabilities_of_windows_are_merged(
    number: list[int], seed: int, group: int, classes: int, bce: bool, positive: int, merge: Merge
) -> None:
    """mean: of the probabilities; min: all windows must vote for the positive class; max, any_null: one is enough."""
    classes = classes if merge == "mean" else 2
    data, windows = make_texts(seed, examples=len(number), classes=classes), make_windows(number, group)
    objective = "bce" if bce and classes == 2 else "ce"
    task = LabelTask(data.classes, objective, positive=positive, merge=merge, group=group)
    logits = make_logits(seed, sum(number), task.outputs)
    answers = task.answer(windows, logits, data)
    rows = iter(logits["values"].tolist())
    for e, own in enumerate(number):
        each = [softmax([0.0, *row] if objective == "bce" else row) for row in islice(rows, own)]
        merged = MERGES[merge](each, axis=0)
        which = slice(None) if merge == "mean" else positive
        np.testing.assert_allclose(answers.probabilities[e, which], merged[which], atol=1e-9)
        votes = [chances.argmax() == positive for chances in each]
        if merge == "mean":
            assert answers.values[e] == merged.argmax()
        else:
            assert (answers.values[e] == positive) == (all(votes) if merge == "min" else any(votes))
    np.testing.assert_allclose(answers.probabilities.sum(axis=1), 1.0)


@settings(max_examples=40, deadline=None)
@given(counts, st.integers(0, 10**6), st.sampled_from(["mean", "min", "max"]))
def test_scores_return_to_their_units(number: list[int], seed: int, merge: Merge) -> None:
    data, logits = make_texts(seed, examples=len(number), classes=0), make_logits(seed, sum(number), 1)
    answers = ScoreTask(merge=merge, shift=300.0, scale=40.0).answer(make_windows(number), logits, data)
    rows = iter((300 + 40 * logits["values"][:, 0].astype(np.float64)).tolist())
    expected = [MERGES[merge](list(islice(rows, own))) for own in number]
    np.testing.assert_allclose(answers.values, expected)


def test_a_temperature_softens_predictions_alone() -> None:
    data, windows, logits = make_texts(0), make_windows([1] * 12), make_logits(0, 12, 3)
    task = task_of(data)
    answers = task.answer(windows, logits, data)
    plain, soft = task.predictions(answers), task.predictions(answers, LabelTuning(3.0))
    assert [one.label for one in plain] == [one.label for one in soft]
    assert all(second.probability < first.probability for first, second in zip(plain, soft, strict=True))
    expected = softmax((logits["values"][5] / 3.0).tolist())
    np.testing.assert_allclose(list(soft[5].probabilities.values()), expected, rtol=1e-6)


@pytest.mark.parametrize("objective", ["ce", "bce"])
def test_an_ensemble_is_the_mean_of_probabilities_or_scores(objective: str) -> None:
    task, windows = LabelTask(("a", "b"), objective), make_windows([1] * 9)
    members = [make_logits(seed, 9, task.outputs) for seed in range(3)]
    mean = np.mean([[softmax(list(row)) for row in task.rows(m)] for m in members], axis=0)
    joined = task.join(members, windows)
    assert joined["values"].shape == (9, task.outputs)
    np.testing.assert_allclose([softmax(list(row)) for row in task.rows(joined)], mean, atol=1e-6)
    scores = [make_logits(seed, 9, 1) for seed in range(2)]
    mean = (scores[0]["values"] + scores[1]["values"]) / 2
    np.testing.assert_allclose(ScoreTask().join(scores, windows)["values"], mean, rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: LabelTask(("a", "b", "c"), "bce"), "for two classes"),
        (lambda: LabelTask(("a", "b"), "mse"), "not for classes: use ce or bce"),
        (lambda: LabelTask(("a", "b"), metric="pearson"), "does not suit labels: use accuracy, f1, mcc"),
        (lambda: ScoreTask(merge="any_null"), "merged by"),
        (lambda: TripletTask(form="cubic"), "choose softmin or paper"),  # pyright: ignore[reportArgumentType]
        (lambda: SpanTuning(float("nan")), "finite number"),
        (lambda: DecodeConfig(n_best_size=0), "--n-best-size"),
        (lambda: TASKS["span"].merged_by("max"), "--text-merge"),
        (lambda: TASKS["triplet"].sampling_classes(make_windows([1]), 5), "--sampling"),
        (lambda: ScoreTask().join_how("max"), "joined by mean, not by max"),
    ],
)
def test_settings_that_cannot_work_are_refused(make: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


def test_the_data_says_what_is_learned() -> None:
    two = make_texts(3, classes=2)
    apart = WindowConfig(apart=True)
    assert task_for(make_case(0)[0], TextConfig(), apart) == SpanTask()
    assert task_for(two, TextConfig(), apart) == LabelTask(two.classes, positive=two.positive)
    chosen = task_for(two, TextConfig(metric="f1", positive="red", loss="bce", merge="max"), apart)
    assert chosen == LabelTask(two.classes, "bce", "f1", 0, merge="max")
    assert chosen.title("f1") == "F1 of 'red'"
    assert task_for(make_texts(3), TextConfig(), apart).title("f1") == "F1", "of three classes it is a mean"
    scores = make_texts(3, classes=0)
    task = task_for(scores, TextConfig(metric="spearman"), apart)
    values = np.array([e.label for e in scores.examples], np.float64)
    assert (task.metric, task.config()["shift"]) == ("spearman", pytest.approx(values.mean()))
    for data, text, said in (
        (two, TextConfig(positive="ugly"), "must be one of two classes; toy.tsv has red, green"),
        (make_texts(3), TextConfig(positive="red"), "must be one of two classes"),
        (make_case(0)[0], TextConfig(metric="f1"), "--text... says how texts"),
        (scores, TextConfig(loss="ce"), "--text.loss mse"),
    ):
        with pytest.raises(ConfigError, match=said):
            task_for(data, text, apart)


def test_data_of_another_task_is_refused() -> None:
    label = TASKS["label"]
    with pytest.raises(DataError, match="has the classes red, green but the head was fitted for"):
        label.check_data(make_texts(0, classes=2))
    with pytest.raises(ConfigError, match="not data of a label task"):
        label.check_data(make_texts(0, classes=0))
    with pytest.raises(ConfigError, match="has single texts, and the task is about pairs"):
        replace(label, pairs=True).check_data(make_texts(0))
    with pytest.raises(ConfigError, match="not data of a span task"):
        SpanTask().check_data(make_texts(0))


def test_scores_fall_into_bins_of_equal_width() -> None:
    def bins(scores: Any, count: int) -> list[int]:
        windows = replace(make_windows([1] * len(scores)), labels=np.array(scores, np.float64).reshape(-1, 1))
        return ScoreTask().sampling_classes(windows, count).tolist()

    assert bins([0, 0.9, 1, 2.5, 4.999, 5], 5) == [0, 0, 1, 2, 4, 4]
    values = np.random.default_rng(0).normal(0, 3, 200)
    edges = np.linspace(values.min(), values.max(), 8)
    assert bins(values, 7) == np.clip(np.digitize(values, edges) - 1, 0, 6).tolist()
    assert bins([2.0, 2.0], 4) == [0, 0]
    assert bins([], 4) == []
    for wrong, count in (([1.0], 0), ([1.0, np.nan], 3)):
        with pytest.raises(ConfigError, match=r"--bins|cannot be put into bins"):
            bins(wrong, count)
