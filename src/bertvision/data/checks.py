"""What can be wrong with a user's file or row, as one sentence that says where it stands and what to do."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertvision.errors import DataError

# -sig: editors on Windows put a byte-order mark in front, which no parser takes.
_ENCODING = "utf-8-sig"


class Flaw(ValueError):
    """What is wrong with a row and how to mend it; `at` puts its place in front."""


@contextmanager
def at(place: str) -> Iterator[None]:
    """Say where a row stands that has a flaw."""
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
    """Raise a `Flaw` unless `text` is a string with something in it that can be tokenised."""
    if not isinstance(text, str):
        raise Flaw(f"the {what} must be a string, not {shorten(text)}; write it in quotes")
    if not text or text.isspace():
        raise Flaw(f"the {what} is empty; write it or remove the row")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            # JSON can spell half of a surrogate pair; no tokenizer takes it.
            problem = f"holds half a character at position {error.start}"
            raise Flaw(f"the {what} {problem}; re-encode it as UTF-8") from None


def check_id(id: Any, used: set[str]) -> str:
    """The id as a string; a `Flaw` where it is none or was used before."""
    id = str(id) if isinstance(id, int) else id
    if not isinstance(id, str) or not id:
        raise Flaw(f"the id must be a non-empty string, not {shorten(id)}")
    if id in used:
        raise Flaw("the id was already used; give every row its own id")
    used.add(id)
    return id


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors of opening and decoding `path` into a `DataError`."""
    try:
        yield
    except UnicodeDecodeError:
        text = path.read_bytes().decode(errors="surrogateescape")
        wrong = re.search("[\udc80-\udcff]", text)
        line = text.count("\n", 0, wrong.start()) + 1 if wrong else 1
        raise DataError(f"{path}:{line} is not UTF-8 text; convert the file to UTF-8") from None
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; check the path of the data file") from None
    except OSError as error:
        problem = error.strerror or str(error).split("\n")[0]
        raise DataError(f"{path} cannot be read ({problem}); check the file and its permissions") from None


def read_text(path: Path) -> str:
    with reading(path):
        return path.read_text(encoding=_ENCODING)


def read_lines(path: Path, *, newline: str) -> Iterator[str]:
    """The lines of a file with their ends as they are, read when they are asked for.

    `newline` is that of `open`: "" also ends lines at a lone carriage return, "\\n" does not.
    """
    with reading(path), path.open(encoding=_ENCODING, newline=newline) as file:
        yield from file


def parse_json(text: str, path: Path, *, line: int | None = None) -> Any:
    """The value of a JSON text, a whole file or the `line` of one."""
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
