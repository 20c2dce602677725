"""What `predict --data` reads: the examples of a file, or with `--data -` JSON lines, each answered as it comes.

    {"id"?: ..., "question": "Who?", "context": "..."}         or {"text": "...", "pair"?: "..."}
    {"id"?: ..., "line": 1, "tasks": {NAME: {...}}}            or {"line": 1, "error": "..."}

What has come while the last answers were computed is answered next, together: one line alone does not wait, many lines
share encoder calls of similar length. A line that cannot be answered gets its number and the reason, and the stream
goes on; at its end the exit code is 2. Empty lines are skipped.
"""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bertvision.console import emit
from bertvision.data.examples import SpanData, TextData
from bertvision.data.load import load_data, load_span_data
from bertvision.data.tables import Flaw, check_text, shorten
from bertvision.data.texts import Columns
from bertvision.errors import BertvisionError, ConfigError, DataError
from bertvision.model.model import Model
from bertvision.tasks.base import Task, to_json
from bertvision.tasks.texts import holds_questions

_AT_ONCE = 1 << 16
"""Bytes read at once, as many as a pipe holds: whoever writes faster than answers are computed waits."""
_TEXTS = (("question", "context"), ("text",), ("text", "pair"))


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
    model: Model, *, tasks: Sequence[str] = (), n_best: int = 0, source: io.BufferedIOBase | None = None
) -> None:
    """Answer every line of `source` (by default the standard input) until it ends; then raise if any was broken."""
    wrong = total = 0
    with open(0, "rb", closefd=False) if source is None else source as lines:
        for batch in _batches(lines):
            rows: dict[int, dict[str, Any]] = {}
            texts: dict[int, tuple[str, ...]] = {}
            for number, raw in batch:
                rows[number] = {"line": number}
                try:
                    value = _parsed(raw)
                    if value.get("id") is not None:
                        rows[number] = {"id": value["id"], "line": number}
                    texts[number] = _texts(value)
                except (DataError, Flaw) as error:
                    rows[number]["error"] = str(error)
            for count in (1, 2):  # single texts and pairs are predicted in one call each
                own = {number: read for number, read in texts.items() if len(read) == count}
                columns = [list(column) for column in zip(*own.values(), strict=True)]
                try:
                    answers = model(*columns, tasks=tasks or None, n_best=n_best) if own else []
                except BertvisionError as error:  # true of all: no task reads so many texts
                    for number in own:
                        rows[number]["error"] = str(error)
                    continue
                for number, row in zip(own, answers, strict=True):
                    rows[number]["tasks"] = {name: to_json(one) for name, one in row.items()}
            total += len(rows)
            wrong += sum("error" in row for row in rows.values())
            for row in rows.values():
                emit(json.dumps(row, ensure_ascii=False))
    if wrong:
        raise DataError(f"{wrong} of {total} lines of the stream could not be answered: each says why")


def _batches(source: io.BufferedIOBase) -> Iterator[list[tuple[int, bytes]]]:
    """Numbered lines, without empty ones: as many as one read gives, which waits for the first byte alone."""
    number, rest, more = 0, b"", True
    while more:
        found = source.read1(_AT_ONCE)
        more = bool(found)
        *lines, rest = (rest + found).split(b"\n")
        if not more:
            lines.append(rest)
        if batch := [(number + i, line) for i, line in enumerate(lines, start=1) if line.strip()]:
            yield batch
        number += len(lines)


def _parsed(raw: bytes) -> dict[str, Any]:
    """The object of a line, whose id can stand in the answer: half a character or an infinite number cannot."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no number there")  # NaN is one to Python

    try:
        value = json.loads(raw.decode(), parse_constant=refuse)
        if isinstance(value, dict):
            json.dumps(value.get("id"), ensure_ascii=False, allow_nan=False).encode()
            return value
    except (
        ValueError,
        RecursionError,
    ) as error:  # of encodings, of JSON, of numbers with thousands of digits
        raise DataError(f"the line is not JSON in UTF-8 ({error})") from None
    raise DataError("the line is no JSON object")


def _texts(value: dict[str, Any]) -> tuple[str, ...]:
    """The one or two texts of a line."""
    given = {name for name, text in value.items() if text is not None} - {"id"}
    names = next((names for names in _TEXTS if given == set(names)), None)
    if names is None:
        said = shorten(", ".join(sorted(given)))
        raise DataError(f"a line gives question and context, or text, for pairs with pair, but not {said}")
    for name in names:
        check_text(value[name], "second text" if name == "pair" else name)
    return tuple(value[name] for name in names)
