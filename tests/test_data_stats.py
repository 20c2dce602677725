"""`bertvision data`: its counts against a count by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertvision.cli.data import DataArgs, TextArgs, main
from bertvision.data.examples import Answer, Example, SpanData
from bertvision.data.squad import read_squad, write_squad
from bertvision.data.stats import data_stats, pair_lengths, suggest_max_length
from bertvision.data.text_stats import text_stats
from bertvision.data.text_windows import make_windows_of
from bertvision.data.texts import TextData, TextExample
from bertvision.data.windows import WindowConfig, make_windows
from bertvision.encoder.load import load_tokenizer

CONTEXTS = ["red " * 50 + "blue", "green", "never asked"]
EXAMPLES = [
    Example("1", "which", 0, (Answer("blue", 200),)),
    Example("2", "which one", 0),
    Example("3", "which", 1, (Answer("green", 0),)),
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer("embedded")


def test_counts(tokenizer: Any) -> None:
    data = SpanData(CONTEXTS, EXAMPLES, "colours")
    stats = data_stats(data, make_windows(data, tokenizer, WindowConfig(34, 8, 20)), limit=512)
    # Contexts of 51 tokens with 30 and 29 of room: windows at 0, 20 and 40, the answer in the last.
    assert (stats.examples, stats.answerable, stats.paragraphs) == (3, 2, 2)
    assert (stats.windows, stats.windows_with_answer, stats.examples_with_one_window) == (7, 2, 1)
    assert stats.examples_without_label == 0
    assert stats.tokens == (34 + 34 + 15) + (34 + 34 + 16) + 5
    assert stats.lengths == {"mean": 38.7, "p50": 55, "p90": 56, "p95": 56, "p98": 56, "p99": 56, "max": 56}
    assert (stats.suggested_max_seq_length, stats.fits_in_one_window) == (56, 1.0)


def test_pair_lengths_do_not_depend_on_the_cutting(tokenizer: Any) -> None:
    data = SpanData(CONTEXTS, EXAMPLES)
    for config in (WindowConfig(), WindowConfig(20, 8, 3), WindowConfig(20, 8, 5, "overlap")):
        assert pair_lengths(make_windows(data, tokenizer, config)).tolist() == [55, 56, 5]


def test_the_suggestion_is_the_99th_percentile_in_eights() -> None:
    lengths = np.arange(1, 1_001)
    assert suggest_max_length(lengths) == 992
    assert (lengths <= 992).mean() >= 0.99
    assert suggest_max_length(lengths, limit=512) == 512
    assert suggest_max_length(np.array([386])) == 392
    assert suggest_max_length(np.array([384])) == 384


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "set.json"
    write_squad(SpanData(CONTEXTS, EXAMPLES), path)
    main(DataArgs(str(path), windows=WindowConfig(34, 8, 20), json=True))
    told = json.loads(capsys.readouterr().out)
    assert (told["examples"], told["windows"], told["lengths"]["max"]) == (3, 7, 56)
    main(DataArgs(str(path), windows=WindowConfig(34, 8, 20)))
    shown = capsys.readouterr().out
    assert "suggested --max-seq-length 56" in shown
    assert "1 of 3 examples fit in one" in shown
    main(DataArgs(str(path), max_examples=1, json=True))
    assert json.loads(capsys.readouterr().out)["examples"] == 1


def test_an_answer_wider_than_the_windows_is_counted(tokenizer: Any, tmp_path: Path) -> None:
    data = SpanData(CONTEXTS, [Example("1", "which", 0, (Answer("red " * 40, 0),))])
    assert (
        data_stats(data, make_windows(data, tokenizer, WindowConfig(34, 8, 20))).examples_without_label == 1
    )


def test_the_official_dev_set(shared_data: Path, tokenizer: Any) -> None:
    data = read_squad(shared_data / "squad" / "dev-v2.0.json")
    lengths = pair_lengths(make_windows(data, tokenizer, WindowConfig()))
    # Counted by the tokenizer's own pair call, on every tenth question.
    some = range(0, len(data), 10)
    questions = [data.examples[i].question for i in some]
    contexts = [data.context(data.examples[i]) for i in some]
    theirs = tokenizer(questions, contexts, verbose=False)["input_ids"]
    assert [len(ids) for ids in theirs] == lengths[list(some)].tolist()


# ---- texts


def test_counts_of_classes(tokenizer: Any) -> None:
    texts = ["red " * 50, "blue", "green blue", "red"]
    labels = [0, 2, 2, None]
    examples = [
        TextExample(str(i), text, None, label)
        for i, (text, label) in enumerate(zip(texts, labels, strict=True))
    ]
    data = TextData(examples, "label", ("a", "b", "c"), "colours")
    stats = text_stats(data, make_windows_of(data, tokenizer, WindowConfig(32, doc_stride=10)), limit=512)
    assert (stats.name, stats.kind, stats.pairs, stats.examples) == ("colours", "label", False, 4)
    assert (stats.classes, stats.without_label) == ({"a": 1, "b": 0, "c": 2}, 1)
    # 50 tokens with 30 of room: windows at 0, 10 and 20.
    assert (stats.windows, stats.windows_of_classes) == (6, {"a": 3, "b": 0, "c": 2})
    assert (stats.examples_with_one_window, stats.tokens) == (3, 3 * 32 + 3 + 4 + 3)
    assert (stats.lengths["max"], stats.lengths["p50"], stats.suggested_max_seq_length) == (52, 4, 56)
    assert stats.scores == {}


@pytest.mark.parametrize("apart", [False, True])
def test_counts_of_scores(tokenizer: Any, apart: bool) -> None:
    examples = [TextExample("a", "red " * 10, "blue", 1.0), TextExample("b", "red", "blue green", 4.0)]
    data = TextData(examples, "score")
    windows = make_windows_of(data, tokenizer, WindowConfig(32, apart=apart))
    stats = text_stats(data, windows, apart=apart)
    assert stats.scores == {"mean": 2.5, "spread": 1.5, "min": 1.0, "max": 4.0}
    assert (stats.classes, stats.windows_of_classes, stats.examples_with_one_window) == ({}, {}, 2)
    assert (stats.windows, stats.lengths["max"]) == ((4, 12) if apart else (2, 14))


def test_the_command_with_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "set.csv"
    path.write_text("text,label\nred,warm\nblue,cold\nblue blue,cold\n")
    main(DataArgs(str(path), json=True))
    told = json.loads(capsys.readouterr().out)
    assert (told["examples"], told["classes"], told["tokens"]) == (3, {"cold": 2, "warm": 1}, 3 + 3 + 4)
    main(DataArgs(str(path)))
    shown = capsys.readouterr().out
    assert "66.7%" in shown
    assert "3 of 3 examples fit in one" in shown
    main(DataArgs(str(path), text=TextArgs(prompt="red"), json=True))
    told = json.loads(capsys.readouterr().out)
    assert (told["pairs"], told["tokens"]) == (True, 5 + 5 + 6)
    scores = tmp_path / "scores.csv"
    scores.write_text("body,stars\nred,2.5\nblue,3.5\n")
    main(DataArgs(str(scores), text=TextArgs(text="body", label="stars", task="score")))
    assert "2.500" in capsys.readouterr().out


def test_the_command_with_a_test_set_without_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "test.tsv"
    path.write_text("index\tsentence\n0\tred\n1\tblue\n")
    main(DataArgs(f"glue:SST-2:{path}"))
    assert "without label" in capsys.readouterr().out
    main(DataArgs("answerable:demo:dev", json=True))
    told = json.loads(capsys.readouterr().out)
    assert (told["classes"], told["windows_of_classes"]) == ({"answer": 480, "no answer": 320},) * 2
