"""`bertvision data`: its counts against a count by hand."""

from pathlib import Path
from typing import Any

import pytest

from bertvision.cli.data import Data, data_stats, pair_lengths
from bertvision.cli.data import data as verb
from bertvision.data.cutting import make_windows
from bertvision.data.examples import Answer, Example, SpanData, TextData, TextExample, read_squad, write_squad
from bertvision.data.texts import TableConfig
from bertvision.data.windows import WindowConfig
from bertvision.encoder.load import load_tokenizer

CONTEXTS = ["red " * 50 + "blue", "green", "never asked"]
EXAMPLES = [
    Example("1", "which", 0, (Answer("blue", 200),)),
    Example("2", "which one", 0),
    Example("3", "which", 1, (Answer("green", 0),)),
]


def counted(data: SpanData | TextData, config: WindowConfig, **options: Any) -> dict[str, Any]:
    windows = make_windows(data, load_tokenizer("embedded"), config)
    return data_stats(data, windows, apart=config.apart, **options)


def test_counts_of_questions() -> None:
    # Contexts of 51 tokens with 30 and 29 of room: windows at 0, 20 and 40, the answer in the last.
    assert counted(SpanData(CONTEXTS, EXAMPLES, "colours"), WindowConfig(34, 8, 20), limit=512) == {
        "name": "colours", "kind": "span", "examples": 3, "windows": 7, "paragraphs": 2, "pairs": True,
        "tokens": (34 + 34 + 15) + (34 + 34 + 16) + 5, "unlabelled": 0, "positive": None, "scores": {},
        "classes": {
            "with answer": {"examples": 2, "windows": 2}, "without answer": {"examples": 1, "windows": 5},
        },
        "lengths": {"mean": 38.7, "p50": 55, "p90": 56, "p95": 56, "p98": 56, "p99": 56, "max": 56},
        "examples_with_one_window": 1, "suggested_max_seq_length": 56, "fits_in_one_window": 1.0,
    }  # fmt: skip
    wide = SpanData(CONTEXTS, [Example("1", "which", 0, (Answer("red " * 40, 0),))])
    found = counted(wide, WindowConfig(34, 8, 20), limit=50)
    assert (found["unlabelled"], found["suggested_max_seq_length"], found["fits_in_one_window"]) == (1, 50, 0)


def test_lengths_do_not_depend_on_the_cutting(shared_data: Path) -> None:
    tokenizer = load_tokenizer("embedded")
    data = SpanData(CONTEXTS, EXAMPLES)
    for config in (WindowConfig(), WindowConfig(20, 8, 3), WindowConfig(20, 8, 5, "overlap")):
        assert pair_lengths(make_windows(data, tokenizer, config)).tolist() == [55, 56, 5]
    # Every tenth question of the official set, counted by the tokenizer's own pair call.
    data = read_squad(shared_data / "squad" / "dev-v2.0.json")
    data = data.take(range(0, len(data), 10))
    texts = [e.question for e in data.examples], [data.context(e) for e in data.examples]
    theirs = tokenizer(*texts, verbose=False)["input_ids"]
    assert pair_lengths(make_windows(data, tokenizer, WindowConfig())).tolist() == [len(i) for i in theirs]


def test_counts_of_classes() -> None:
    texts = [("red " * 50, 0), ("blue", 2), ("green blue", 2), ("red", None)]
    examples = [TextExample(str(i), text, None, label) for i, (text, label) in enumerate(texts)]
    found = counted(TextData(examples, "label", ("a", "b", "c")), WindowConfig(32, doc_stride=10))
    # 50 tokens with 30 of room: windows at 0, 10 and 20.
    assert [tuple(count.values()) for count in found["classes"].values()] == [(1, 3), (0, 0), (2, 2)]
    assert (found["unlabelled"], found["windows"]) == (1, 6)
    assert found["paragraphs"] is found["positive"] is None
    assert (found["examples_with_one_window"], found["tokens"]) == (3, 3 * 32 + 3 + 4 + 3)
    assert (found["lengths"]["max"], found["suggested_max_seq_length"]) == (52, 56)


@pytest.mark.parametrize("apart", [False, True])
def test_counts_of_scores(apart: bool) -> None:
    examples = [TextExample("a", "red " * 10, "blue", 1.0), TextExample("b", "red", "blue green", 4.0)]
    found = counted(TextData(examples, "score"), WindowConfig(32, apart=apart))
    assert found["scores"] == {"mean": 2.5, "spread": 1.5, "min": 1.0, "max": 4.0}
    assert (found["classes"], found["examples_with_one_window"]) == ({}, 2)
    assert (found["windows"], found["lengths"]["max"]) == ((4, 12) if apart else (2, 14))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    squad, texts, scores, test = (tmp_path / f"set.{i}" for i in ("json", "csv", "jsonl", "tsv"))
    write_squad(SpanData(CONTEXTS, EXAMPLES), squad)
    texts.write_text("text,label\nred,warm\nblue,cold\nblue blue,cold\n")
    scores.write_text('{"body": "red", "stars": 2.5}\n{"body": "blue", "stars": 3.5}\n')
    test.write_text("index\tsentence\n0\tred\n1\tblue\n")

    def shown(file: object, *parts: str, **options: Any) -> dict[str, Any]:
        found, show = verb(Data(file=str(file), **options))
        show()
        out = capsys.readouterr().out
        assert all(part in out for part in parts), out
        return found

    assert shown(squad, "--max-seq-length 56", windows=WindowConfig(34, 8, 20))["windows"] == 7
    assert shown(squad, max_examples=1)["examples"] == 1
    assert shown(texts, "66.7%", "'warm'")["tokens"] == 10
    assert shown(texts, text=TableConfig(prompt="red"))["tokens"] == 5 + 5 + 6
    shown(scores, "2.500", text=TableConfig(text="body", label="stars", task="score"))
    shown(f"glue:SST-2:{test}", "without label")
    assert shown("answerable:demo:dev")["classes"]["answer"]["windows"] == 480
