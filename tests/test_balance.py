"""--text.balance: classes count alike in the loss, however many windows each has."""

from pathlib import Path

import pytest

from bertvision.data.examples import TextData, TextExample
from bertvision.data.windows import WindowConfig
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ConfigError
from bertvision.tasks.label import LabelTask
from bertvision.tasks.settings import TextConfig
from bertvision.train.splits import window_split


def data(labels: list[int], kind: str = "label") -> TextData:
    examples = [TextExample(str(i), f"text number {i}", label=label) for i, label in enumerate(labels)]
    classes = ("a", "b", "c") if kind == "label" else ()
    return TextData(examples, kind, classes, "toy")  # pyright: ignore[reportArgumentType]


def test_all_windows_of_a_class_weigh_the_same_together(tiny_bert: Path) -> None:
    encoder = Encoder.load(str(tiny_bert))
    how = TextConfig(balance=True)
    train = window_split(
        data([0] * 6 + [1] * 2 + [2]), encoder, WindowConfig(max_seq_length=32), keep=False, text=how
    )
    assert isinstance(train.task, LabelTask)
    weights = train.task.weights
    assert [count * weight for count, weight in zip((6, 2, 1), weights, strict=True)] == [3.0, 3.0, 3.0]
    dev = window_split(
        data([0, 1]), encoder, WindowConfig(max_seq_length=32), keep=False, task=train.task, text=how
    )
    assert dev.task == train.task, "dev counts as train does"


def test_scores_have_no_classes_to_count_alike(tiny_bert: Path) -> None:
    encoder = Encoder.load(str(tiny_bert))
    with pytest.raises(ConfigError, match=r"--text\.balance is for classes"):
        window_split(
            data([1, 2], "score"),
            encoder,
            WindowConfig(max_seq_length=32),
            keep=False,
            text=TextConfig(balance=True),
        )
