"""`bertvision data`: its counts against a count by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertvision.cli.data import Data, TextArgs
from bertvision.cli.data import data as verb
from bertvision.data.cutting import make_windows
from bertvision.data.examples import Answer, Example, SpanData, TextData, TextExample
from bertvision.data.spans import read_squad, write_squad
from bertvision.data.stats import ClassCount, data_stats, pair_lengths, suggest_max_length
from bertvision.data.windows import WindowConfig
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


def test_counts_of_questions(tokenizer: Any) -> None:
    data = SpanData(CONTEXTS, EXAMPLES, "colours")
    stats = data_stats(data, make_windows(data, tokenizer, WindowConfig(34, 8, 20)), limit=512)
    # Contexts of 51 tokens with 30 and 29 of room: windows at 0, 20 and 40, the answer in the last.
    assert (stats.examples, stats.windows, stats.paragraphs, stats.examples_with_one_window) == (3, 7, 2, 1)
    assert stats.classes == {"with answer": ClassCount(2, 2), "without answer": ClassCount(1, 5)}
    assert (stats.kind, stats.unlabelled, stats.tokens) == ("span", 0, (34 + 34 + 15) + (34 + 34 + 16) + 5)
    assert stats.lengths == {"mean": 38.7, "p50": 55, "p90": 56, "p95": 56, "p98": 56, "p99": 56, "max": 56}
    assert (stats.suggested_max_seq_length, stats.fits_in_one_window) == (56, 1.0)
    wide = SpanData(CONTEXTS, [Example("1", "which", 0, (Answer("red " * 40, 0),))])
    assert data_stats(wide, make_windows(wide, tokenizer, WindowConfig(34, 8, 20))).unlabelled == 1


def test_pair_lengths_do_not_depend_on_the_cutting(tokenizer: Any) -> None:
    data = SpanData(CONTEXTS, EXAMPLES)
    for config in (WindowConfig(), WindowConfig(20, 8, 3), WindowConfig(20, 8, 5, "overlap")):
        assert pair_lengths(make_windows(data, tokenizer, config)).tolist() == [55, 56, 5]


def test_lengths_of_the_official_dev_set(shared_data: Path, tokenizer: Any) -> None:
    data = read_squad(shared_data / "squad" / "dev-v2.0.json")
    lengths = pair_lengths(make_windows(data, tokenizer, WindowConfig()))
    # Counted by the tokenizer's own pair call, on every tenth question.
    some = range(0, len(data), 10)
    questions = [data.examples[i].question for i in some]
    contexts = [data.context(data.examples[i]) for i in some]
    theirs = tokenizer(questions, contexts, verbose=False)["input_ids"]
    assert [len(ids) for ids in theirs] == lengths[list(some)].tolist()


def test_the_suggestion_is_the_99th_percentile_in_eights() -> None:
    found = [
        suggest_max_length(lengths) for lengths in (np.arange(1, 1_001), np.array([386]), np.array([384]))
    ]
    assert found == [992, 392, 384]
    assert suggest_max_length(np.arange(1, 1_001), limit=512) == 512


def test_counts_of_classes(tokenizer: Any) -> None:
    texts = [("red " * 50, 0), ("blue", 2), ("green blue", 2), ("red", None)]
    examples = [TextExample(str(i), text, None, label) for i, (text, label) in enumerate(texts)]
    data = TextData(examples, "label", ("a", "b", "c"), "colours")
    stats = data_stats(data, make_windows(data, tokenizer, WindowConfig(32, doc_stride=10)), limit=512)
    # 50 tokens with 30 of room: windows at 0, 10 and 20.
    assert stats.classes == {"a": ClassCount(1, 3), "b": ClassCount(0, 0), "c": ClassCount(2, 2)}
    assert (stats.name, stats.kind, stats.pairs, stats.examples) == ("colours", "label", False, 4)
    assert (stats.unlabelled, stats.windows, stats.paragraphs) == (1, 6, None)
    assert (stats.positive, stats.scores) == (None, {})
    assert (stats.examples_with_one_window, stats.tokens) == (3, 3 * 32 + 3 + 4 + 3)
    assert (stats.lengths["max"], stats.lengths["p50"], stats.suggested_max_seq_length) == (52, 4, 56)


@pytest.mark.parametrize("apart", [False, True])
def test_counts_of_scores(tokenizer: Any, apart: bool) -> None:
    examples = [TextExample("a", "red " * 10, "blue", 1.0), TextExample("b", "red", "blue green", 4.0)]
    data = TextData(examples, "score")
    stats = data_stats(data, make_windows(data, tokenizer, WindowConfig(32, apart=apart)), apart=apart)
    assert stats.scores == {"mean": 2.5, "spread": 1.5, "min": 1.0, "max": 4.0}
    assert (stats.classes, stats.examples_with_one_window) == ({}, 2)
    assert (stats.windows, stats.lengths["max"]) == ((4, 12) if apart else (2, 14))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    squad, texts, scores, test = (tmp_path / f"set.{i}" for i in ("json", "csv", "jsonl", "tsv"))
    write_squad(SpanData(CONTEXTS, EXAMPLES), squad)
    texts.write_text("text,label\nred,warm\nblue,cold\nblue blue,cold\n")
    scores.write_text('{"body": "red", "stars": 2.5}\n{"body": "blue", "stars": 3.5}\n')
    test.write_text("index\tsentence\n0\tred\n1\tblue\n")

    def shown(file: object, **options: Any) -> str:
        verb(Data(file=str(file), **options))[1]()
        return capsys.readouterr().out

    def counted(file: object, **options: Any) -> dict[str, Any]:
        return verb(Data(file=str(file), **options))[0]

    windows = WindowConfig(34, 8, 20)
    found = counted(squad, windows=windows)
    assert (found["examples"], found["windows"], found["lengths"]["max"]) == (3, 7, 56)
    assert counted(squad, max_examples=1)["examples"] == 1
    table = shown(squad, windows=windows)
    assert "suggested --max-seq-length 56" in table
    assert "1 of 3 examples fit in one" in table
    found = counted(texts)
    assert (found["classes"]["cold"]["examples"], found["positive"], found["tokens"]) == (2, "warm", 10)
    found = counted(texts, text=TextArgs(prompt="red"))
    assert (found["pairs"], found["tokens"]) == (True, 5 + 5 + 6)
    table = shown(texts)
    assert "66.7%" in table
    assert "F1 is about 'warm'" in table
    assert "2.500" in shown(scores, text=TextArgs(text="body", label="stars", task="score"))
    assert "without label" in shown(f"glue:SST-2:{test}")
    classes = counted("answerable:demo:dev")["classes"]
    assert (classes["answer"]["windows"], classes["no answer"]["windows"]) == (480, 320)
