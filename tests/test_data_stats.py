"""`bertvision data`: its counts against a count by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertvision.cli.data import DataArgs, main
from bertvision.data.examples import Answer, Example, SpanData
from bertvision.data.squad import read_squad, write_squad
from bertvision.data.stats import data_stats, pair_lengths, suggest_max_length
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
