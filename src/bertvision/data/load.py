"""One way in: a source as the user writes it becomes a `SpanData` or a `TextData`.

A source is a SQuAD file, a named set, the demo set, or anything that opens as a `Table`; the columns of a table
decide whether it holds questions over paragraphs or texts with labels or scores.
"""

from pathlib import Path
from typing import Literal

from bertvision.data.demo import demo_data
from bertvision.data.examples import ANSWERABLE, SpanData, TextData, answerable
from bertvision.data.named_sets import COLLECTIONS, read_named
from bertvision.data.spans import read_squad, spans_of_table
from bertvision.data.tables import open_table
from bertvision.data.texts import Columns, read_texts
from bertvision.errors import ConfigError, DataError


def load_span_data(
    source: str, *, max_examples: int | None = None, answers_required: bool = True
) -> SpanData:
    data = load_data(source, task="span", max_examples=max_examples, answers_required=answers_required)
    assert isinstance(data, SpanData)
    return data


def load_data(
    source: str,
    *,
    columns: Columns = Columns(),  # noqa: B008 (frozen)
    task: Literal["auto", "span", "label", "score"] = "auto",
    classes: tuple[str, ...] | None = None,
    max_examples: int | None = None,
    answers_required: bool = True,
) -> SpanData | TextData:
    """Load questions over paragraphs, or texts with labels or scores, from one of `tables.SOURCES`.

    Args:
        task: auto takes a table with the columns question and context for questions, any other for labels; scores
            must be asked for, except in sets whose task is known.
        classes: Those of the training set: labels get the same numbers, and any other label is refused.
        max_examples: Read only the first so many examples; classes that come later are not known then.
        answers_required: False where the data is only predicted on; labels or answers may then be missing,
            and labels in a table of texts are not read.
    """
    if max_examples is not None and max_examples < 1:
        raise ConfigError(f"--max-...-examples must be at least 1, not {max_examples}; leave it out for all")
    scheme, _, rest = source.partition(":")
    path = Path(source).expanduser()
    if scheme == "answerable" or scheme in COLLECTIONS:
        if columns.named:
            raise ConfigError(f"{scheme}: knows its columns; leave out {columns.prefix}.text and the like")
        if scheme == "answerable":
            if classes not in (None, ANSWERABLE):
                ours, theirs = " and ".join(ANSWERABLE), ", ".join(classes)
                raise DataError(f"{source} has the classes {ours}, not {theirs}; give data of that task")
            spans = load_span_data(rest, max_examples=max_examples, answers_required=answers_required)
            data = answerable(spans, answers_required=answers_required)
        else:
            data = read_named(
                scheme, rest, classes, labels_required=answers_required, max_examples=max_examples
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
    questions = task == "auto" and not columns.named and {"question", "context"} <= {*table.columns}
    if task == "span" or questions:
        return spans_of_table(table, answers_required=answers_required, max_examples=max_examples)
    kind = "score" if task == "score" else "label"
    if not table.columns:
        raise DataError(f"{table.name} has no rows; give a file with column names and texts below them")
    found = columns.find(table, kind=kind, labels_required=answers_required)
    declared = table.classes.get(found.label) if kind == "label" else None
    return read_texts(
        table,
        found,
        kind,
        classes=declared if classes is None else classes,
        names=None if declared is None else {str(i): name for i, name in enumerate(declared)},
        labels_required=answers_required,
        max_examples=max_examples,
        positive=None if classes is None else 1,
    )
