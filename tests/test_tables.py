"""Tables of a user: every format gives the same data, every mistake has its place; prompts, sets that are joined."""

import csv
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertvision.data.examples import Answer, Example, SpanData, TextData, TextExample, answerable, join_texts
from bertvision.data.load import load_data, load_span_data, open_table
from bertvision.data.texts import Columns, Reframe, reframe
from bertvision.errors import BertvisionError, ConfigError, DataError

CONTEXT = "Nora Lind, and only Nora, built the mill."
FORMS = ("csv", "tsv", "jsonl", "parquet", "saved")
Rows = list[dict[str, Any]]


def write(folder: Path, form: str, rows: Rows, classes: list[str] | None = None) -> Path:
    """The same rows in every format; `classes` declares what the numbers of the column label stand for."""
    path = folder / f"set.{form}"
    if form == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif form == "csv":
        with path.open("w", encoding="utf-8", newline="") as handle:
            table = csv.DictWriter(handle, list(rows[0]))
            table.writeheader()
            table.writerows(rows)
    elif form == "tsv":
        lines = ["\t".join(map(str, row)) + "\n" for row in [list(rows[0]), *(r.values() for r in rows)]]
        path.write_text("".join(lines), encoding="utf-8")
    else:
        datasets = pytest.importorskip("datasets")
        datasets.disable_progress_bars()
        saved = datasets.Dataset.from_list(rows)
        if classes:
            saved = saved.cast_column("label", datasets.ClassLabel(names=classes))
        if form == "saved":
            saved.save_to_disk(str(path))
        else:
            saved.to_parquet(str(path))
    return path


def columns(**values: list[Any]) -> Rows:
    return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]


def load(source: Path | str, **options: Any) -> TextData:
    data = load_data(str(source), **options)
    assert isinstance(data, TextData)
    return data


def found(data: TextData) -> list[tuple[Any, ...]]:
    return [(e.id, e.first, e.second, e.label) for e in data.examples]


def refused(source: Path | str, message: str, **options: Any) -> None:
    with pytest.raises(BertvisionError, match=message) as error:
        load_data(str(source), **options)
    assert "\n" not in str(error.value)


# ---- texts


@pytest.mark.parametrize("form", FORMS)
def test_texts_in_every_format(tmp_path: Path, form: str) -> None:
    content = columns(text=['It "works", fine', "bad", "meh"], label=["good", "bad", "none"])
    data = load(write(tmp_path, form, content))
    first = 2 if form in ("csv", "tsv") else 1
    assert found(data) == [
        (f"row-{first}", 'It "works", fine', None, 1),
        (f"row-{first + 1}", "bad", None, 0),
        (f"row-{first + 2}", "meh", None, 2),
    ]
    assert (data.kind, data.classes, data.metric) == ("label", ("bad", "good", "none"), "accuracy")
    short = load(tmp_path / f"set.{form}", max_examples=2)
    assert (found(short), short.classes) == (found(data)[:2], ("bad", "good"))


@pytest.mark.parametrize("form", FORMS)
def test_columns_by_their_usual_names_and_by_flags(tmp_path: Path, form: str) -> None:
    for first, second in (("sentence1", "sentence2"), ("premise", "hypothesis"), ("question", "sentence")):
        content = columns(**{"idx": [7, 8], "label": [1, 0], second: ["b", "d"], first: ["a", "c"]})
        (folder := tmp_path / first).mkdir()
        assert found(load(write(folder, form, content))) == [("7", "a", "b", 1), ("8", "c", "d", 0)]
    content = columns(body=["a", "b"], text=["x", "y"], title=["t", "u"], stars=[5, 1], key=["k", "l"])
    path = write(tmp_path, form, content)
    data = load(path, columns=Columns(text="body", label="stars", id="key"))
    assert (found(data), data.classes) == ([("k", "a", None, 1), ("l", "b", None, 0)], ("1", "5"))
    data = load(path, columns=Columns(text="title", pair="body", label="stars"), task="score")
    assert [(e.first, e.second, e.label) for e in data.examples] == [("t", "a", 5.0), ("u", "b", 1.0)]
    assert (data.kind, data.metric) == ("score", "pearson")


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("labels", [["x", ""], ["1.5", "2"], ["1", "1"]])
def test_labels_that_are_not_required_are_not_read(tmp_path: Path, form: str, labels: list[str]) -> None:
    """Texts may be predicted on whatever stands beside them, or without anything beside them."""
    path = write(tmp_path, form, columns(text=["a", "b"], label=labels))
    for named in ("", "label", "missing"):
        data = load(path, answers_required=False, columns=Columns(label=named), classes=("x", "y"))
        assert ([e.label for e in data.examples], data.classes) == ([None, None], ("x", "y"))


@pytest.mark.parametrize("form", ["saved", "parquet"])
def test_declared_classes(tmp_path: Path, form: str) -> None:
    content = columns(premise=["a", "b", "c"], hypothesis=["c", "d", "e"], label=[2, 0, -1])
    path = write(tmp_path, form, content, ["x", "y", "z"])
    data = load(path, max_examples=2)
    assert (data.classes, [e.label for e in data.examples]) == (("x", "y", "z"), [2, 0])
    assert [e.label for e in load(path, classes=("z", "x"), max_examples=2).examples] == [0, 1]
    refused(path, r"row 1: the label 'z' is none of the classes x, y", classes=("x", "y"))
    refused(path, "row 3: there is no label")


@pytest.mark.parametrize(
    ("labels", "classes"),
    [([True, False], ("false", "true")), (["10.0", "9.0", "9"], ("9", "10")), ([2, 1.0, -3], ("-3", "1", "2")),
     (["1" * 5000, "2"], ("1" * 5000, "2"))],
)  # fmt: skip
def test_numbers_and_truths_are_names_of_classes(
    tmp_path: Path, labels: list[Any], classes: tuple[str, ...]
) -> None:
    content = columns(text=[f"t{i}" for i in range(len(labels))], label=labels)
    assert load(write(tmp_path, "jsonl", content)).classes == classes
    path = write(tmp_path, "csv", columns(text=["a", "b"], score=["1e-3", "2E1"]))
    assert [e.label for e in load(path, task="score").examples] == [0.001, 20.0]


@pytest.mark.parametrize(
    ("labels", "positive"),
    [("spam ham ham", "spam"), ("ham spam spam", "ham"), ("b a", "b"), ("0 0 1", "1"), ("1 1 0", "1"),
     ("true true false", "true"), ("a b c", "b")],
)  # fmt: skip
def test_f1_is_about_the_rarer_of_two_named_classes(tmp_path: Path, labels: str, positive: str) -> None:
    content = columns(text=list("xyz")[: len(labels.split())], label=labels.split())
    data = load(write(tmp_path, "csv", content))
    assert data.classes[data.positive] == positive
    assert load(tmp_path / "set.csv", classes=data.classes).positive == 1, "the training set decides"


def test_the_label_is_no_text_of_the_input(tmp_path: Path) -> None:
    path = write(tmp_path, "csv", columns(text=["a", "b"], title=["t", "u"], kind=["x", "y"]))
    both = Columns(text="text", label="text"), Columns(label="text"), Columns(pair="kind", label="kind")
    for given in both:
        refused(path, rf"of labels beside its texts: '{given.label}' is both .*--text\.label", columns=given)
    path = write(tmp_path, "csv", columns(category=["a", "b"], sentiment=["x", "y"]))
    assert load(path, columns=Columns(text="category")).classes == ("x", "y")
    refused(path, "has no column of labels", columns=Columns(text="category", pair="sentiment"))
    path.write_text(",,text\n0.5,1,a\n1.5,2,b\n")  # columns without a name are never read
    assert [e.label for e in load(path, answers_required=False).examples] == [None, None]


DEEP = "[" * 100_000 + "]" * 100_000
ONE = '{"text": "a", "label": 1}\n'
MISTAKES: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "only a header": ("csv", "text,label\n", {}, r"set\.csv: there is no text in it"),
    "same column twice": ("csv", "text,label,label\nx,1,2\n", {}, r"set\.csv has 2 columns called 'label'"),
    "no labels": ("csv", "text,b\nx,1\n", {}, r"set\.csv has no column of labels .* --text\.label"),
    "wrong text": ("csv", "text,label\nx,1\n", {"columns": Columns(text="body")}, r"no column 'body' .*--text\.text"),
    "ragged csv": ("csv", "text,label\nx,1\ny\n", {}, r"set\.csv:3 has 1 cells where the header has 2; write those"),
    "ragged jsonl": ("jsonl", ONE + '{"label": 1}\n', {}, r"set\.jsonl:2: there is nothing under 'text'"),
    "rows of several lines": ("csv", 'text,label\n"a\nb",x\n"c\nd",\n', {}, r"set\.csv:4: there is no label"),
    "a list as label": ("jsonl", '{"text": "a", "label": ["x"]}\n', {}, r"jsonl:1: a label must be a text or a number"),
    "NaN as label": ("jsonl", ONE + '{"text": "b", "label": NaN}\n', {}, r"jsonl:2: the label is 'nan', which is no"),
    "empty text": ("csv", "text,label\n  ,1\n", {}, r"set\.csv:2: the text is empty"),
    "a number as text": ("jsonl", '{"text": 5, "label": 1}\n', {}, r"jsonl:1: the text must be a string, not 5"),
    "half a character": ("jsonl", '{"text": "a\\ud83d", "label": 1}\n', {}, r"jsonl:1: the text holds half a char"),
    "same id": ("csv", "id,text,label\n1,a,x\n1,b,y\n", {}, r"set\.csv:3: the id was already used"),
    "scores unasked": ("csv", "text,label\na,1.5\nb,2\n", {}, r"look like scores \(1\.5, 2, .*--text\.task score"),
    "1e-3 unasked": ("csv", "text,label\na,1e-3\nb,2E5\n", {}, r"look like scores \(1e-3, 2E5"),
    "other class": ("csv", "text,label\na,x\nb,z\n", {"classes": ("x", "y")}, r"csv:3: the label 'z' is none of"),
    "huge score": ("jsonl", f'{{"text": "a", "score": 1{"0" * 400}}}\n', {"task": "score"}, r"1: a score must be"),
    "deep json": ("jsonl", ONE + f'{{"text": {DEEP}}}\n', {}, r"set\.jsonl:2 nests lists or objects too deeply"),
    "long number": ("jsonl", ONE + f'{{"label": {"1" * 5000}}}\n', {}, r"jsonl:2 holds a number with thousands of dig"),
    "open quote": ("csv", 'text,label\n"a,1\n', {}, r"set\.csv:2 is not valid CSV"),
    "no parquet": ("parquet", "PAR1 not PAR1", {}, r"set\.parquet is not a whole parquet file"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_every_mistake_is_one_sentence_with_its_line(tmp_path: Path, mistake: str) -> None:
    form, content, options, message = MISTAKES[mistake]
    path = tmp_path / f"set.{form}"
    path.write_text(content, encoding="utf-8")
    refused(path, message, **options)


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl", "parquet", "json"])
def test_files_that_cannot_be_read(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"set.{form}"
    refused(path, rf"set\.{form} does not exist")
    if form not in ("parquet", "json"):
        path.write_bytes(b"text,label\nx\xe9,1\n")
        refused(path, rf"set\.{form}:2 is not UTF-8 text")
    path.unlink(missing_ok=True)
    path.mkdir()
    refused(path, "is a folder but was not written by datasets")


def test_reading_stops_at_the_examples_asked_for(tmp_path: Path) -> None:
    for form in ("csv", "tsv", "jsonl"):
        path = write(
            tmp_path, form, columns(text=[f"t{i}" for i in range(3000)], label=[i % 2 for i in range(3000)])
        )
        with path.open("ab") as file:
            file.write(b"\xff")
        assert len(load(path, max_examples=5)) == 5
        refused(path, r":300\d is not UTF-8")
    refused(path, "at least 1", max_examples=0)


def test_named_columns_of_parquet_alone_are_read(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    frame = pyarrow.table({"text": ["a", "b"], "image": [b"\0" * 9] * 2, "label": np.array([1.0, 0.0])})
    parquet.write_table(frame, tmp_path / "set.parquet")
    table = open_table(str(tmp_path / "set.parquet"))
    assert list(table.columns) == ["text", "image", "label"]
    assert list(table.read(["text"])) == [(1, {"text": "a"}), (2, {"text": "b"})]
    assert found(load(tmp_path / "set.parquet")) == [("row-1", "a", None, 1), ("row-2", "b", None, 0)]
    twice = pyarrow.Table.from_arrays([pyarrow.array(["a"])] * 2, names=["text", "text"])
    parquet.write_table(twice, tmp_path / "set.parquet")
    refused(tmp_path / "set.parquet", "has 2 columns called 'text'")
    parquet.write_table(frame, tmp_path / "set.parquet")
    whole = (tmp_path / "set.parquet").read_bytes()
    (tmp_path / "set.parquet").write_bytes(b"PAR1" + b"\xff" * 60 + whole[64:])
    refused(tmp_path / "set.parquet", r"is not a whole parquet file|cannot be read")


# ---- questions


def row(answers: Any, **more: Any) -> dict[str, Any]:
    return {"question": "Who?", "context": CONTEXT, "answers": answers} | more


ANSWERS = [
    (["Nora"], (Answer("Nora", 0),)),
    (["Nora", "mill"], (Answer("Nora", 0), Answer("mill", 36))),
    ([{"text": "Nora", "answer_start": 20}], (Answer("Nora", 20),)),
    ({"text": ["Nora", "mill"], "answer_start": [20, 36]}, (Answer("Nora", 20), Answer("mill", 36))),
    ({"text": "Nora", "answer_start": 20}, (Answer("Nora", 20),)),
    ({"text": [], "answer_start": []}, ()),
    ("Nora", (Answer("Nora", 0),)),
    ([], ()),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("answers", "meant"), ANSWERS)
def test_every_form_of_answers(tmp_path: Path, form: str, answers: Any, meant: tuple[Answer, ...]) -> None:
    as_cell = form in ("csv", "tsv") and not isinstance(answers, str)
    path = write(tmp_path, form, [row(json.dumps(answers) if as_cell else answers)])
    assert load_span_data(str(path)).examples[0].answers == meant


def test_plain_cells(tmp_path: Path) -> None:
    head = ("id", "context", "question", "answers", "answer_start", "title")
    context = 'He said "[1] or {2}",\nthen [1] again.'
    cells = [("x", context, "Which?", "then", "", ""), ("y", context, "When?", "", "", ""),
             ("z", context, "Which?", "or", "13", "T"), ("t", context, "Which?", "[1]", "", "")]  # fmt: skip
    rows: Rows = [dict(zip(head, row, strict=True)) for row in cells]
    data = load_span_data(str(write(tmp_path, "csv", rows[:3])))
    assert [e.answers for e in data.examples] == [(Answer("then", 22),), (), (Answer("or", 13),)]
    assert (data.paragraphs, [e.title for e in data.examples]) == ([context], ["", "", "T"])
    refused(write(tmp_path, "csv", rows), r"set\.csv:8: an answer needs a text, not 1")
    rows[3]["answers"] = "[1]x"
    refused(write(tmp_path, "csv", rows), r"set\.csv:8: the answer '\[1\]x' is not in the context")
    for start in ("x", "9" * 5000):
        rows[2]["answer_start"] = start
        refused(write(tmp_path, "csv", rows), r"set\.csv:6: answer_start must be")


def test_line_ends_inside_cells_keep_offsets_right(tmp_path: Path) -> None:
    context = "Nora built\r\nthe mill.\rIt stands.\n" + "And long. " * 20_000 + "The mill."
    start = context.rindex("mill")
    path = write(tmp_path, "csv", [row("mill", context=context, answer_start=start)])
    data = load_span_data(str(path))
    assert (data.paragraphs, data.examples[0].answers) == ([context], (Answer("mill", start),))


def test_contexts_are_kept_once_and_ids_are_made(tmp_path: Path) -> None:
    rows = [row([]), row([], context="Other."), row([], id=7), row([], id="own")]
    path = write(tmp_path, "jsonl", rows)
    path.write_text(path.read_text().replace("\n", "\n\n", 1))
    data = load_span_data(str(path))
    assert data.paragraphs == [CONTEXT, "Other."]
    assert [e.paragraph for e in data.examples] == [0, 1, 0, 0]
    assert [e.id for e in data.examples] == ["row-1", "row-3", "7", "own"]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"context": CONTEXT, "question": "Who?"}, "there is no 'answers'"),
        (row(["Norah"]), "'Norah' is not in the context"),
        (row([{"text": "Nora", "answer_start": 1}]), "does not stand at answer_start 1"),
        (row({"text": ["Nora", "mill"], "answer_start": [0]}), "as many values"),
        (row([3]), "an answer needs a text"),
        (row([], id="first"), "already used"),
    ],
)
def test_wrong_questions_name_their_line(tmp_path: Path, second: dict[str, Any], message: str) -> None:
    refused(write(tmp_path, "jsonl", [row([], id="first"), second]), rf"set\.jsonl:2: .*{message}")


def test_what_is_a_question_and_what_is_not(tmp_path: Path, toy_squad: Path) -> None:
    path = write(tmp_path, "jsonl", [row(["Nora"], label="person")])
    assert isinstance(load_data(str(path)), SpanData)
    data = load(path, columns=Columns(text="question", pair="context"), classes=("person", "place"))
    assert [(e.first, e.second, e.label) for e in data.examples] == [("Who?", CONTEXT, 0)]
    assert [e.label for e in load(f"answerable:{path}").examples] == [0]
    assert isinstance(load_data(str(toy_squad)), SpanData)
    refused(toy_squad, r"toy\.json can only hold questions .* answerable:.*toy\.json", task="label")
    refused("demo:dev", "can only hold questions", task="score")
    for source in ("nothing.txt", "set.xml", "squad"):
        refused(source, r"is not a data set bertvision can read; give .*\.jsonl")
    refused("demo:validation", "demo:train", task="span")
    bare = write(tmp_path, "csv", columns(question=["Who?"], context=[CONTEXT]))
    assert len(load_span_data(str(bare), answers_required=False)) == 1
    with pytest.raises(DataError, match=r"set\.csv:2: there is no 'answers'"):
        load_span_data(str(bare))


# ---- the Hub and `datasets`


def test_folders_of_datasets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    answers = [{"text": ["Nora"], "answer_start": [20]}, {"text": [], "answer_start": []}]
    one = write(
        tmp_path, "saved", [row(a, id=f"q{i}", title="Mills", other=i) for i, a in enumerate(answers)]
    )
    data = load_span_data(str(one))
    assert [(e.id, e.title, e.answers) for e in data.examples] == [
        ("q0", "Mills", (Answer("Nora", 20),)), ("q1", "Mills", ()),
    ]  # fmt: skip
    datasets.DatasetDict({"dev": datasets.load_from_disk(str(one))}).save_to_disk(str(tmp_path / "many"))
    assert len(load_span_data(str(tmp_path / "many" / "dev"))) == 2
    refused(tmp_path / "many", "holds several splits")
    next(one.glob("*.arrow")).write_bytes(b"cut")
    refused(one, "save the data set again")


class FakeHub:
    """What `load_dataset` would give, and what it was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, columns: dict[str, list[Any]]) -> None:
        datasets = pytest.importorskip("datasets")
        self.table, self.asked = datasets.Dataset.from_dict(columns), []
        monkeypatch.setattr(datasets, "load_dataset", self)

    def __call__(self, *names: str | None, split: str) -> Any:
        self.asked.append((*names, split))
        return self.table


def test_tasks_of_glue_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = FakeHub(
        monkeypatch, {"premise": ["a", "b"], "hypothesis": ["c", "d"], "label": [2, 0], "idx": [5, 6]}
    )
    data = load("glue:mnli:hub:dev_matched")
    assert hub.asked == [("nyu-mll/glue", "mnli", "validation_matched")]
    assert found(data) == [("5", "a", "c", 2), ("6", "b", "d", 0)]
    assert data.classes == ("entailment", "neutral", "contradiction")
    hub = FakeHub(monkeypatch, {"sentence": ["a", "b"], "label": [-1, 7], "idx": [0, 1]})
    source = "glue:CoLA:hub:test"
    assert [e.label for e in load(source, answers_required=False, max_examples=1).examples] == [None]
    assert hub.asked == [("nyu-mll/glue", "cola", "test")]
    refused(source, r"glue:CoLA:hub:test: row 1: there is no label")
    refused(source, r"row 2: the label 7 is none of 0, 1", answers_required=False)
    FakeHub(monkeypatch, {"sentence1": ["a"], "sentence2": ["b"], "label": [3.25], "idx": [0]})
    assert [e.label for e in load("glue:sts-b:hub:train").examples] == [3.25]
    refused("glue:sst-2:hub:train", "has no column sentence; is it a file of SST-2")


def test_a_table_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = FakeHub(monkeypatch, {"body": ["a", "b"], "kind": ["x", "y"]})
    data = load("hub:somebody/some:test", columns=Columns(text="body", label="kind"))
    assert hub.asked == [("somebody/some", None, "test")]
    assert (data.classes, [e.label for e in data.examples]) == (("x", "y"), [0, 1])
    refused("hub:somebody/some", r"hub:somebody/some:train has no column of texts \(it has 'body', 'kind'\)")
    with pytest.raises(ConfigError, match="name of a data set"):
        load_span_data("hub:")


def test_the_hub_without_network_or_datasets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    refused("hub:nobody/nothing:dev", "hub:nobody/nothing:dev: the Hub cannot be reached")
    for module in ("datasets", "pyarrow"):
        monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "set.parquet").touch()
    for source in ("hub:squad_v2", tmp_path / "set.parquet"):
        refused(source, r"pip install 'bertvision\[data\]'")


# ---- prompts and templates

TWO = [TextExample("a", "Fine.", None, 1), TextExample("b", "Bad {second}.", None, 0)]
SINGLE = TextData(TWO, "label", ("n", "p"), "single")
PAIR = TextData([TextExample("a", "One {label}", "Two {first}", 4.5)], "score", metric="pearson")
QUESTIONS = answerable(SpanData(["It burned."], [Example("a", "Who?", 0)], "questions"))


@pytest.mark.parametrize(
    ("data", "how", "texts"),
    [
        (SINGLE, Reframe("Good or bad?"), [("Good or bad?", "Fine."), ("Good or bad?", "Bad {second}.")]),
        (PAIR, Reframe("Do they say the same?"),
         [("Do they say the same?", "First sentence: One {label} Second sentence: Two {first}")]),
        (PAIR, Reframe(context="{second} / {first} {{}}"), [("Two {first} / One {label} {}", None)]),
        (PAIR, Reframe("Same?", "{second}"), [("Same?", "Two {first}")]),
        (SINGLE.take([0]), Reframe(context="It was said: {first}"), [("It was said: Fine.", None)]),
    ],
)  # fmt: skip
def test_prompts_and_templates(data: TextData, how: Reframe, texts: list[tuple[str, str | None]]) -> None:
    found = reframe(data, how)
    assert [(e.first, e.second) for e in found.examples] == texts
    assert [(e.id, e.label) for e in found.examples] == [(e.id, e.label) for e in data.examples]
    assert replace(found, examples=data.examples) == data
    assert len({found.fingerprint, data.fingerprint, reframe(data, Reframe("Alike?")).fingerprint}) == 3
    assert reframe(data, Reframe()) is data


@pytest.mark.parametrize(
    ("data", "how", "message"),
    [*((SINGLE, {"context": f"{{first}} {field}"}, rf"--text\.context .*{re.escape(field)}.*, and nothing else")
       for field in ("{label}", "{}", "{first.label}", "{first!r}", "{first:>9}", "{first[0]}")),
     (SINGLE, {"context": "{first"}, "has a stray brace"),
     (SINGLE, {"context": "nothing"}, "holds none of the texts"),
     (SINGLE, {"prompt": "Is {first} fine?"}, r"--text\.prompt takes no"),
     (SINGLE, {"context": "{first} {second}"}, r"has single texts: leave \{second\} out"),
     (QUESTIONS, {"prompt": "Is there an answer?"}, "is made of questions")],
)  # fmt: skip
def test_templates_that_cannot_be(data: TextData, how: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        reframe(data, Reframe(**how))


# ---- several sets as one


def named(name: str, *ids: str, second: str | None = None, classes: tuple[str, ...] = ("x", "y")) -> TextData:
    return TextData([TextExample(id, f"{name} {id}", second, 0) for id in ids], "label", classes, name)


def test_ids_used_before_get_the_number_of_their_part() -> None:
    joined = join_texts([named("a", "0", "1"), named("b", "1", "2")])
    found = [(e.id, e.first) for e in joined.examples]
    assert found == [("0", "a 0"), ("1", "a 1"), ("1-1", "b 1"), ("2", "b 2")]
    assert joined.name == "a + b"
    assert join_texts([QUESTIONS]) is QUESTIONS
    rare_y, rare_x = (replace(named("a", "0", "1", "2"), positive=one) for one in (1, 0))
    assert join_texts([rare_y, rare_x]).positive == 1, "all six are x, so y is the rarer one"


def test_what_cannot_be_joined() -> None:
    others = named("b", "0", second="two"), named("b", "0", classes=("x", "z")), QUESTIONS
    for other, message in zip(others, ("different tasks", "different tasks", "one file"), strict=True):
        with pytest.raises(ConfigError, match=message):
            join_texts([named("a", "0"), other])
