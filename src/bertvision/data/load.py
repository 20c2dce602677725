"""One way in: a source as the user writes it becomes a `SpanData` or a `TextData`.

`load_span_data` reads questions over paragraphs; `load_data` those and texts with labels or scores.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bertvision.data.examples import SpanData
from bertvision.data.text_tables import Columns, holds_questions, read_text_table, table_rows
from bertvision.data.texts import TextData, TextKind
from bertvision.errors import ConfigError, DataError

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["SOURCES", "TEXT_SOURCES", "Columns", "Task", "load_data", "load_span_data"]

Task = Literal["auto", "span", "label", "score"]

SOURCES = (
    "a .json file in SQuAD form, .jsonl, .csv, hub:NAME[:SPLIT], demo:train|dev|test "
    "or a folder saved by datasets"
)
TEXT_SOURCES = (
    "glue:TASK:FILE, glue:TASK:hub:SPLIT, cs224n:sst|sts|quora|cfimdb:FILE, answerable:SOURCE, .csv, .tsv, .jsonl or "
    "hub:NAME[:SPLIT] with columns of texts and labels"
)
_USUAL = Columns()


def load_span_data(
    source: str, *, max_examples: int | None = None, answers_required: bool = True
) -> SpanData:
    """Load questions over paragraphs.

    Args:
        source: A path ending in .json (SQuAD v1.1 or v2.0), .jsonl or .csv; a folder written by `datasets`;
            hub:NAME[:SPLIT]; or demo:train, demo:dev, demo:test, the embedded set.
        max_examples: Take only the first so many questions.
        answers_required: False where the data is only predicted on; a file may then leave out its answers.
    """
    _check_count(max_examples, source)
    data = _load(source, answers_required=answers_required)
    if max_examples is not None and max_examples < len(data):
        data = data.take(range(max_examples))
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
        source: What `load_span_data` takes; glue:TASK:FILE, glue:TASK:hub:SPLIT, cs224n:SET:FILE;
            answerable:SOURCE, the questions of any source as answer / no answer; or a table of texts: .csv, .tsv,
            .jsonl, hub:NAME[:SPLIT], a saved folder.
        columns: Names of the columns of a table of texts.
        task: auto takes a table with the columns question and context for questions, any other for labels; scores
            must be asked for, except in sets whose task is known.
        classes: Those of the training set: labels get the same numbers, and any other label is refused.
        max_examples: Take only the first so many examples.
        answers_required: False where the data is only predicted on; labels or answers may then be missing,
            and labels in a table of texts are not read.
    """
    _check_count(max_examples, source)
    data = _load_any(source, columns, task, classes=classes, answers_required=answers_required)
    if max_examples is not None and max_examples < len(data):
        data = data.take(range(max_examples))
    return data


def _check_count(max_examples: int | None, source: str) -> None:
    if max_examples is not None and max_examples < 1:
        raise ConfigError(
            f"--max-...-examples must be at least 1, not {max_examples}; leave it out to take all of {source}"
        )


def _load_any(
    source: str, columns: Columns, task: Task, *, classes: tuple[str, ...] | None, answers_required: bool
) -> SpanData | TextData:
    scheme, _, rest = source.partition(":")
    if scheme in ("glue", "cs224n", "answerable"):
        if columns.named:
            flags = [f"{columns.prefix}.{name}" for name in ("text", "pair", "label", "id")]
            raise ConfigError(
                f"{scheme}: knows its columns; leave out {', '.join(flags[:-1])} and {flags[-1]}"
            )
        data = _load_known(scheme, rest, classes=classes, answers_required=answers_required)
        if task not in ("auto", data.kind):
            raise ConfigError(f"{source} is a {data.kind} task, not {task}; leave out --text.task")
        return data
    path = Path(source).expanduser()
    table = None
    if scheme == "hub" or path.is_dir():
        table = _table(source, path)
        names: list[str] = table.column_names
    elif path.suffix.lower() in (".csv", ".tsv", ".jsonl") and scheme != "demo":
        names = list(next(table_rows(path), (0, {}))[1])
    else:
        if task in ("label", "score"):
            raise ConfigError(
                f"{source} can only hold questions over paragraphs; leave out --text.task {task}, write "
                f"answerable:{source} for answer / no answer, or give {TEXT_SOURCES}"
            )
        return _load(source, answers_required=answers_required)
    if task == "span" or (task == "auto" and not columns.named and holds_questions(names)):
        if table is not None:
            from bertvision.data.hub import spans_of_table

            return spans_of_table(table, source, answers_required=answers_required)
        return _load(source, answers_required=answers_required)
    kind: TextKind = "score" if task == "score" else "label"
    if table is not None:
        from bertvision.data.hub import texts_of_table

        return texts_of_table(
            table, source, kind=kind, columns=columns, classes=classes, labels_required=answers_required
        )
    return read_text_table(
        path, kind=kind, columns=columns, classes=classes, labels_required=answers_required
    )


def _load_known(
    scheme: str, rest: str, *, classes: tuple[str, ...] | None, answers_required: bool
) -> TextData:
    """A set whose task is known by its name."""
    if scheme == "answerable":
        from bertvision.data.answerable import ANSWERABLE, answerable

        if classes not in (None, ANSWERABLE):
            raise DataError(
                f"answerable:{rest} has the classes {' and '.join(ANSWERABLE)}, not {', '.join(classes)}; "
                "give data of the task that was trained"
            )
        return answerable(
            load_span_data(rest, answers_required=answers_required), answers_required=answers_required
        )
    name, _, where = rest.partition(":")
    if scheme == "cs224n":
        from bertvision.data.cs224n import read_cs224n

        return read_cs224n(name, where, classes=classes, labels_required=answers_required)
    from bertvision.data.glue import read_glue
    from bertvision.data.glue_tasks import glue_task

    return read_glue(glue_task(name), where, classes=classes, labels_required=answers_required)


def _table(source: str, path: Path) -> "Dataset":
    """A table of `datasets`: from the Hub, or saved in a folder."""
    from bertvision.data.hub import hub_table, saved_table

    if not source.startswith("hub:"):
        return saved_table(path)
    name, split = _hub_name(source)
    return hub_table(name, split=split)


def _hub_name(source: str) -> tuple[str, str]:
    name, _, split = source.removeprefix("hub:").partition(":")
    if not name:
        raise ConfigError("hub: needs the name of a data set, for example hub:rajpurkar/squad_v2:validation")
    return name, split or "train"


def _load(source: str, *, answers_required: bool) -> SpanData:
    if source.startswith("demo:"):
        from bertvision.data.demo import demo_data

        return demo_data(source.removeprefix("demo:"))
    if source.startswith("hub:"):
        from bertvision.data.hub import read_hub

        name, split = _hub_name(source)
        return read_hub(name, split=split, answers_required=answers_required)
    path = Path(source).expanduser()
    if path.is_dir():
        from bertvision.data.hub import read_saved

        return read_saved(path, answers_required=answers_required)
    match path.suffix.lower():
        case ".json":
            from bertvision.data.squad import read_squad

            return read_squad(path, answers_required=answers_required)
        case ".jsonl":
            from bertvision.data.tabular import read_jsonl

            return read_jsonl(path, answers_required=answers_required)
        case ".csv":
            from bertvision.data.tabular import read_csv

            return read_csv(path, answers_required=answers_required)
    raise DataError(f"{source!r} is not a data set bertvision can read; give {SOURCES}")
