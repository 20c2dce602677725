"""`predict --data -`: JSON lines in, a JSON line out for each, in the same order and as they come.

    {"id"?: ..., "question": "Who?", "context": "..."}         or {"text": "...", "pair"?: "..."}
    {"id"?: ..., "line": 1, "tasks": {NAME: {...}}}            or {"line": 1, "error": "..."}

A thread reads; whatever has come while the last answers were computed is answered next, together and at most
`MOST_LINES` at once: one line alone does not wait, many lines share encoder calls of similar length. Answers are
flushed with every such batch. A line that cannot be answered is told with its number and its reason, and the stream
goes on; at its end they make the exit code 2. What the log says of a batch (texts that are cut) it says once for the
whole stream. Empty lines are skipped. At most a few batches of lines wait in memory:
whoever writes faster than answers are computed is kept waiting.
"""

import json
import logging
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, Queue
from typing import IO, Any

from bertvision.console import emit
from bertvision.data.building import shorten
from bertvision.errors import BertvisionError, DataError
from bertvision.model.model import Model
from bertvision.tasks.predictions import to_json

__all__ = ["MOST_LINES", "answer_stream"]

MOST_LINES = 64
"""Of one batch."""

_KNOWN = {"id", "question", "context", "text", "pair"}


@dataclass(frozen=True)
class _Line:
    number: int
    """Counted from 1, empty ones too."""
    key: Any
    """The line's own id; None = it has none."""
    first: str = ""
    second: str | None = None
    error: str = ""
    """Why it cannot be answered."""


def answer_stream(
    model: Model, *, tasks: Sequence[str] = (), n_best: int = 0, source: IO[bytes] | None = None
) -> None:
    """Answer every line of `source` (by default the standard input) until it ends; then raise if any was broken."""
    wrong = total = 0
    # Not sys.stdin: a thread that still waits in it when the process ends would hold a lock that Python wants then.
    lines = open(0, "rb", closefd=False) if source is None else source  # noqa: SIM115
    with _said_once():
        for batch in _batches(lines):
            found = _answered(model, [_read(number, text) for number, text in batch], tasks, n_best)
            for line, told in found:
                total += 1
                wrong += "error" in told
                named = {} if line.key is None else {"id": line.key}
                emit(json.dumps(named | {"line": line.number} | told, ensure_ascii=False))
    if wrong:
        raise DataError(f"{wrong} of {total} lines of the stream could not be answered: each says why")


@contextmanager
def _said_once() -> Iterator[None]:
    """Of every kind of line in the log the first alone: batches are many, and what is true of one is true of others."""
    said: set[object] = set()

    def new(record: logging.LogRecord) -> bool:
        known = record.msg in said  # before its numbers are put in
        said.add(record.msg)
        return not known

    handlers = list(logging.getLogger("bertvision").handlers)
    for handler in handlers:
        handler.addFilter(new)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(new)


def _batches(source: IO[bytes]) -> Iterator[list[tuple[int, bytes]]]:
    """Lines with their numbers, as many at a time as have come."""
    lines: Queue[tuple[int, bytes] | None] = Queue(maxsize=4 * MOST_LINES)

    def read() -> None:
        for number, text in enumerate(iter(source.readline, b""), 1):
            if text.strip():
                lines.put((number, text))
        lines.put(None)

    threading.Thread(target=read, name="stream", daemon=True).start()
    while (first := lines.get()) is not None:
        batch, ended = [first], False
        while len(batch) < MOST_LINES and not ended:
            try:
                more = lines.get_nowait()
            except Empty:
                break
            ended = more is None
            if more is not None:
                batch.append(more)
        yield batch
        if ended:
            return


def _read(number: int, raw: bytes) -> _Line:
    """A line's texts, or what is wrong with it."""
    try:
        value = json.loads(raw.decode("utf-8"), parse_constant=_no_number)
    except UnicodeDecodeError:
        return _Line(number, None, error="the line is not UTF-8")
    except (json.JSONDecodeError, RecursionError, _NoNumberError) as error:
        return _Line(number, None, error=f"the line is not JSON ({error})")
    except ValueError:  # of Python's limit to the digits of an integer
        return _Line(number, None, error="the line holds a number of too many digits")
    if not isinstance(value, dict):
        return _Line(number, None, error="the line is no JSON object")
    key = value.get("id")
    if not _can_be_told(key):
        return _Line(number, None, error="the id cannot be told again: give a plain text or number")
    if unknown := sorted(set(value) - _KNOWN):
        return _Line(
            number, key, error=f"{shorten(unknown[0])} is no key of a line: {', '.join(sorted(_KNOWN))}"
        )
    asks = "question" in value or "context" in value
    if asks == ("text" in value) or (asks and not {"question", "context"} <= value.keys()):
        return _Line(number, key, error="give question and context, or text, for pairs with pair")
    if asks and "pair" in value:
        return _Line(number, key, error="pair goes with text")
    names = ("question", "context") if asks else ("text", "pair")
    texts = [value.get(name) for name in names]
    for name, text in zip(names, texts, strict=True):
        if not isinstance(text, str) and not (name == "pair" and text is None):
            return _Line(number, key, error=f"{name} must be a string")
    return _Line(number, key, value[names[0]], value.get(names[1]))


class _NoNumberError(ValueError):
    """Python reads it as a number, and JSON has none such."""


def _no_number(word: str) -> None:
    raise _NoNumberError(f"{word} is no number there")


def _can_be_told(key: Any) -> bool:
    """Whether an id can stand in the answer: half a character, or a number beyond all floats, cannot."""
    try:
        json.dumps(key, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (ValueError, RecursionError):
        return False
    return True


def _answered(
    model: Model, lines: Sequence[_Line], tasks: Sequence[str], n_best: int
) -> list[tuple[_Line, dict[str, Any]]]:
    """What each line gets; single texts and pairs are predicted in one call each."""
    told: dict[int, dict[str, Any]] = {line.number: {"error": line.error} for line in lines if line.error}
    for pairs in (False, True):
        own = [line for line in lines if not line.error and (line.second is not None) == pairs]
        if own:
            told |= _predicted(model, own, tasks, n_best)
    return [(line, told[line.number]) for line in lines]


def _predicted(
    model: Model, lines: Sequence[_Line], tasks: Sequence[str], n_best: int
) -> dict[int, dict[str, Any]]:
    firsts = [line.first for line in lines]
    seconds = [line.second for line in lines if line.second is not None] or None
    try:
        rows = model(firsts, seconds, tasks=tasks or None, n_best=n_best)
    except BertvisionError as error:
        if len(lines) == 1:
            return {lines[0].number: {"error": re.sub(r"^(text|question) 1: ", "", str(error))}}
        # One of them spoils it for the others: each alone, so that only that one is told.
        return {n: t for line in lines for n, t in _predicted(model, [line], tasks, n_best).items()}
    return {
        line.number: {"tasks": {name: to_json(one) for name, one in row.items()}}
        for line, row in zip(lines, rows, strict=True)
    }
