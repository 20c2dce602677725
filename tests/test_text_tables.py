"""A user's own tables of texts: columns found and named, kinds of tasks, every mistake with its line."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from bertvision.data.examples import SpanData
from bertvision.data.load import Columns, load_data
from bertvision.data.text_tables import table_rows
from bertvision.data.texts import TextData
from bertvision.errors import ConfigError, DataError


def load(source: Path | str, **options: Any) -> TextData:
    data = load_data(str(source), **options)
    assert isinstance(data, TextData)
    return data


def write(folder: Path, form: str, rows: list[dict[str, Any]]) -> Path:
    """The same rows as .csv, .tsv or .jsonl."""
    path = folder / f"set.{form}"
    with path.open("w", encoding="utf-8", newline="") as handle:
        if form == "jsonl":
            handle.write("".join(json.dumps(row) + "\n" for row in rows))
        elif form == "tsv":
            handle.write(
                "".join(
                    "\t".join(map(str, row)) + "\n" for row in [list(rows[0]), *(r.values() for r in rows)]
                )
            )
        else:
            table = csv.DictWriter(handle, list(rows[0]))
            table.writeheader()
            table.writerows(rows)
    return path


def rows(**columns: list[Any]) -> list[dict[str, Any]]:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


FORMS = ("csv", "tsv", "jsonl")


@pytest.mark.parametrize("form", FORMS)
def test_one_text_a_row(tmp_path: Path, form: str) -> None:
    path = write(tmp_path, form, rows(text=['It "works", fine', "bad", "meh"], label=["good", "bad", "none"]))
    data = load(path)
    assert (data.kind, data.classes, data.metric, data.pairs) == (
        "label",
        ("bad", "good", "none"),
        "accuracy",
        False,
    )
    assert [(e.first, e.label) for e in data.examples] == [('It "works", fine', 1), ("bad", 0), ("meh", 2)]
    first = 1 if form == "jsonl" else 2
    assert [e.id for e in data.examples] == [f"row-{first + i}" for i in range(3)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "names", [("sentence1", "sentence2"), ("question1", "question2"), ("premise", "hypothesis"), ("first", "second"),
              ("question", "sentence"), ("text_a", "text_b")],
)  # fmt: skip
def test_pairs_by_their_usual_names(tmp_path: Path, form: str, names: tuple[str, str]) -> None:
    content = rows(**{"idx": [7, 8], "label": [1, 0], names[1]: ["b", "d"], names[0]: ["a", "c"]})
    data = load(write(tmp_path, form, content))
    assert [(e.id, e.first, e.second, e.label) for e in data.examples] == [
        ("7", "a", "b", 1),
        ("8", "c", "d", 0),
    ]


@pytest.mark.parametrize("form", FORMS)
def test_columns_by_flags(tmp_path: Path, form: str) -> None:
    path = write(
        tmp_path, form, rows(body=["a", "b"], text=["x", "y"], title=["t", "u"], stars=[5, 1], key=["k", "l"])
    )
    data = load(path, columns=Columns(text="body", label="stars", id="key"))
    assert [(e.id, e.first, e.second, e.label) for e in data.examples] == [
        ("k", "a", None, 1),
        ("l", "b", None, 0),
    ]
    assert data.classes == ("1", "5")
    data = load(path, columns=Columns(text="title", pair="body", label="stars"), task="score")
    assert [(e.first, e.second, e.label) for e in data.examples] == [("t", "a", 5.0), ("u", "b", 1.0)]
    assert (data.kind, data.metric) == ("score", "pearson")


def test_questions_over_contexts_are_spans_unless_asked_otherwise(tmp_path: Path) -> None:
    content = [{"question": "Who?", "context": "Nora built it.", "answers": ["Nora"], "label": "person"}]
    path = write(tmp_path, "jsonl", content)
    assert isinstance(load_data(str(path)), SpanData)
    assert isinstance(load_data(str(path), task="span"), SpanData)
    data = load(path, columns=Columns(text="question", pair="context"), classes=("person", "place"))
    assert [(e.first, e.second, e.label) for e in data.examples] == [("Who?", "Nora built it.", 0)]
    assert [e.label for e in load(f"answerable:{path}").examples] == [0]


def test_spans_only_files_say_so(toy_squad: Path) -> None:
    assert isinstance(load_data(str(toy_squad)), SpanData)
    with pytest.raises(ConfigError, match=r"toy\.json can only hold questions .* answerable:.*toy\.json"):
        load_data(str(toy_squad), task="label")
    with pytest.raises(ConfigError, match="can only hold questions"):
        load_data("demo:dev", task="score")
    with pytest.raises(DataError, match="is not a data set bertvision can read"):
        load_data("nothing.txt")


def test_labels_as_numbers_truths_and_floats_are_names(tmp_path: Path) -> None:
    assert load(write(tmp_path, "jsonl", rows(text=["a", "b"], label=[True, False]))).classes == (
        "false",
        "true",
    )
    assert load(write(tmp_path, "csv", rows(text=["a", "b", "c"], label=["10.0", "9.0", "9"]))).classes == (
        "9",
        "10",
    )


def test_classes_of_the_training_set(tmp_path: Path) -> None:
    path = write(tmp_path, "csv", rows(text=["a", "b"], label=["cat", "dog"]))
    data = load(path, classes=("dog", "cow", "cat"))
    assert (data.classes, [e.label for e in data.examples]) == (("dog", "cow", "cat"), [2, 0])
    with pytest.raises(
        DataError, match=r"set\.csv:3: the label 'dog' is none of the classes cat, cow; correct it, or"
    ):
        load_data(str(path), classes=("cat", "cow"))


@pytest.mark.parametrize("form", FORMS)
def test_texts_to_predict_on_need_no_labels(tmp_path: Path, form: str) -> None:
    path = write(tmp_path, form, rows(text=["a", "b"]))
    data = load(path, answers_required=False, classes=("x", "y"))
    assert ([e.label for e in data.examples], data.classes) == ([None, None], ("x", "y"))
    with pytest.raises(
        DataError, match=r"has no column of labels \(it has 'text'\); name it with --text\.label"
    ):
        load_data(str(path))
    named = load(path, answers_required=False, columns=Columns(text="text", label="kind"))
    assert [e.label for e in named.examples] == [None, None]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["label", "score"])
@pytest.mark.parametrize("labels", [["x", ""], ["1.5", "2"], ["1", "1"]])
@pytest.mark.parametrize("named", ["", "label"])
def test_labels_that_are_not_required_are_not_read(
    tmp_path: Path, form: str, kind: str, labels: list[str], named: str
) -> None:
    """Texts may be predicted on whatever stands beside them."""
    path = write(tmp_path, form, rows(text=["a", "b"], label=labels))
    data = load(path, answers_required=False, task=kind, columns=Columns(label=named))
    assert [(e.first, e.label) for e in data.examples] == [("a", None), ("b", None)]
    bare = load(write(tmp_path, form, rows(text=["a", "b"])), answers_required=False, task=kind)
    assert data.fingerprint == bare.fingerprint


def test_a_column_without_a_name_is_no_label(tmp_path: Path) -> None:
    path = write(tmp_path, "csv", rows(**{"": [0.5, 1.5], "id": [1, 2], "text": ["a", "b"]}))
    assert [e.label for e in load(path, answers_required=False).examples] == [None, None]


@pytest.mark.parametrize(
    ("columns", "flag"),
    [
        (Columns(text="text", label="text"), "text"),
        (Columns(label="text"), "text"),
        (Columns(text="title", pair="text", label="text"), "pair"),
        (Columns(pair="kind", label="kind"), "pair"),
    ],
)
def test_the_label_is_no_text_of_the_input(tmp_path: Path, columns: Columns, flag: str) -> None:
    path = write(tmp_path, "csv", rows(text=["a", "b"], title=["t", "u"], kind=["x", "y"]))
    message = rf"set\.csv:1: '{columns.label}' is the column of the label and of a text.* or --text\.{flag}$"
    with pytest.raises(DataError, match=message):
        load_data(str(path), columns=columns)


def test_a_text_column_with_the_usual_name_of_labels_is_not_found_as_one(tmp_path: Path) -> None:
    path = write(tmp_path, "csv", rows(category=["a", "b"], sentiment=["x", "y"]))
    data = load(path, columns=Columns(text="category"))
    assert ([e.first for e in data.examples], data.classes) == (["a", "b"], ("x", "y"))
    with pytest.raises(DataError, match="has no column of labels"):
        load_data(str(path), columns=Columns(text="category", pair="sentiment"))


MISTAKES: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "empty csv": ("csv", "", {}, r"set\.csv has no rows; give a file with a line of column names"),
    "empty tsv": ("tsv", "", {}, r"set\.tsv has no rows"),
    "empty jsonl": ("jsonl", "\n\n", {}, r"set\.jsonl has no rows"),
    "only a header": ("csv", "text,label\n", {}, r"set\.csv has no rows"),
    "no texts": (
        "csv",
        "a,label\nx,1\n",
        {},
        r"set\.csv:1 has no column of texts \(it has 'a', 'label'\); name it with --text\.text",
    ),
    "no labels": ("csv", "text,b\nx,1\n", {}, r"set\.csv:1 has no column of labels .* --text\.label"),
    "wrong text column": (
        "csv",
        "text,label\nx,1\n",
        {"columns": Columns(text="body")},
        r"no column 'body' \(it has 'text', 'label'\); correct --text\.text",
    ),
    "wrong label column": (
        "tsv",
        "text\tlabel\nx\t1\n",
        {"columns": Columns(label="stars")},
        r"set\.tsv:1 has no column 'stars' .* correct --text\.label",
    ),
    "ragged csv": (
        "csv",
        "text,label\nx,1\ny\n",
        {},
        r"set\.csv:3 has 1 cells where the header has 2; write those",
    ),
    "overfull csv": (
        "csv",
        "text,label\nx,y,1\n",
        {},
        r"set\.csv:2 has 3 cells .*; put cells .* in double quotes",
    ),
    "ragged tsv": (
        "tsv",
        "text\tlabel\nx\t1\ny\tz\t1\n",
        {},
        r"set\.tsv:3 has 3 cells where the header has 2; write spaces for the tabs",
    ),
    "ragged jsonl": (
        "jsonl",
        '{"text": "a", "label": 1}\n{"label": 1}\n',
        {},
        r"set\.jsonl:2 has no 'text', which rows before it have",
    ),
    "missing label": (
        "csv",
        "text,label\nx,1\ny,\n",
        {},
        r"set\.csv:3: there is no label; write it or remove the row",
    ),
    "missing label in jsonl": (
        "jsonl",
        '{"text": "a", "label": 1}\n\n{"text": "b"}\n',
        {},
        r"set\.jsonl:3: there is no label",
    ),
    "null label": ("jsonl", '{"text": "a", "label": null}\n', {}, r"set\.jsonl:1: there is no label"),
    "a list as label": (
        "jsonl",
        '{"text": "a", "label": ["x"]}\n',
        {},
        r"set\.jsonl:1: a label must be a text or a number, not \['x'\]",
    ),
    "empty text": (
        "csv",
        "text,label\n  ,1\n",
        {},
        r"set\.csv:2: the text is empty; remove the row or write the text",
    ),
    "a number as text": (
        "jsonl",
        '{"text": 5, "label": 1}\n',
        {},
        r"set\.jsonl:1: the text must be a string, not 5",
    ),
    "half a pair": (
        "jsonl",
        '{"first": "a", "second": null, "label": 1}\n',
        {},
        r"set\.jsonl:1 has nothing under 'second'",
    ),
    "half a character": (
        "jsonl",
        '{"text": "a\\ud83d", "label": 1}\n',
        {},
        r"set\.jsonl:1: the text holds half a character at position 1",
    ),
    "same id": ("csv", "id,text,label\n1,a,x\n1,b,y\n", {}, r"set\.csv:3: the id was already used"),
    "scores unasked": (
        "csv",
        "text,label\na,1.5\nb,2\n",
        {},
        r"set\.csv: the labels look like scores \(1\.5, 2, \.\.\.\); add --text\.task score",
    ),
    "no score": (
        "csv",
        "text,label\na,1.5\nb,high\n",
        {"task": "score"},
        r"set\.csv:3: a score must be a number, not 'high'",
    ),
    "broken json": ("jsonl", '{"text": "a"\n', {}, r"set\.jsonl:1 is not valid JSON"),
    "a list in jsonl": ("jsonl", "[1]\n", {}, r"set\.jsonl:1 must be a JSON object"),
    "open quote": ("csv", 'text,label\n"a,1\n', {}, r"set\.csv:2 is not valid CSV"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_every_mistake_is_one_sentence_with_its_line(tmp_path: Path, mistake: str) -> None:
    form, content, options, message = MISTAKES[mistake]
    path = tmp_path / f"set.{form}"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=message) as told:
        load_data(str(path), **options)
    assert "\n" not in str(told.value)


def test_a_row_of_several_lines_is_told_by_its_first(tmp_path: Path) -> None:
    path = tmp_path / "set.csv"
    path.write_text('text,label\n"a\nb",x\n"c\nd",\n')
    with pytest.raises(DataError, match=r"set\.csv:4: there is no label"):
        load_data(str(path))


def test_a_table_read_in_part_leaves_no_limit_behind(tmp_path: Path) -> None:
    """Cells of other tables, of this process or of its libraries, may be longer than this whole file."""
    path = tmp_path / "set.csv"
    path.write_text("text,label\na,x\n")
    before = csv.field_size_limit()
    begun = table_rows(path)
    next(begun)
    assert csv.field_size_limit() == before
    long = write(tmp_path, "csv", rows(text=["a" * (before + 1), "b"], label=["x", "y"]))
    assert len(load(long).examples[0].first) == before + 1
    assert csv.field_size_limit() == before


def test_columns_of_known_sets_are_not_named() -> None:
    with pytest.raises(ConfigError, match=r"glue: knows its columns; leave out --text\.text"):
        load_data("glue:RTE:x.tsv", columns=Columns(text="a"))


# ---- tables of datasets

datasets = pytest.importorskip("datasets")


def save(folder: Path, columns: dict[str, list[Any]], classes: list[str] | None = None) -> Path:
    table = datasets.Dataset.from_dict(columns)
    if classes:
        table = table.cast_column("label", datasets.ClassLabel(names=classes))
    table.save_to_disk(str(folder))
    return folder


def test_a_saved_table_of_texts(tmp_path: Path) -> None:
    folder = save(
        tmp_path / "a", {"premise": ["a", "b"], "hypothesis": ["c", "d"], "label": [2, 0]}, ["x", "y", "z"]
    )
    data = load(folder)
    assert (data.classes, [(e.first, e.second, e.label) for e in data.examples]) == (
        ("x", "y", "z"),
        [("a", "c", 2), ("b", "d", 0)],
    )
    assert [e.label for e in load(folder, classes=("z", "x")).examples] == [0, 1]
    with pytest.raises(DataError, match=r"row 1: the label 'z' is none of the classes x, y"):
        load_data(str(folder), classes=("x", "y"))


def test_a_saved_table_without_labels_or_with_scores(tmp_path: Path) -> None:
    folder = save(tmp_path / "a", {"text": ["a", "b"], "label": [-1, 1]}, ["x", "y"])
    assert [e.label for e in load(folder, answers_required=False).examples] == [None, None]
    with pytest.raises(DataError, match="row 1: there is no label"):
        load_data(str(folder))
    scores = save(tmp_path / "b", {"text": ["a", "b"], "rating": [2.5, 3.0]})
    assert [e.label for e in load(scores, task="score").examples] == [2.5, 3.0]
    spans = save(tmp_path / "c", {"question": ["Who?"], "context": ["Nora."], "answers": [["Nora"]]})
    assert isinstance(load_data(str(spans)), SpanData)


class FakeHub:
    """What `load_dataset` would give, and what it was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, columns: dict[str, list[Any]]) -> None:
        self.table, self.asked = datasets.Dataset.from_dict(columns), []
        monkeypatch.setattr(datasets, "load_dataset", self)

    def __call__(self, *names: str | None, split: str) -> Any:
        self.asked.append((*names, split))
        return self.table


def test_tasks_of_glue_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"premise": ["a", "b"], "hypothesis": ["c", "d"], "label": [2, 0], "idx": [5, 6]}
    hub = FakeHub(monkeypatch, columns)
    data = load("glue:mnli:hub:dev_matched")
    assert hub.asked == [("nyu-mll/glue", "mnli", "validation_matched")]
    assert [(e.id, e.first, e.second, e.label) for e in data.examples] == [
        ("5", "a", "c", 2),
        ("6", "b", "d", 0),
    ]
    assert data.classes == ("entailment", "neutral", "contradiction")

    hub = FakeHub(monkeypatch, {"sentence": ["a", "b"], "label": [-1, -1], "idx": [0, 1]})
    assert [e.label for e in load("glue:CoLA:hub:test", answers_required=False).examples] == [None, None]
    assert hub.asked == [("nyu-mll/glue", "cola", "test")]
    with pytest.raises(DataError, match=r"glue:CoLA:hub:test: row 1: there is no label"):
        load_data("glue:CoLA:hub:test")

    FakeHub(monkeypatch, {"sentence1": ["a"], "sentence2": ["b"], "label": [3.25], "idx": [0]})
    assert [e.label for e in load("glue:sts-b:hub:train").examples] == [3.25]
    with pytest.raises(DataError, match="has no column sentence; it is not GLUE's SST-2"):
        load_data("glue:sst-2:hub:train")


def test_a_table_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = FakeHub(monkeypatch, {"body": ["a", "b"], "kind": ["x", "y"]})
    data = load("hub:somebody/some:test", columns=Columns(text="body", label="kind"))
    assert hub.asked == [("somebody/some", None, "test")]
    assert (data.classes, [e.label for e in data.examples]) == (("x", "y"), [0, 1])
    with pytest.raises(
        DataError, match=r"hub:somebody/some has no column of texts \(it has 'body', 'kind'\)"
    ):
        load_data("hub:somebody/some")
