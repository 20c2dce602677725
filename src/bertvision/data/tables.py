"""Tables: every source with rows and named columns, read as a stream.

.csv, .tsv, .jsonl and .parquet files, data sets of the Hub and folders saved by `datasets` all become a `Table`. Rows
are numbered as a message names them: by the line they begin on in text files, from 1 elsewhere.
"""

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from bertvision.data.checks import parse_json, read_lines, reading, shorten
from bertvision.errors import ConfigError, DataError

Row = tuple[int, Mapping[str, Any]]
"""Number of the row, and its values by the names of their columns."""


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
    cells: bool = False
    """Whether all values are texts, as in .csv; a cell may then hold JSON."""
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Column -> the classes its numbers stand for, where the source declares them; -1 is no class."""

    def __post_init__(self) -> None:
        # Columns without a name, such as the row numbers pandas writes, are never read.
        for name, count in Counter(self.columns).items():
            if name and count > 1:
                raise DataError(f"{self.name} has {count} columns called {shorten(name)}; rename all but one")

    def place(self, number: int) -> str:
        """How a message names a row."""
        return f"{self.name}:{number}" if self.lines else f"{self.name}: row {number}"


# ---- text files


def _open_cells(path: Path, *, delimiter: str, quoted: bool) -> Table:
    cells = read_cells(path, delimiter=delimiter, quoted=quoted)
    _, header = next(cells, (1, []))
    names = [name.strip() for name in header]
    return Table(str(path), names, lambda _: named_rows(path, names, cells), lines=True, cells=True)


def _open_jsonl(path: Path) -> Table:
    rows = _json_rows(path)
    first = list(islice(rows, 1))
    names = list(first[0][1]) if first else []
    return Table(str(path), names, lambda _: chain(first, rows), lines=True)


def _json_rows(path: Path) -> Iterator[Row]:
    # A bare U+2028 may stand inside a JSON string: only \n ends a line.
    for number, line in enumerate(read_lines(path, newline="\n"), start=1):
        if line.strip():
            row = parse_json(line, path, line=number)
            if not isinstance(row, dict):
                raise DataError(f"{path}:{number} must be a JSON object, not {shorten(row)}")
            yield number, row


def read_cells(
    path: Path, *, delimiter: str, quoted: bool, strict: bool = True
) -> Iterator[tuple[int, list[str]]]:
    """The cells of each row that has some, with the line it begins on.

    Args:
        quoted: Whether double quotes around a cell mean something. In GLUE's files they are characters like any other.
        strict: Refuse text behind the quote that closes a cell.
    """
    if not quoted:
        for number, line in enumerate(read_lines(path, newline="\n"), start=1):
            if text := line.removesuffix("\n").removesuffix("\r"):
                yield number, text.split(delimiter)
        return
    csv.field_size_limit(2**31 - 1)  # one for the whole process; by default 131,072 characters
    # Line ends inside quoted cells stay as they are, so that answer offsets count them as the author did.
    reader = csv.reader(read_lines(path, newline=""), delimiter=delimiter, strict=strict)
    number = 1
    try:
        for cells in reader:
            if cells:
                yield number, cells
            number = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{path}:{number} is not valid CSV ({error}); check its quotes") from None


def named_rows(
    path: Path, header: Sequence[str], cells: Iterable[tuple[int, list[str]]]
) -> Iterator[tuple[int, dict[str, str]]]:
    """Cells by the names of their columns; a row with more or fewer cells than the header is refused."""
    for line, row in cells:
        if len(row) != len(header):
            raise DataError(
                f"{path}:{line} has {len(row)} cells where the header has {len(header)}; write those it lacks, "
                "or put cells that hold a separator in double quotes (.csv) or replace it (.tsv)"
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

    @contextmanager
    def whole() -> Iterator[None]:
        try:
            with reading(path):
                yield
        except pyarrow.ArrowException as error:
            first = str(error).strip().split("\n")[0]
            raise DataError(f"{path} is not a whole parquet file ({first}); make it again") from None

    def read(names: Sequence[str]) -> Iterator[Row]:
        with whole():
            batches = file.iter_batches(batch_size=1000, columns=list(names))
            yield from enumerate(chain.from_iterable(batch.to_pylist() for batch in batches), start=1)

    with whole():
        file = pyarrow.parquet.ParquetFile(path)
    about = json.loads((file.schema_arrow.metadata or {}).get(b"huggingface", b"{}"))
    classes = class_labels(about.get("info", {}).get("features"))
    return Table(str(path), file.schema_arrow.names, read, classes=classes)


def class_labels(features: Mapping[str, Any] | None) -> dict[str, tuple[str, ...]]:
    """Column -> names of its classes, of features as `datasets` writes them."""
    return {
        column: tuple(feature["names"])
        for column, feature in (features or {}).items()
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names")
    }


FORMATS: dict[str, Callable[[Path], Table]] = {
    ".csv": partial(_open_cells, delimiter=",", quoted=True),
    ".tsv": partial(_open_cells, delimiter="\t", quoted=False),
    ".jsonl": _open_jsonl,
    ".parquet": _open_parquet,
}
"""How a file is opened, by its ending."""
