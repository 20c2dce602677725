"""Tables: every source with rows and named columns, read as a stream.

.csv, .tsv, .jsonl and .parquet files, data sets of the Hub and folders saved by `datasets` all become a `Table`. Rows
are numbered as a message names them: by the line they begin on in text files, from 1 elsewhere. Whatever has columns
and rows, such as a data frame, fits in the same way.
"""

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from bertvision.data.building import shorten
from bertvision.data.files import parse_json, read_lines, reading
from bertvision.errors import ConfigError, DataError

__all__ = ["FORMATS", "Row", "Table", "class_labels", "named_rows", "open_file", "read_cells"]

Row = tuple[int, Mapping[str, Any]]
"""Number of the row, and its values by the names of their columns."""

_BATCH = 1000
"""Rows at a time: row by row is thirty times slower, all at once doubles the memory."""


@dataclass(frozen=True)
class Table:
    """Rows with named columns, to be read once."""

    name: str
    """The source, as messages name it."""
    columns: Sequence[str]
    """Of JSON lines those of the first row; later rows may lack some."""
    read: Callable[[Sequence[str]], Iterable[Row]]
    """Give the rows with at least the columns asked for."""
    lines: bool = False
    """Whether a row's number is its line in the file `name`."""
    header: str = ""
    """Where the names of the columns stand; empty: nowhere in particular."""
    cells: bool = False
    """Whether all values are texts, as in .csv; a cell may then hold JSON."""
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Column -> the classes its numbers stand for, where the source declares them; -1 is no class."""

    def __post_init__(self) -> None:
        counts = Counter(self.columns)
        # Columns without a name, such as the row numbers pandas writes, are never read.
        twice = next((name for name, count in counts.items() if name and count > 1), None)
        if twice is not None:
            raise DataError(
                f"{self.header or self.name} has {counts[twice]} columns called {shorten(twice)}; rename all but one"
            )

    def place(self, number: int) -> str:
        """How a message names a row."""
        return f"{self.name}:{number}" if self.lines else f"{self.name}: row {number}"


def open_file(path: Path) -> Table:
    """The table in a file; its ending, one of `FORMATS`, says how it is written."""
    return FORMATS[path.suffix.lower()](path)


# ---- text files


def _open_csv(path: Path) -> Table:
    return _cell_table(path, read_cells(path, delimiter=",", quoted=True), quoted=True)


def _open_tsv(path: Path) -> Table:
    return _cell_table(path, read_cells(path, delimiter="\t", quoted=False), quoted=False)


def _cell_table(path: Path, cells: Iterator[tuple[int, list[str]]], *, quoted: bool) -> Table:
    line, header = next(cells, (1, []))
    names = [name.strip() for name in header]
    return Table(
        str(path),
        names,
        lambda _: named_rows(path, names, cells, quoted=quoted),
        lines=True,
        header=f"{path}:{line}",
        cells=True,
    )


def _open_jsonl(path: Path) -> Table:
    rows = _json_rows(path)
    first = next(rows, None)
    if first is None:
        return Table(str(path), [], lambda _: rows, lines=True)
    return Table(
        str(path), list(first[1]), lambda _: chain([first], rows), lines=True, header=f"{path}:{first[0]}"
    )


def _json_rows(path: Path) -> Iterator[Row]:
    # A bare U+2028 may stand inside a JSON string: only \n ends a line.
    for number, line in enumerate(read_lines(path, newline="\n"), start=1):
        if line.strip():
            row = parse_json(line, path, line=number)
            if not isinstance(row, dict):
                raise DataError(
                    f"{path}:{number} must be a JSON object, not {shorten(row)}; write one object a line"
                )
            yield number, row


def read_cells(
    path: Path, *, delimiter: str, quoted: bool, strict: bool = True
) -> Iterator[tuple[int, list[str]]]:
    """The cells of each row that has some, with the line it begins on.

    Args:
        quoted: Whether double quotes around a cell mean something. In GLUE's files they are characters like any other.
        strict: Refuse text behind the quote that closes a cell.
    """
    if quoted:
        yield from _csv_cells(path, delimiter, strict)
        return
    for number, line in enumerate(read_lines(path, newline="\n"), start=1):
        if text := line.removesuffix("\n").removesuffix("\r"):
            yield number, text.split(delimiter)


def _csv_cells(path: Path, delimiter: str, strict: bool) -> Iterator[tuple[int, list[str]]]:
    # Line ends inside quoted cells stay as they are, so that answer offsets count them as the author did.
    reader = csv.reader(read_lines(path, newline=""), delimiter=delimiter, strict=strict)
    line, more = 1, True
    while more:
        rows: list[tuple[int, list[str]]] = []
        try:
            with _long_cells():
                for cells in islice(reader, _BATCH):
                    rows.append((line, cells))
                    line = reader.line_num + 1
        except csv.Error as error:
            raise DataError(f"{path}:{line} is not valid CSV ({error}); check its quotes") from None
        yield from ((number, cells) for number, cells in rows if cells)
        more = bool(rows)


@contextmanager
def _long_cells() -> Iterator[None]:
    """Allow cells beyond the csv module's default of 131,072 characters; its limit is one for the whole process."""
    limit = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def named_rows(
    path: Path, header: Sequence[str], cells: Iterable[tuple[int, list[str]]], *, quoted: bool
) -> Iterator[Row]:
    """Cells by the names of their columns; a row with more or fewer cells than the header is refused."""
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


# ---- parquet


def _open_parquet(path: Path) -> Table:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(
            f"{path} needs the package `pyarrow`: run `pip install 'bertvision[data]'`"
        ) from error
    with reading(path), _whole(path, pyarrow.ArrowException):
        file = pyarrow.parquet.ParquetFile(path)

    def read(names: Sequence[str]) -> Iterator[Row]:
        number = 0
        with reading(path), _whole(path, pyarrow.ArrowException):
            for batch in file.iter_batches(batch_size=_BATCH, columns=list(names)):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row

    about = json.loads((file.schema_arrow.metadata or {}).get(b"huggingface", b"{}"))
    return Table(
        str(path), file.schema_arrow.names, read, classes=class_labels(about.get("info", {}).get("features"))
    )


@contextmanager
def _whole(path: Path, error: type[Exception]) -> Iterator[None]:
    try:
        yield
    except error as problem:
        first = str(problem).strip().split("\n")[0]
        raise DataError(f"{path} is not a whole parquet file ({first}); write or download it again") from None


def class_labels(features: Mapping[str, Any] | None) -> dict[str, tuple[str, ...]]:
    """Column -> names of its classes, of features as `datasets` writes them."""
    return {
        column: tuple(feature["names"])
        for column, feature in (features or {}).items()
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names")
    }


FORMATS: dict[str, Callable[[Path], Table]] = {
    ".csv": _open_csv, ".tsv": _open_tsv, ".jsonl": _open_jsonl, ".parquet": _open_parquet,
}  # fmt: skip
