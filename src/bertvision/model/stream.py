"""What `predict --data` reads: the examples of a file, or with `--data -` JSON lines, each answered as it comes.

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
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from queue import Queue
from typing import IO, Any

from bertvision.console import emit
from bertvision.data.examples import SpanData, TextData
from bertvision.data.load import load_data, load_span_data
from bertvision.data.tables import Flaw, check_text, shorten
from bertvision.data.texts import Columns
from bertvision.errors import BertvisionError, ConfigError, DataError
from bertvision.model.model import Model
from bertvision.tasks.base import Task, to_json
from bertvision.tasks.texts import holds_questions

MOST_LINES = 64
"""Of one batch."""
_KNOWN = {"id", "question", "context", "text", "pair"}
_Row = dict[str, Any]
"""What is written for a line."""


def load_inputs(
    source: str, tasks: Mapping[str, Task], *, columns: Columns, max_examples: int | None = None
) -> SpanData | TextData:
    """The examples of a file as these tasks read them: as questions, or as texts whose labels do not matter."""
    asking = [name for name, task in tasks.items() if task.asks]
    if 0 < len(asking) < len(tasks):
        raise ConfigError(
            f"of these tasks {', '.join(asking)} read questions and the others texts: name those that --data suits "
            "with --tasks"
        )
    if asking:
        source = source.removeprefix("answerable:")
        return load_span_data(source, max_examples=max_examples, answers_required=False)
    named = source.startswith(("glue:", "cs224n:"))
    # "label" and not "auto": a table with questions and contexts may be one of pairs.
    data = load_data(
        source,
        columns=columns,
        task="auto" if named else "label",
        max_examples=max_examples,
        answers_required=False,
    )
    if not isinstance(data, TextData) or holds_questions(data):
        raise ConfigError(f"--data {source} holds questions, and this folder gives labels or scores of texts")
    return replace(data, examples=[replace(example, label=None) for example in data.examples])


def answer_stream(
    model: Model, *, tasks: Sequence[str] = (), n_best: int = 0, source: IO[bytes] | None = None
) -> None:
    """Answer every line of `source` (by default the standard input) until it ends; then raise if any was broken."""
    wrong = total = 0
    # Not sys.stdin: a thread that still waits in it when the process ends would hold a lock that Python wants then.
    lines = open(0, "rb", closefd=False) if source is None else source  # noqa: SIM115
    with _logged_once():
        for batch in _batches(lines):
            rows: dict[int, _Row] = {}
            texts: dict[int, tuple[str, ...]] = {}
            for number, raw in batch:
                rows[number] = {"line": number}
                try:
                    value = _parsed(raw)
                    if value.get("id") is not None:
                        rows[number] = {"id": _checked_id(value["id"])} | rows[number]
                    texts[number] = _texts(value)
                except (DataError, Flaw) as error:
                    rows[number]["error"] = str(error)
            for count in (1, 2):  # single texts and pairs are predicted in one call each
                own = {number: read for number, read in texts.items() if len(read) == count}
                for number, result in _predicted(model, own, tasks, n_best).items() if own else ():
                    rows[number] |= result
            total += len(rows)
            wrong += sum("error" in row for row in rows.values())
            for row in rows.values():
                emit(json.dumps(row, ensure_ascii=False))
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
    more = True
    while more:
        found = [lines.get()]
        found += [lines.get() for _ in range(min(lines.qsize(), MOST_LINES - 1))]  # nobody else takes any
        more = found[-1] is not None
        if batch := [line for line in found if line is not None]:
            yield batch


def _parsed(raw: bytes) -> dict[str, Any]:
    def no_number(word: str) -> None:
        raise DataError(f"the line is not JSON ({word} is no number there)")  # NaN is one to Python

    try:
        value = json.loads(raw.decode("utf-8"), parse_constant=no_number)
    except UnicodeDecodeError:
        raise DataError("the line is not UTF-8") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"the line is not JSON ({error})") from None
    except ValueError:  # of Python's limit to the digits of an integer
        raise DataError("the line holds a number of too many digits") from None
    if not isinstance(value, dict):
        raise DataError("the line is no JSON object")
    return value


def _checked_id(key: Any) -> Any:
    """An id that can stand in the answer: half a character, or a number beyond all floats, cannot."""
    try:
        json.dumps(key, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (ValueError, RecursionError):
        raise DataError("the id cannot be repeated: give a plain text or number") from None
    return key


def _texts(value: dict[str, Any]) -> tuple[str, ...]:
    """The one or two texts of a line."""
    if unknown := sorted(set(value) - _KNOWN):
        raise DataError(f"{shorten(unknown[0])} is no key of a line: {', '.join(sorted(_KNOWN))}")
    asks = "question" in value or "context" in value
    if asks == ("text" in value) or (asks and not {"question", "context"} <= value.keys()):
        raise DataError("give question and context, or text, for pairs with pair")
    if asks and "pair" in value:
        raise DataError("pair goes with text")
    names = (
        {"question": "question", "context": "context"} if asks else {"text": "text", "pair": "second text"}
    )
    if value.get("pair") is None:
        names.pop("pair", None)
    for name, called in names.items():
        check_text(value[name], called)
    return tuple(value[name] for name in names)


def _predicted(
    model: Model, lines: Mapping[int, tuple[str, ...]], tasks: Sequence[str], n_best: int
) -> dict[int, _Row]:
    """What lines of one or of two texts get, by their numbers."""
    columns = [list(texts) for texts in zip(*lines.values(), strict=True)]
    try:
        rows = model(*columns, tasks=tasks or None, n_best=n_best)
    except BertvisionError as error:  # true of all: no task reads so many texts
        return {number: {"error": str(error)} for number in lines}
    answers = [{"tasks": {name: to_json(one) for name, one in row.items()}} for row in rows]
    return dict(zip(lines, answers, strict=True))
