"""--text.balance: classes count alike in the loss, however many windows each has."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from bertvision.data.texts import TextData, TextExample
from bertvision.data.windows import WindowConfig
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ConfigError
from bertvision.tasks.text.loss import text_loss
from bertvision.tasks.text.task import TextTask
from bertvision.train.splits import TextConfig, window_split


@pytest.mark.parametrize("loss", ["ce", "bce"])
def test_weights_are_those_of_torch(loss: str) -> None:
    torch.manual_seed(0)
    task = TextTask("label", ("no", "yes"), loss=loss, weights=(0.25, 3.0))  # pyright: ignore[reportArgumentType]
    labels = torch.tensor([[0], [1], [-1], [1], [0]])
    logits = torch.randn(5, task.outputs)
    wide = logits if loss == "ce" else torch.cat([torch.zeros(5, 1), logits], dim=1)
    expected = F.cross_entropy(
        wide, labels[:, 0], weight=torch.tensor([0.25, 3.0]), ignore_index=-1, reduction="none"
    )
    assert torch.allclose(text_loss(logits, labels, task), expected, atol=1e-6)
    plain = text_loss(logits, labels, replace(task, weights=()))
    assert not torch.allclose(plain, expected)


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
    weights = train.text_task.weights
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
    with pytest.raises(ConfigError, match="2 weights for 3 classes"):
        TextTask("label", ("a", "b", "c"), weights=(1.0, 2.0))


def test_metric_and_positive_class_may_be_chosen(tiny_bert: Path) -> None:
    encoder = Encoder.load(str(tiny_bert))
    two = replace(data([0, 1, 1]), classes=("bad", "good"))
    small = WindowConfig(max_seq_length=32)
    task = window_split(
        two, encoder, small, keep=False, text=TextConfig(metric="f1", positive="bad")
    ).text_task
    assert (task.metric, task.positive) == ("f1", 0)
    usual = window_split(two, encoder, small, keep=False).text_task
    assert (usual.metric, usual.positive) == ("accuracy", 1)
    with pytest.raises(ConfigError, match="pearson does not suit toy: use accuracy, f1, mcc"):
        window_split(two, encoder, small, keep=False, text=TextConfig(metric="pearson"))
    with pytest.raises(ConfigError, match="must be one of two classes; toy has bad, good"):
        window_split(two, encoder, small, keep=False, text=TextConfig(positive="ugly"))
