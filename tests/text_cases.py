"""Small random texts with labels or scores, their windows and logits; made without a tokenizer."""

import numpy as np

from bertvision.data.texts import TextData, TextExample
from bertvision.data.windows import Windows
from bertvision.tasks.text import TextAnswers, TextLogits, TextTask

NAMES = ("red", "green", "blue", "grey", "white")


def make_texts(seed: int, *, examples: int = 12, classes: int = 3) -> TextData:
    """Texts of a few words; with `classes` 0 scores between 0 and 5, some of them equal."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, examples) if classes else random.integers(0, 11, examples) / 2
    made = [TextExample(f"id-{i}", f"text {i}", None, label) for i, label in enumerate(labels.tolist())]
    return TextData(made, "label" if classes else "score", NAMES[:classes], name="toy.tsv")


def make_windows(counts: list[int], group: int = 1) -> Windows:
    """`counts[e]` rows of `group` windows for example e, two tokens each."""
    example = np.repeat(np.arange(len(counts)), np.array(counts) * group).astype(np.int32)
    number = len(example)
    return Windows(
        ids=np.ones(2 * number, np.int32),
        types=np.zeros(2 * number, np.uint8),
        chars=np.zeros((2 * number, 2), np.int32),
        offsets=2 * np.arange(number + 1, dtype=np.int64),
        example=example,
        context=np.tile(np.array([0, 2], np.int32), (number, 1)),
        labels=np.zeros((number, 1), np.int32),
        null=np.zeros(number, np.int32),
        best=np.ones(2 * number, np.bool_),
    )


def make_logits(seed: int, rows: int, outputs: int) -> TextLogits:
    values = np.random.default_rng(seed).normal(0, 2, (rows, outputs))
    return TextLogits(values.astype(np.float32))


def make_answers(seed: int, data: TextData, task: TextTask) -> TextAnswers:
    """Random answers for all of `data`."""
    random = np.random.default_rng(seed)
    ids = [example.id for example in data.examples]
    if data.kind == "score":
        return TextAnswers(ids, task, None, random.integers(0, 9, len(data)) / 2)
    probabilities = random.dirichlet(np.full(len(data.classes), 0.7), len(data))
    return TextAnswers(ids, task, probabilities, probabilities.argmax(axis=1))
