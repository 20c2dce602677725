"""A user's own table of texts: CSV, TSV, JSONL, the Hub, with named columns.

The columns of the texts, the label and the id are found by the names they usually have, or named by flags. In .tsv
files quotes are characters like any other, as in GLUE's; .csv cells may stand in double quotes. A row without an id
is called by its line.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

from bertvision.data.building import shorten
from bertvision.data.tabular import csv_rows, json_rows, named_rows, plain_cells
from bertvision.data.text_building import TextBuilder, TextRow, collect
from bertvision.data.texts import TextData, TextKind
from bertvision.errors import DataError

__all__ = ["Columns", "holds_questions", "read_text_table", "table_rows", "texts_of_rows"]

_PAIRS = (
    ("sentence1", "sentence2"), ("question1", "question2"), ("premise", "hypothesis"), ("first", "second"),
    ("text1", "text2"), ("text_a", "text_b"), ("text", "pair"), ("text", "text_pair"), ("question", "sentence"),
)  # fmt: skip
_TEXTS = (
    "text",
    "sentence",
    "first",
    "sentence1",
    "question1",
    "premise",
    "text1",
    "text_a",
    "review",
    "content",
)
_LABELS = ("label", "gold_label", "class", "category", "sentiment", "is_duplicate")
_SCORES = ("score", "similarity", "rating")
_IDS = ("id", "index", "idx", "guid")


@dataclass(frozen=True)
class Columns:
    """Names of the columns in a table of texts; where none is given, the usual names are looked for."""

    prefix: ClassVar[str] = "--text"
    """What stands in front of these flags on the command line; messages name them so."""

    text: str = ""
    """Column of the text, or of the first text of a pair."""
    pair: str = ""
    """Column of the second text of a pair."""
    label: str = ""
    """Column of the class or score."""
    id: str = ""
    """Column of the id; without one a row is called by its number."""

    @property
    def named(self) -> bool:
        """Whether any column was named."""
        return any((self.text, self.pair, self.label, self.id))

    def find(self, names: Sequence[str], source: str, *, kind: TextKind, labels_required: bool) -> "Columns":
        """The columns to read among `names`, those of a table; "" where there is none.

        Where labels are not required their column is not read: it may hold anything, as that of another task.
        """
        for flag in ("text", "pair", "label", "id"):
            asked = getattr(self, flag)
            if asked and asked not in names and (flag != "label" or labels_required):
                raise DataError(
                    f"{source} has no column {shorten(asked)} (it has {_list(names)}); correct {self.prefix}.{flag}"
                )
        text, pair = self.text, self.pair
        if not text and not pair:
            text, pair = next((both for both in _PAIRS if both[0] in names and both[1] in names), ("", ""))
        text = text or next((name for name in _TEXTS if name in names and name != pair), "")
        if not text:
            raise DataError(
                f"{source} has no column of texts (it has {_list(names)}); "
                f"name it with {self.prefix}.text, and the other of a pair with {self.prefix}.pair"
            )
        usual = (*_SCORES, *_LABELS) if kind == "score" else (*_LABELS, *_SCORES)
        # The answer must never be in the input.
        label = self.label or next((name for name in usual if name in names and name not in (text, pair)), "")
        if label and label in (text, pair):
            raise DataError(
                f"{source}: {shorten(label)} is the column of the label and of a text, which would hold the answer; "
                f"name another one with {self.prefix}.label or {self.prefix}.{'text' if label == text else 'pair'}"
            )
        if not label and labels_required:
            raise DataError(
                f"{source} has no column of labels (it has {_list(names)}); name it with {self.prefix}.label"
            )
        id = self.id or next((name for name in _IDS if name in names), "")
        return replace(self, text=text, pair=pair, label=label if labels_required else "", id=id)


def _list(names: Sequence[str]) -> str:
    return ", ".join(shorten(name) for name in names) or "none"


def holds_questions(names: Iterable[str]) -> bool:
    """Whether a table with these columns is one of questions over paragraphs."""
    return {"question", "context"} <= set(names)


def table_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a .csv, .tsv or .jsonl file, each with its line."""
    match path.suffix.lower():
        case ".jsonl":
            return json_rows(path)
        case ".tsv":
            cells = plain_cells(path)
            header = [name.strip() for name in next(cells, (0, []))[1]]
            return named_rows(path, header, cells, quoted=False)
    return csv_rows(path)


def read_text_table(
    path: Path,
    *,
    kind: TextKind,
    columns: Columns,
    classes: tuple[str, ...] | None = None,
    labels_required: bool = True,
) -> TextData:
    """Read a file of texts."""
    rows = ((f"{path}:{line}", line, row) for line, row in table_rows(path))
    return texts_of_rows(
        rows,
        str(path),
        kind=kind,
        columns=columns,
        header="" if path.suffix.lower() == ".jsonl" else f"{path}:1",
        classes=classes,
        labels_required=labels_required,
    )


def texts_of_rows(
    rows: Iterator[tuple[str, int, Mapping[str, Any]]],
    source: str,
    *,
    kind: TextKind,
    columns: Columns,
    header: str = "",
    classes: tuple[str, ...] | None = None,
    labels_required: bool = True,
) -> TextData:
    """Texts from rows with their place and number.

    The first row tells which columns there are; `header` is where their names stand, if not in that row.
    """
    first = next(rows, None)
    if first is None:
        raise DataError(f"{source} has no rows; give a file with a line of column names and texts below it")
    found = columns.find(list(first[2]), header or first[0], kind=kind, labels_required=labels_required)
    builder = TextBuilder(source, kind, classes=classes, labels_required=labels_required)
    return collect(builder, _text_rows(chain([first], rows), found))


def _text_rows(rows: Iterable[tuple[str, int, Mapping[str, Any]]], columns: Columns) -> Iterator[TextRow]:
    for place, number, row in rows:
        for name in (columns.text, columns.pair):
            if name and name not in row:
                raise DataError(f"{place} has no {shorten(name)}, which rows before it have; add it")
        id = row.get(columns.id)
        second = row[columns.pair] if columns.pair else None
        if columns.pair and second is None:
            raise DataError(
                f"{place} has nothing under {shorten(columns.pair)}; write the text or remove the row"
            )
        yield (
            place,
            f"row-{number}" if id is None or id == "" else id,
            row[columns.text],
            second,
            # A column may have no name, as the numbers of rows that pandas writes.
            row.get(columns.label) if columns.label else None,
        )
