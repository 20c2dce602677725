"""JSONL and CSV: rows with the line each stands on, and questions made of them.

Columns `question`, `context` and `answers`; `id` and `title` when there are any. Answers take any form of
`parse_answers`; in CSV a cell holds plain text or the same JSON, and an `answer_start` column may stand
beside plain text. Equal contexts become one paragraph. What is wrong is told as FILE:LINE.
"""

import csv
import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bertvision.data.building import Flaw, SpanBuilder, parse_answers, shorten
from bertvision.data.examples import SpanData
from bertvision.data.squad import read_text
from bertvision.errors import DataError

__all__ = [
    "add_row",
    "csv_cells",
    "csv_rows",
    "json_rows",
    "named_rows",
    "plain_cells",
    "read_csv",
    "read_jsonl",
]


def read_jsonl(path: str | Path, *, answers_required: bool = True) -> SpanData:
    """Read one JSON object a line."""
    path = Path(path)
    return _read_rows(path, json_rows(path), answers_required=answers_required)


def read_csv(path: str | Path, *, answers_required: bool = True) -> SpanData:
    """Read a comma-separated file with a header line."""
    path = Path(path)
    rows = ((line, _csv_row(row, f"{path}:{line}")) for line, row in csv_rows(path))
    return _read_rows(path, rows, answers_required=answers_required)


def json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSONL file, each with its line."""
    # Not splitlines: JSON may hold a bare U+2028 inside a string, which would count as a line end there.
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if line.strip():
            yield number, _parse_line(path, number, line)


def csv_rows(path: Path, *, delimiter: str = ",") -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a table with a header line and quoted cells, each with the line it begins on."""
    cells = csv_cells(path, delimiter=delimiter)
    header: list[str] = next(cells, (0, []))[1]
    yield from named_rows(path, [name.strip() for name in header], cells)


def plain_cells(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The cells of a tab-separated file in which quotes are characters like any other, as GLUE's are."""
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if line:
            yield number, line.split("\t")


def csv_cells(path: Path, *, delimiter: str = ",", strict: bool = True) -> Iterator[tuple[int, list[str]]]:
    """The cells of each row with the line it begins on; cells with line ends make a row span several."""
    text = read_text(path)
    rows: list[tuple[int, list[str]]] = []
    # A paragraph may be longer than the 131,072 characters the csv module allows by default. Its limit is one for
    # the whole process, so all rows are read before anybody else can meet it.
    limit = csv.field_size_limit()
    csv.field_size_limit(max(len(text), limit))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=strict)
    line = 1
    try:
        for cells in reader:
            if cells:
                rows.append((line, cells))
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{path}:{line} is not valid CSV ({error}); check its quotes") from None
    finally:
        csv.field_size_limit(limit)
    return iter(rows)


def named_rows(
    path: Path, header: list[str], cells: Iterable[tuple[int, list[str]]], *, quoted: bool = True
) -> Iterator[tuple[int, dict[str, str]]]:
    """Cells by the names of their columns; a row with more or fewer than the header has is refused.

    `quoted` says whether double quotes around a cell mean something, as they do not in `plain_cells`.
    """
    for line, row in cells:
        if len(row) != len(header):
            if len(row) < len(header):
                way_out = "write those it lacks"
            elif quoted:
                way_out = "put cells that hold separators in double quotes, or correct the row"
            else:
                way_out = "write spaces for the tabs in its texts"
            raise DataError(
                f"{path}:{line} has {len(row)} cells where the header has {len(header)}; {way_out}"
            )
        yield line, dict(zip(header, row, strict=True))


def add_row(builder: SpanBuilder, row: dict[str, Any], *, number: int, answers_required: bool) -> None:
    """Add one row of a table; `number` makes the id of a row that brings none."""
    for column in ("question", "context"):
        if column not in row:
            raise Flaw(f"there is no {column!r}; name the columns question, context and answers")
    if "answers" not in row and answers_required:
        raise Flaw("there is no 'answers'; write [] where there is no answer")
    paragraph = builder.shared(row["context"])
    answers = parse_answers(row.get("answers"), builder.paragraphs[paragraph])
    given, title = row.get("id"), row.get("title")
    id = f"row-{number}" if given is None or given == "" else given
    builder.add(
        str(id) if isinstance(id, int) else id, row["question"], paragraph, answers, title=str(title or "")
    )


def _read_rows(path: Path, rows: Iterator[tuple[int, Any]], *, answers_required: bool) -> SpanData:
    builder = SpanBuilder(str(path))
    for line, row in rows:
        try:
            add_row(builder, row, number=line, answers_required=answers_required)
        except Flaw as flaw:
            named = f" (id {row['id']})" if row.get("id") else ""
            raise DataError(f"{path}:{line}{named}: {flaw}") from None
    try:
        return builder.build()
    except Flaw as flaw:
        raise DataError(f"{path}: {flaw}") from None


def _parse_line(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}:{number} is not valid JSON at column {error.colno} ({error.msg}); correct the line"
        ) from None
    if not isinstance(row, dict):
        raise DataError(f"{path}:{number} must be a JSON object, not {shorten(row)}; write one object a line")
    return row


def _csv_row(row: dict[str, Any], place: str) -> dict[str, Any]:
    cell = row.get("answers")
    if not cell:
        return row
    if cell.lstrip()[:1] in ("[", "{"):
        try:
            parsed = json.loads(cell)
        except json.JSONDecodeError:
            parsed = cell  # an answer that happens to begin with a bracket
        return row | {"answers": parsed}
    start = row.get("answer_start", "").strip()
    if not start:
        return row
    if not start.isdecimal():
        raise DataError(f"{place}: answer_start must be the number of a character, not {shorten(start)}")
    return row | {"answers": [{"text": cell, "answer_start": int(start)}]}
