"""One way in: a source as the user writes it becomes a `SpanData` or a `TextData`.

A source is a SQuAD file, a named set, the demo set, or anything that opens as a `Table`; the columns of a table
decide whether it holds questions over paragraphs or texts with labels or scores.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from bertvision.data.checks import Flaw, parse_json, shorten
from bertvision.data.demo import demo_data
from bertvision.data.examples import ANSWERABLE, SpanData, TextData, TextKind, answerable
from bertvision.data.named_sets import COLLECTIONS, read_named
from bertvision.data.squad import SpanBuilder, parse_answers, read_squad
from bertvision.data.tables import FORMATS, Table, open_file
from bertvision.data.texts import Columns, TextRow, build_texts, holds_questions
from bertvision.errors import ConfigError, DataError

Task = Literal["auto", "span", "label", "score"]

SOURCES = (
    "a .json file in SQuAD form, .csv, .tsv, .jsonl, .parquet, hub:NAME[:SPLIT], a folder saved by datasets, "
    "demo:train|dev|test, glue:TASK:FILE, glue:TASK:hub:SPLIT, cs224n:sst|sts|quora|cfimdb:FILE or answerable:SOURCE"
)
_USUAL = Columns()


def load_span_data(
    source: str, *, max_examples: int | None = None, answers_required: bool = True
) -> SpanData:
    """Load questions over paragraphs; see `load_data`."""
    data = load_data(source, task="span", max_examples=max_examples, answers_required=answers_required)
    assert isinstance(data, SpanData)
    return data


def load_data(
    source: str,
    *,
    columns: Columns = _USUAL,
    task: Task = "auto",
    classes: tuple[str, ...] | None = None,
    max_examples: int | None = None,
    answers_required: bool = True,
) -> SpanData | TextData:
    """Load questions over paragraphs, or texts with labels or scores.

    Args:
        source: One of `SOURCES`.
        columns: Names of the columns of a table of texts.
        task: auto takes a table with the columns question and context for questions, any other for labels; scores
            must be asked for, except in sets whose task is known.
        classes: Those of the training set: labels get the same numbers, and any other label is refused.
        max_examples: Read only the first so many examples; classes that come later are not known then.
        answers_required: False where the data is only predicted on; labels or answers may then be missing,
            and labels in a table of texts are not read.
    """
    if max_examples is not None and max_examples < 1:
        raise ConfigError(
            f"--max-...-examples must be at least 1, not {max_examples}; leave it out to take all of {source}"
        )
    scheme, _, rest = source.partition(":")
    path = Path(source).expanduser()
    data: SpanData | TextData
    if scheme == "answerable" or scheme in COLLECTIONS:
        if columns.named:
            flags = ", ".join(f"{columns.prefix}.{name}" for name in ("text", "pair", "label"))
            raise ConfigError(f"{scheme}: knows its columns; leave out {flags} and {columns.prefix}.id")
        if scheme == "answerable":
            if classes not in (None, ANSWERABLE):
                raise DataError(
                    f"{source} has the classes {' and '.join(ANSWERABLE)}, not {', '.join(classes)}; "
                    "give data of the task that was trained"
                )
            spans = load_span_data(rest, max_examples=max_examples, answers_required=answers_required)
            data = answerable(spans, answers_required=answers_required)
        else:
            data = read_named(
                scheme, rest, classes=classes, labels_required=answers_required, max_examples=max_examples
            )
        if task not in ("auto", data.kind):
            raise ConfigError(f"{source} is a {data.kind} task, not {task}; leave out --text.task")
        return data
    if scheme == "demo" or (path.suffix.lower() == ".json" and not path.is_dir()):
        if task in ("label", "score"):
            raise ConfigError(
                f"{source} can only hold questions over paragraphs; leave out --text.task {task}, write "
                f"answerable:{source} for answer / no answer, or give a table with columns of texts and labels"
            )
        data = demo_data(rest) if scheme == "demo" else read_squad(path, answers_required=answers_required)
        return data.take(range(len(data))[:max_examples])
    table = open_table(source)
    if task == "span" or (task == "auto" and not columns.named and holds_questions(table.columns)):
        return spans_of_table(table, answers_required=answers_required, max_examples=max_examples)
    return texts_of_table(
        table,
        kind="score" if task == "score" else "label",
        columns=columns,
        classes=classes,
        labels_required=answers_required,
        max_examples=max_examples,
    )


def open_table(source: str) -> Table:
    """The table a source names: a file, hub:NAME[:SPLIT] or a folder saved by `datasets`."""
    if source.startswith("hub:"):
        from bertvision.data.hub import hub_table

        name, _, split = source.removeprefix("hub:").partition(":")
        if not name:
            raise ConfigError(
                "hub: needs the name of a data set, for example hub:rajpurkar/squad_v2:validation"
            )
        return hub_table(name, split or "train")
    path = Path(source).expanduser()
    if path.is_dir():
        from bertvision.data.hub import saved_table

        return saved_table(path)
    if path.suffix.lower() not in FORMATS:
        raise DataError(f"{source!r} is not a data set bertvision can read; give {SOURCES}")
    return open_file(path)


# ---- from rows to examples


def spans_of_table(
    table: Table, *, answers_required: bool = True, max_examples: int | None = None
) -> SpanData:
    """Questions over paragraphs: columns question, context and answers; id and title when there are any.

    Answers take any form of `parse_answers`; in a text cell they are plain text, beside which an answer_start may
    stand, or JSON. Equal contexts become one paragraph.
    """
    usual = ("id", "title", "question", "context", "answers", "answer_start")
    builder = SpanBuilder(table.name)
    rows = table.read([name for name in usual if name in table.columns])
    for number, row in islice(rows, max_examples):
        try:
            for column in ("question", "context", *["answers"] * answers_required):
                if column not in row:
                    hint = "; write [] where there is no answer" if column == "answers" else ""
                    raise Flaw(
                        f"there is no {column!r}; name the columns question, context and answers{hint}"
                    )
            paragraph = builder.shared(row["context"])
            context = builder.paragraphs[paragraph]
            answers = parse_answers(_answers_of_cell(row) if table.cells else row.get("answers"), context)
            given = row.get("id")
            id = f"row-{number}" if given is None or given == "" else given
            title = str(row.get("title") or "")
            id = str(id) if isinstance(id, int) else id
            builder.add(id, row["question"], paragraph, answers, title=title)
        except Flaw as flaw:
            raise DataError(f"{table.place(number)}: {flaw}") from None
    return builder.build()


def _answers_of_cell(row: Any) -> Any:
    """Answers in a cell: JSON, or plain text with or without an answer_start beside it."""
    cell, start = row.get("answers"), row.get("answer_start", "").strip()
    if not cell:
        return cell
    if cell.lstrip()[:1] in ("[", "{"):
        try:
            return parse_json(cell, Path())
        except DataError:
            return cell  # an answer that happens to begin with a bracket
    if not start:
        return cell
    if not start.isdecimal() or len(start) > 18:
        raise Flaw(f"answer_start must be the number of a character, not {shorten(start)}")
    return [{"text": cell, "answer_start": int(start)}]


def texts_of_table(
    table: Table,
    *,
    kind: TextKind = "label",
    columns: Columns = _USUAL,
    classes: tuple[str, ...] | None = None,
    labels_required: bool = True,
    max_examples: int | None = None,
) -> TextData:
    """Texts with labels or scores; the classes are those the table declares, where it does."""
    if not table.columns:
        raise DataError(
            f"{table.name} has no rows; give a file with a line of column names and texts below it"
        )
    found = columns.find(
        table.columns, table.header or table.name, kind=kind, labels_required=labels_required
    )
    declared = table.classes.get(found.label) if kind == "label" else None
    return build_texts(
        islice(_text_rows(table, found, declared=declared is not None), max_examples),
        table.name,
        kind,
        classes=declared if classes is None else classes,
        names=None if declared is None else {str(i): name for i, name in enumerate(declared)},
        labels_required=labels_required,
        positive=1 if classes is not None else None,
    )


def _text_rows(table: Table, columns: Columns, *, declared: bool) -> Iterator[TextRow]:
    names = [name for name in (columns.text, columns.pair, columns.label, columns.id) if name]
    for number, row in table.read(names):
        place = table.place(number)
        for name in (columns.text, columns.pair):
            if name and name not in row:
                raise DataError(f"{place} has no {shorten(name)}, which rows before it have; add it")
        second = row[columns.pair] if columns.pair else None
        if columns.pair and second is None:
            raise DataError(
                f"{place} has nothing under {shorten(columns.pair)}; write the text or remove the row"
            )
        id = row.get(columns.id)
        # A column may have no name, such as the row numbers pandas writes.
        label = row.get(columns.label) if columns.label else None
        yield (
            place,
            f"row-{number}" if id is None or id == "" else id,
            row[columns.text],
            second,
            None if declared and label == -1 else label,
        )
