"""`predict --data -`: JSON lines in, a JSON line out for each, in the same order and as they come.

    {"id"?: ..., "question": "Who?", "context": "..."}         or {"text": "...", "pair"?: "..."}
    {"id"?: ..., "line": 1, "tasks": {NAME: {...}}}            or {"line": 1, "error": "..."}

A thread reads; whatever has come while the last answers were computed is answered next, together and at most
`MOST_LINES` at once: one line alone does not wait, many lines share encoder calls of similar length. Answers are
flushed with every such batch. A line that cannot be answered gets its number and the reason, and the stream goes on; at
its end the exit code is 2. What the log says of a batch (texts that are cut) it says once for the whole stream. Empty
lines are skipped. At most a few batches of lines wait in memory: whoever writes faster than answers are computed waits.
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
from bertvision.data.checks import shorten
from bertvision.errors import BertvisionError, DataError
from bertvision.model.model import Model
from bertvision.tasks.predictions import to_json

MOST_LINES = 64
"""Of one batch."""

_KNOWN = {"id", "question", "context", "text", "pair"}


@dataclass
class _Line:
    number: int
    """Counted from 1, empty ones too."""
    key: Any = None
    """The line's own id, if it has one."""
    first: str = ""
    second: str | None = None
    error: str = ""
    """Why it cannot be answered."""


class _BrokenLineError(ValueError):
    """Why a line cannot be answered."""


def answer_stream(
    model: Model, *, tasks: Sequence[str] = (), n_best: int = 0, source: IO[bytes] | None = None
) -> None:
    """Answer every line of `source` (by default the standard input) until it ends; then raise if any was broken."""
    wrong = total = 0
    # Not sys.stdin: a thread that still waits in it when the process ends would hold a lock that Python wants then.
    lines = open(0, "rb", closefd=False) if source is None else source  # noqa: SIM115
    with _logged_once():
        for batch in _batches(lines):
            read = [_read(number, text) for number, text in batch]
            results = _answered(model, read, tasks, n_best)
            for line in read:
                result = results[line.number]
                total += 1
                wrong += "error" in result
                named = {} if line.key is None else {"id": line.key}
                emit(json.dumps(named | {"line": line.number} | result, ensure_ascii=False))
    if wrong:
        raise DataError(f"{wrong} of {total} lines of the stream could not be answered: each says why")


@contextmanager
def _logged_once() -> Iterator[None]:
    """Of every kind of line in the log the first alone: batches are many, and what is true of one is true of others."""
    seen: set[object] = set()

    def new(record: logging.LogRecord) -> bool:
        known = record.msg in seen  # before its numbers are put in
        seen.add(record.msg)
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
    line = lines.get()
    while line is not None:
        batch = [line]
        try:
            while (line := lines.get_nowait()) is not None and len(batch) < MOST_LINES:
                batch.append(line)
        except Empty:
            yield batch
            line = lines.get()
        else:
            yield batch


# ---- a line


def _read(number: int, raw: bytes) -> _Line:
    """A line's texts, or what is wrong with it."""
    line = _Line(number)
    try:
        value = _parsed(raw)
        line.key = _checked_key(value.get("id"))
        line.first, line.second = _texts(value)
    except _BrokenLineError as error:
        line.error = str(error)
    return line


def _parsed(raw: bytes) -> dict[str, Any]:
    try:
        value = json.loads(raw.decode("utf-8"), parse_constant=_no_number)
    except UnicodeDecodeError:
        raise _BrokenLineError("the line is not UTF-8") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise _BrokenLineError(f"the line is not JSON ({error})") from None
    except _BrokenLineError:
        raise
    except ValueError:  # of Python's limit to the digits of an integer
        raise _BrokenLineError("the line holds a number of too many digits") from None
    if not isinstance(value, dict):
        raise _BrokenLineError("the line is no JSON object")
    return value


def _no_number(word: str) -> None:
    """Refuse what Python reads as a number and JSON does not have."""
    raise _BrokenLineError(f"the line is not JSON ({word} is no number there)")


def _checked_key(key: Any) -> Any:
    """An id that can stand in the answer: half a character, or a number beyond all floats, cannot."""
    try:
        json.dumps(key, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (ValueError, RecursionError):
        raise _BrokenLineError("the id cannot be repeated: give a plain text or number") from None
    return key


def _texts(value: dict[str, Any]) -> tuple[str, str | None]:
    if unknown := sorted(set(value) - _KNOWN):
        raise _BrokenLineError(f"{shorten(unknown[0])} is no key of a line: {', '.join(sorted(_KNOWN))}")
    asks = "question" in value or "context" in value
    if asks == ("text" in value) or (asks and not {"question", "context"} <= value.keys()):
        raise _BrokenLineError("give question and context, or text, for pairs with pair")
    if asks and "pair" in value:
        raise _BrokenLineError("pair goes with text")
    names = ("question", "context") if asks else ("text", "pair")
    for name in names:
        if not isinstance(value.get(name), str) and not (name == "pair" and value.get(name) is None):
            raise _BrokenLineError(f"{name} must be a string")
    return value[names[0]], value.get(names[1])


# ---- answers


def _answered(
    model: Model, lines: Sequence[_Line], tasks: Sequence[str], n_best: int
) -> dict[int, dict[str, Any]]:
    """What each line gets, by its number; single texts and pairs are predicted in one call each."""
    results: dict[int, dict[str, Any]] = {line.number: {"error": line.error} for line in lines if line.error}
    for pairs in (False, True):
        own = [line for line in lines if not line.error and (line.second is not None) == pairs]
        if own:
            results |= _predicted(model, own, tasks, n_best)
    return results


def _predicted(
    model: Model, lines: Sequence[_Line], tasks: Sequence[str], n_best: int
) -> dict[int, dict[str, Any]]:
    seconds = [line.second for line in lines if line.second is not None] or None
    try:
        rows = model([line.first for line in lines], seconds, tasks=tasks or None, n_best=n_best)
    except BertvisionError as error:
        if len(lines) == 1:
            return {lines[0].number: {"error": re.sub(r"^(text|question) 1: ", "", str(error))}}
        # One of them spoils it for the others: each alone.
        return {n: row for line in lines for n, row in _predicted(model, [line], tasks, n_best).items()}
    return {
        line.number: {"tasks": {name: to_json(one) for name, one in row.items()}}
        for line, row in zip(lines, rows, strict=True)
    }
