"""Text files and JSON of a user's data: whatever is wrong with them is one sentence that names file and line."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertvision.errors import DataError


class Flaw(ValueError):
    """What is wrong with a row and how to mend it, without its place."""


def shorten(text: object, limit: int = 40) -> str:
    """A value quoted on one line for a message, cut where it is long."""
    try:
        shown = repr(text)
    except (RecursionError, ValueError):  # deeply nested, or a whole number of thousands of digits
        shown = f"a {type(text).__name__}"
    return shown if len(shown) <= limit else shown[: limit - 4] + "..." + shown[-1]


def check_text(text: Any, what: str, way_out: str) -> None:
    """Raise a `Flaw` unless `text` is a string with something in it that can be tokenised."""
    if not isinstance(text, str):
        raise Flaw(f"the {what} must be a string, not {shorten(text)}; {way_out}")
    if not text or text.isspace():
        raise Flaw(f"the {what} is empty; {way_out}")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            # JSON can spell half of a surrogate pair; no tokenizer takes it.
            raise Flaw(
                f"the {what} holds half a character at position {error.start}; re-encode it as UTF-8"
            ) from None


# -sig: editors on Windows put a byte-order mark in front, which no parser takes.
_ENCODING = "utf-8-sig"


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors of opening and decoding `path` into a `DataError`."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; check the path of the data file") from None
    except IsADirectoryError:
        raise DataError(f"{path} is a folder; name a file in it") from None
    except UnicodeDecodeError:
        raise DataError(
            f"{path}:{_undecodable_line(path)} is not UTF-8 text; convert the file to UTF-8"
        ) from None
    except OSError as error:
        problem = error.strerror or str(error).split("\n")[0]
        raise DataError(f"{path} cannot be read ({problem}); check the file and its permissions") from None


def read_text(path: Path) -> str:
    """The whole text of a file."""
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
        cut = error.pos >= len(text.rstrip()) - 1 or "Unterminated" in error.msg
        hint = "the file looks truncated: correct it or download it again" if cut else "correct it"
        raise DataError(
            f"{path}:{line or error.lineno} is not valid JSON at column {error.colno} ({error.msg}); {hint}"
        ) from None
    except RecursionError:
        problem = "nests lists or objects too deeply; flatten them"
    except ValueError:  # Python reads no whole number of more than 4,300 digits.
        problem = "holds a number with thousands of digits; shorten it or put it in quotes"
    raise DataError(f"{path}{'' if line is None else f':{line}'} {problem}")


def _undecodable_line(path: Path) -> int:
    """The line with the first byte that is not UTF-8."""
    content = path.read_bytes()
    try:
        content.decode()
    except UnicodeDecodeError as error:
        return content.count(b"\n", 0, error.start) + 1
    return 1
