"""Small random texts with labels or scores, their windows and logits; made without a tokenizer."""

from typing import Any

import numpy as np

from bertvision.data.examples import TextData, TextExample
from bertvision.data.windows import Windows
from bertvision.tasks.label_score import LabelAnswers, LabelTask, ScoreTask
from bertvision.tasks.logits import Logits

NAMES = ("red", "green", "blue", "grey", "white")


def make_texts(seed: int, *, examples: int = 12, classes: int = 3) -> TextData:
    """Texts of a few words; with `classes` 0 scores between 0 and 5, some of them equal."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, examples) if classes else random.integers(0, 11, examples) / 2
    made = [TextExample(f"id-{i}", f"text {i}", None, label) for i, label in enumerate(labels.tolist())]
    return TextData(made, "label" if classes else "score", NAMES[:classes], name="toy.tsv")


def make_windows(counts: list[int], group: int = 1, data: TextData | None = None) -> Windows:
    """`counts[e]` rows of `group` windows for example e, two tokens each; labelled as `data` is."""
    example = np.repeat(np.arange(len(counts)), np.array(counts, int) * group).astype(np.int32)
    number = len(example)
    labels = np.zeros(len(counts), np.int32) if data is None else labels_of(data)
    return Windows(
        ids=np.ones(2 * number, np.int32),
        types=np.zeros(2 * number, np.uint8),
        chars=np.zeros((2 * number, 2), np.int32),
        offsets=2 * np.arange(number + 1, dtype=np.int64),
        example=example,
        context=np.tile(np.array([0, 2], np.int32), (number, 1)),
        labels=labels[example].reshape(-1, 1),
        null=np.zeros(number, np.int32),
        best=np.ones(2 * number, np.bool_),
    )


def labels_of(data: TextData) -> np.ndarray:
    """(E,) numbers of the classes, -1 where one is not known, or scores."""
    if data.kind == "score":
        return np.array([one.label for one in data.examples], np.float32)
    return np.array([-1 if one.label is None else one.label for one in data.examples], np.int32)


def make_logits(seed: int, rows: int, outputs: int) -> Logits:
    values = np.random.default_rng(seed).normal(0, 2, (rows, outputs))
    return Logits({"values": values.astype(np.float32)})


def said(task: Any, data: TextData, values: np.ndarray) -> Any:
    """Answers that predict these classes (with a probability of 0.6 and their share of the rest) or scores."""
    if task.classes:
        values = np.log(np.eye(len(task.classes))[values] * 0.6 + 0.4 / len(task.classes))
    return task.answers_class(task, data, values.astype(np.float64), np.arange(len(data)), labels_of(data))


def task_of(data: TextData, **settings: Any) -> Any:
    """The task of the data with its usual settings."""
    return LabelTask(data.classes, **settings) if data.kind == "label" else ScoreTask(**settings)


def make_answers(seed: int, data: TextData, task: Any) -> Any:
    """Random answers for all of `data`."""
    random = np.random.default_rng(seed)
    if data.kind == "score":
        return said(task, data, random.integers(0, 9, len(data)) / 2)
    chances = random.dirichlet(np.full(len(data.classes), 0.7), len(data))
    return LabelAnswers(task, data, np.log(chances), np.arange(len(data)), labels_of(data))
