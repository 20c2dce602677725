"""Tables: every source with rows and named columns, read as a stream; what can be wrong with a file or a row.

.csv, .tsv, .jsonl and .parquet files, data sets of the Hub and folders saved by `datasets` all become a `Table`. Rows
are numbered as a message names them: by the line they begin on in text files, from 1 elsewhere.
"""

import csv
import importlib
import json
import os
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from bertvision.errors import ConfigError, DataError

_ENCODING = "utf-8-sig"  # -sig: editors on Windows put a byte-order mark in front, which no parser takes.

# ---- what can be wrong


class Flaw(ValueError):
    """What is wrong with a row; `at` puts its place in front."""


@contextmanager
def at(place: str) -> Iterator[None]:
    try:
        yield
    except Flaw as flaw:
        raise DataError(f"{place}: {flaw}") from None


def shorten(text: object, limit: int = 40) -> str:
    """A value quoted on one line for a message, cut where it is long."""
    try:
        shown = repr(text)
    except (RecursionError, ValueError):  # deeply nested, or a whole number of thousands of digits
        shown = f"a {type(text).__name__}"
    return shown if len(shown) <= limit else shown[: limit - 4] + "..." + shown[-1]


def check_text(text: Any, what: str) -> None:
    """Refuse what is no string with something in it that can be tokenised."""
    if not isinstance(text, str):
        raise Flaw(f"the {what} must be a string, not {shorten(text)}; write it in quotes")
    if not text or text.isspace():
        raise Flaw(f"the {what} is empty; write it or remove the row")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # JSON can spell half of a surrogate pair; no tokenizer takes it
        where = f"half a character at position {error.start}"
        raise Flaw(f"the {what} holds {where}; re-encode it as UTF-8") from None


def check_id(id: Any, used: set[str]) -> str:
    id = str(id) if isinstance(id, int) else id
    if not isinstance(id, str) or not id:
        raise Flaw(f"the id must be a non-empty string, not {shorten(id)}")
    if id in used:
        raise Flaw("the id was already used; give every row its own id")
    used.add(id)
    return id


@contextmanager
def _reading(path: Path, *damaged: type[Exception]) -> Iterator[None]:
    """Turn errors of opening and decoding `path` into a `DataError`."""
    try:
        yield
    except damaged as error:
        problem = f"is not a whole {path.suffix[1:]} file ({first_line(error)}); make it again"
        raise DataError(f"{path} {problem}") from None
    except UnicodeDecodeError:
        text = path.read_bytes().decode(errors="surrogateescape")
        wrong = re.search("[\udc80-\udcff]", text)
        line = text.count("\n", 0, wrong.start()) + 1 if wrong else 1
        raise DataError(f"{path}:{line} is not UTF-8 text; convert the file to UTF-8") from None
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; check the path of the data file") from None
    except OSError as error:
        problem = error.strerror or first_line(error)
        raise DataError(f"{path} cannot be read ({problem}); check its permissions") from None


def first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__


def parse_json(text: str, path: Path, *, line: int | None = None) -> Any:
    """The value of a whole file, or of its `line`."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = line or error.lineno
        problem = f"is not valid JSON at column {error.colno} ({error.msg}); correct it or download it again"
    except RecursionError:
        problem = "nests lists or objects too deeply; flatten them"
    except ValueError:  # Python reads no whole number of more than 4,300 digits.
        problem = "holds a number with thousands of digits; shorten it or put it in quotes"
    raise DataError(f"{path}{'' if line is None else f':{line}'} {problem}")


def read_json(path: Path) -> Any:
    with _reading(path):
        text = path.read_text(encoding=_ENCODING)
    return parse_json(text, path)


# ---- tables

Row = tuple[int, Mapping[str, Any]]  # number of the row, and its values by their columns


@dataclass(frozen=True)
class Table:
    """Rows with named columns, to be read once."""

    name: str
    columns: Sequence[str]  # of JSON lines those of the first row; later rows may lack some
    read: Callable[[Sequence[str]], Iterable[Row]]  # give the rows with at least the columns asked for
    lines: bool = False  # whether a row's number is its line in the file `name`
    cells: bool = False  # whether all values are texts, as in .csv; a cell may then hold JSON
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Column -> the classes its numbers stand for, where the source declares them; -1 is no class."""

    def __post_init__(self) -> None:
        # Columns without a name, such as the row numbers pandas writes, are never read.
        for name, count in Counter(self.columns).items():
            if name and count > 1:
                raise DataError(f"{self.name} has {count} columns called {shorten(name)}; rename all but one")

    def place(self, number: int) -> str:
        return f"{self.name}:{number}" if self.lines else f"{self.name}: row {number}"


def open_table(source: str) -> Table:
    """The table a source names: a file, hub:NAME[:SPLIT] or a folder saved by `datasets`."""
    if source.startswith("hub:"):
        name, _, split = source.removeprefix("hub:").partition(":")
        if not name:
            raise ConfigError("hub: needs the name of a data set, such as hub:rajpurkar/squad_v2:validation")
        return hub_table(f"hub:{name}:{split or 'train'}", name, split or "train")
    path = Path(source).expanduser()
    if path.is_dir():
        return _saved_table(path)
    if path.suffix.lower() not in _FORMATS:
        raise DataError(f"{source!r} is not a data set bertvision can read; give {SOURCES}")
    return _FORMATS[path.suffix.lower()](path)


SOURCES = (
    "a .json file in SQuAD form, .csv, .tsv, .jsonl, .parquet, hub:NAME[:SPLIT], a folder saved by datasets, "
    "demo:train|dev|test, glue:TASK:FILE, glue:TASK:hub:SPLIT, cs224n:sst|sts|quora|cfimdb:FILE or answerable:SOURCE"
)

# ---- text files


def _lines(path: Path, *, newline: str) -> Iterator[str]:
    """The lines of a file with their ends; with `newline` "" also those that a lone carriage return ends."""
    with _reading(path), path.open(encoding=_ENCODING, newline=newline) as file:
        yield from file


def _open_cells(path: Path, *, delimiter: str, quoted: bool) -> Table:
    cells = read_cells(path, delimiter=delimiter, quoted=quoted)
    _, header = next(cells, (1, []))
    names = [name.strip() for name in header]

    def read(_: Sequence[str]) -> Iterator[Row]:
        return ((line, named_row(path, line, names, row)) for line, row in cells)

    return Table(str(path), names, read, lines=True, cells=True)


def _open_jsonl(path: Path) -> Table:
    def read() -> Iterator[Row]:
        # A bare U+2028 may stand inside a JSON string: only \n ends a line.
        for number, line in enumerate(_lines(path, newline="\n"), start=1):
            if line.strip():
                row = parse_json(line, path, line=number)
                if not isinstance(row, dict):
                    raise DataError(f"{path}:{number} must be a JSON object, not {shorten(row)}")
                yield number, row

    rows = read()
    first = list(islice(rows, 1))
    names = [name for _, row in first for name in row]
    return Table(str(path), names, lambda _: chain(first, rows), lines=True)


def read_cells(
    path: Path, *, delimiter: str, quoted: bool, strict: bool = True
) -> Iterator[tuple[int, list[str]]]:
    """The cells of each row that has some, with the line it begins on; `strict` refuses text behind a closing quote.
    Where cells are not `quoted`, as in GLUE's files, double quotes are characters like any other."""
    if not quoted:
        for number, line in enumerate(_lines(path, newline="\n"), start=1):
            if text := line.removesuffix("\n").removesuffix("\r"):
                yield number, text.split(delimiter)
        return
    csv.field_size_limit(2**31 - 1)  # one for the whole process; by default 131,072 characters
    # Line ends inside quoted cells stay as they are, so that answer offsets count them as the author did.
    reader = csv.reader(_lines(path, newline=""), delimiter=delimiter, strict=strict)
    number = 1
    try:
        for cells in reader:
            if cells:
                yield number, cells
            number = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{path}:{number} is not valid CSV ({error}); check its quotes") from None


def named_row(path: Path, line: int, header: Sequence[str], row: Sequence[str]) -> dict[str, str]:
    if len(row) != len(header):
        raise DataError(
            f"{path}:{line} has {len(row)} cells where the header has {len(header)}; write those it lacks, "
            "or put cells that hold a separator in double quotes (.csv) or replace it (.tsv)"
        )
    return dict(zip(header, row, strict=True))


# ---- parquet, and data sets of the package `datasets`


def _needed(package: str, what: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        name = package.partition(".")[0]
        raise ConfigError(f"{what} needs the package {name}: run `pip install 'bertvision[data]'`") from error


def _open_parquet(path: Path) -> Table:
    parquet = _needed("pyarrow.parquet", str(path))
    damaged = _needed("pyarrow", str(path)).ArrowException

    def read(names: Sequence[str]) -> Iterator[Row]:
        with _reading(path, damaged):
            batches = file.iter_batches(batch_size=1000, columns=list(names))
            yield from enumerate(chain.from_iterable(batch.to_pylist() for batch in batches), start=1)

    with _reading(path, damaged):
        file = parquet.ParquetFile(path)
    about = json.loads((file.schema_arrow.metadata or {}).get(b"huggingface", b"{}"))
    classes = _class_labels(about.get("info", {}).get("features"))
    return Table(str(path), file.schema_arrow.names, read, classes=classes)


def _class_labels(features: Mapping[str, Any] | None) -> dict[str, tuple[str, ...]]:
    return {
        column: tuple(feature["names"])
        for column, feature in (features or {}).items()
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names")
    }


def _dataset_table(dataset: Any, source: str) -> Table:
    def read(names: Sequence[str]) -> Iterator[Row]:
        # A thousand rows at a time: row by row is thirty times slower, all at once doubles the memory.
        batches = dataset.select_columns(list(names)).iter(batch_size=1000)
        rows = (
            dict(zip(batch, row, strict=True))
            for batch in batches
            for row in zip(*batch.values(), strict=True)
        )
        return enumerate(rows, start=1)

    return Table(source, dataset.column_names, read, classes=_class_labels(dataset.features.to_dict()))


def _saved_table(folder: Path) -> Table:
    if (folder / "dataset_dict.json").exists():
        raise DataError(f"{folder} holds several splits; name the folder of one of them")
    if not (folder / "dataset_info.json").exists():
        raise DataError(f"{folder} is a folder but was not written by datasets' save_to_disk; name a file")
    try:
        dataset = _needed("datasets", str(folder)).load_from_disk(str(folder))
    except (OSError, ValueError) as error:
        raise DataError(f"{folder} cannot be read ({first_line(error)}); save the data set again") from None
    return _dataset_table(dataset, str(folder))


def hub_table(source: str, name: str, split: str, *, subset: str | None = None) -> Table:
    """One split of a data set by its name on the Hub; messages call it `source`."""
    datasets = _needed("datasets", source)
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError

    # `datasets` reads HF_HUB_OFFLINE when it is imported; afterwards only its constants can be set.
    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    try:
        if hub_unreachable():
            constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
        dataset = datasets.load_dataset(name, subset, split=split)
    except ConnectionError:
        raise DataError(
            f"{source}: the Hub cannot be reached and there is no copy on this machine; "
            "check the network, or give a local file"
        ) from None
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise DataError(f"{source} cannot be loaded ({first_line(error)}); check name and split") from None
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before
    return _dataset_table(dataset, source)


def hub_unreachable() -> bool:
    """Whether the Hub cannot be reached; asking it all the same would cost half a minute of retries."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return True
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return False
    url = urlparse(constants.ENDPOINT)
    try:
        socket.create_connection((url.hostname or "", url.port or 443), timeout=5).close()
    except OSError:
        return True
    return False


_FORMATS: dict[str, Callable[[Path], Table]] = {
    ".csv": partial(_open_cells, delimiter=",", quoted=True),
    ".tsv": partial(_open_cells, delimiter="\t", quoted=False),
    ".jsonl": _open_jsonl,
    ".parquet": _open_parquet,
}
