"""JSONL, CSV and folders of `datasets`: every form of answers, every mistake with its line."""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bertvision.data.examples import Answer
from bertvision.data.hub import read_hub, read_saved
from bertvision.data.load import load_span_data
from bertvision.data.tabular import read_csv, read_jsonl
from bertvision.errors import ConfigError, DataError

CONTEXT = "Nora Lind, and only Nora, built the mill."


def jsonl(folder: Path, *rows: object) -> Path:
    path = folder / "set.jsonl"
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def table(folder: Path, rows: list[list[str]]) -> Path:
    path = folder / "set.csv"
    with path.open("w", encoding="utf-8", newline="") as handle:
        csv.writer(handle).writerows(rows)
    return path


def row(answers: Any, **more: Any) -> dict[str, Any]:
    return {"question": "Who?", "context": CONTEXT, "answers": answers} | more


FORMS = [
    (["Nora"], (Answer("Nora", 0),)),
    (["Nora", "mill"], (Answer("Nora", 0), Answer("mill", 36))),
    ([{"text": "Nora", "answer_start": 20}], (Answer("Nora", 20),)),
    ([{"text": "Nora"}], (Answer("Nora", 0),)),
    ({"text": ["Nora", "mill"], "answer_start": [20, 36]}, (Answer("Nora", 20), Answer("mill", 36))),
    ({"text": ["Nora"]}, (Answer("Nora", 0),)),
    ({"text": "Nora", "answer_start": 20}, (Answer("Nora", 20),)),
    ({"text": [], "answer_start": []}, ()),
    ([], ()),
]


@pytest.mark.parametrize(("answers", "meant"), [*FORMS, ("Nora", (Answer("Nora", 0),)), ("", ()), (None, ())])
def test_every_form_of_answers_in_jsonl(tmp_path: Path, answers: Any, meant: tuple[Answer, ...]) -> None:
    assert read_jsonl(jsonl(tmp_path, row(answers))).examples[0].answers == meant


@pytest.mark.parametrize(("answers", "meant"), FORMS)
def test_every_form_of_answers_in_csv(tmp_path: Path, answers: Any, meant: tuple[Answer, ...]) -> None:
    path = table(tmp_path, [["question", "context", "answers"], ["Who?", CONTEXT, json.dumps(answers)]])
    assert read_csv(path).examples[0].answers == meant


def test_plain_cells_in_csv(tmp_path: Path) -> None:
    head = ["id", "context", "question", "answers", "answer_start", "title"]
    context = 'He said "[1] or {2}",\nthen [1] again.'
    rows = [["x", context, "Which?", "[1]x", "", ""], ["y", context, "When?", "", "", ""]]
    with pytest.raises(DataError, match=r"set\.csv:2 \(id x\): the answer '\[1\]x' is not in the context"):
        read_csv(table(tmp_path, [head, *rows]))
    rows[0][3:5] = "then", ""
    rows.append(["z", context, "Which?", "or", "13", "T"])
    data = read_csv(table(tmp_path, [head, *rows]))
    assert [e.answers for e in data.examples] == [(Answer("then", 22),), (), (Answer("or", 13),)]
    assert data.paragraphs == [context]
    assert [e.title for e in data.examples] == ["", "", "T"]


def test_contexts_are_kept_once_and_ids_are_made(tmp_path: Path) -> None:
    rows = [row([]), row([], context="Other."), row([], id=7), row([], id="own")]
    data = read_jsonl(jsonl(tmp_path, rows[0], "", *rows[1:]))
    assert data.paragraphs == [CONTEXT, "Other."]
    assert [e.paragraph for e in data.examples] == [0, 1, 0, 0]
    assert [e.id for e in data.examples] == ["row-1", "row-3", "7", "own"]


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ('{"question": "Who?"', "is not valid JSON at column"),
        ("[1]", "must be a JSON object"),
        ({"question": "Who?", "answers": []}, "there is no 'context'"),
        ({"context": CONTEXT, "answers": []}, "there is no 'question'"),
        ({"context": CONTEXT, "question": "Who?"}, "there is no 'answers'"),
        (row([], context=" "), "the context is empty"),
        (row([], context=["x"]), "the context must be a string"),
        (row([], question=""), "the question is empty"),
        (row(["Norah"]), "'Norah' is not in the context"),
        (row([{"text": "Nora", "answer_start": 1}]), "does not stand at answer_start 1"),
        (row({"text": ["Nora", "mill"], "answer_start": [0]}), "as many values"),
        (row({"answer_start": [0]}), "must hold a list under 'text'"),
        (row([3]), "an answer needs a text"),
        (row(3), "answers must be a list"),
        (row([], id="first"), "already used"),
        (row([], id=[1]), "the id must be"),
    ],
)
def test_jsonl_mistakes_name_the_line(tmp_path: Path, second: object, said: str) -> None:
    path = jsonl(tmp_path, row([], id="first"), second)
    with pytest.raises(DataError) as error:
        read_jsonl(path)
    assert str(error.value).startswith(f"{path}:2")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_csv_mistakes_name_the_line_the_row_begins_on(tmp_path: Path) -> None:
    head = ["question", "context", "answers"]
    good = ["Who?", "Nora\nbuilt\nit.", "Nora"]
    for bad, said in [(["Who?", CONTEXT, "nobody"], "is not in the context"), (["Who?", CONTEXT], "2 cells")]:
        with pytest.raises(DataError) as error:
            read_csv(table(tmp_path, [head, good, bad]))
        assert f"{tmp_path / 'set.csv'}:5" in str(error.value)
        assert said in str(error.value)
    path = tmp_path / "quotes.csv"
    path.write_text('question,context,answers\nWho?,"Nora built it.,Nora\n')
    with pytest.raises(DataError, match=r"quotes\.csv:2 is not valid CSV"):
        read_csv(path)
    path.write_text("question,context,answers,answer_start\nWho?,Nora built it.,Nora,x\n")
    with pytest.raises(DataError, match=r"quotes\.csv:2: answer_start must be"):
        read_csv(path)


@pytest.mark.parametrize("name", ["set.jsonl", "set.csv"])
def test_no_questions_and_no_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="does not exist"):
        load_span_data(str(tmp_path / name))
    (tmp_path / name).write_text("\n")
    with pytest.raises(DataError, match="there is no question"):
        load_span_data(str(tmp_path / name))


def test_long_contexts_fit_into_csv(tmp_path: Path) -> None:
    limit = csv.field_size_limit()
    context = "word " * 40_000 + "end"
    path = table(tmp_path, [["question", "context", "answers"], ["Which?", context, "end"]])
    assert read_csv(path).examples[0].answers[0].start == 200_000
    assert csv.field_size_limit() == limit


def test_answers_may_be_absent_where_only_predictions_are_wanted(tmp_path: Path) -> None:
    path = jsonl(tmp_path, {"question": "Who?", "context": CONTEXT})
    assert len(load_span_data(str(path), answers_required=False)) == 1


def test_a_saved_folder_of_datasets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    answers = [{"text": ["Nora"], "answer_start": [20]}, {"text": [], "answer_start": []}]
    rows = [row(a, id=f"q{i}", title="Mills", other=i) for i, a in enumerate(answers)]
    saved = datasets.Dataset.from_list(rows)
    saved.save_to_disk(str(tmp_path / "one"))
    data = load_span_data(str(tmp_path / "one"))
    assert [e.answers for e in data.examples] == [(Answer("Nora", 20),), ()]
    assert [(e.id, e.title) for e in data.examples] == [("q0", "Mills"), ("q1", "Mills")]
    assert data.paragraphs == [CONTEXT]

    datasets.DatasetDict({"dev": saved}).save_to_disk(str(tmp_path / "many"))
    assert len(read_saved(tmp_path / "many" / "dev")) == 2
    with pytest.raises(DataError, match="holds several splits"):
        read_saved(tmp_path / "many")
    saved.rename_column("context", "passage").save_to_disk(str(tmp_path / "renamed"))
    with pytest.raises(DataError, match="has no column context"):
        read_saved(tmp_path / "renamed")
    datasets.Dataset.from_list([row(["Nobody"])]).save_to_disk(str(tmp_path / "wrong"))
    with pytest.raises(DataError, match="row 1: the answer 'Nobody' is not in"):
        read_saved(tmp_path / "wrong")
    next((tmp_path / "one").glob("*.arrow")).write_bytes(b"cut")
    with pytest.raises(DataError, match="save the data set again"):
        read_saved(tmp_path / "one")
    with pytest.raises(DataError, match="was not written by datasets"):
        load_span_data(str(tmp_path))


def test_the_hub_without_network_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets")
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match="hub:nobody/nothing:dev: the Hub cannot be reached"):
        load_span_data("hub:nobody/nothing:dev")


def test_the_hub_without_datasets_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"pip install 'bertvision\[data\]'"):
        read_hub("squad_v2")
