"""The only place that prints.

Results go to stdout, everything a person watches (notes, progress) to stderr, so that `--json` output can be piped.
Progress bars are drawn on a terminal only; without one each stage prints one line when it ends. `rich` is imported on
first use, so that the library works without it. Of several processes that train as one, only rank 0 prints; the others
call `quiet` and keep their warnings.
"""

import json
import logging
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

_LONGEST = 36
"""Longer names in the first column of a table are written in several lines."""
_quiet = False


def quiet() -> None:
    """Show only warnings of the library from now on: no results, no progress, no notes."""
    global _quiet
    _quiet = True
    logging.getLogger("bertvision").setLevel(logging.WARNING)


def emit(text: str) -> None:
    """Write a result line to stdout."""
    if _quiet:
        return
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def emit_json(value: Any) -> None:
    """Write a result as indented JSON to stdout."""
    emit(json.dumps(value, indent=2, ensure_ascii=False))


def note(text: str) -> None:
    """Write a note for the person watching to stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def size_text(count: float) -> str:
    """Bytes as people read them, in three digits: 830 kB, 17.9 GB."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            value = count / size
            return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"
    return f"{count:.0f} B"


def table(rows: Sequence[Mapping[str, str]], *, title: str = "", optional: Sequence[str] = ()) -> None:
    """Print rows (column -> cell) to stdout; see `columns`."""
    for line in (*([title] if title else []), *columns(rows, terminal_width(), optional=optional)):
        emit(line)


def terminal_width() -> int:
    """Columns of the terminal, or as COLUMNS says; 120 where there is none."""
    return shutil.get_terminal_size((120, 24)).columns


def columns(rows: Sequence[Mapping[str, str]], width: int, *, optional: Sequence[str] = ()) -> list[str]:
    """Lines of a table of `rows` (column -> cell), no longer than `width` if possible.

    Columns of numbers are right-aligned. A table that is too wide leaves out `optional` columns, in this order,
    instead of folding numbers.
    """
    shown = list(dict.fromkeys(name for row in rows for name in row))
    first = shown[0]
    folded = [_folded(row.get(first, "")) for row in rows]
    cells = {name: [name, *(row.get(name, "") for row in rows)] for name in shown}
    cells[first] = [first, *(line for lines in folded for line in lines)]
    size = {name: max(map(len, column)) for name, column in cells.items()}
    left = {name for name in shown if name == first or not all(map(_is_number, cells[name][1:]))}
    left_out: list[str] = []
    for name in (name for name in optional if name in shown):
        if sum(size[c] + 2 for c in shown) - 2 > width:
            shown.remove(name)
            left_out.append(name)

    def line(row: Mapping[str, str]) -> str:
        return "  ".join(f"{row.get(c, ''):{'<' if c in left else '>'}{size[c]}}" for c in shown).rstrip()

    lines = [line({c: c for c in shown}), "  ".join("-" * size[c] for c in shown)]
    for row, (name, *more) in zip(rows, folded, strict=True):
        lines += [line({**row, first: name}), *(line({first: rest}) for rest in more)]
    if left_out:
        lines += textwrap.wrap(f"left out for want of width: {', '.join(left_out)} (--json has all)", width)
    return lines


def _is_number(cell: str) -> bool:
    return not cell or cell[0] in "+-−–." or cell[0].isdigit()


def _folded(name: str) -> list[str]:
    """A name as one line; a long one in several, cut after commas."""
    lines = [""]
    for part in name.replace(",", ",\n").splitlines() if len(name) > _LONGEST else [name]:
        if lines[-1] and len(lines[-1] + part) > _LONGEST:
            lines.append("  ")
        lines[-1] += part
    return lines


class Progress:
    """A running stage: `advance(n)` moves it, `show(loss=0.3)` writes figures beside it."""

    def __init__(self, bar: Any, task: Any, total: float) -> None:
        self._bar, self._task, self.total = bar, task, total
        self.done = 0.0

    def advance(self, amount: float = 1) -> None:
        self.done += amount
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done)

    def show(self, **figures: float | str) -> None:
        if self._bar is not None:
            texts = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in figures.items())
            self._bar.update(self._task, figures="  ".join(texts))


def _pace(rate: float, unit: str) -> str:
    """The speed of a stage: steps a second, or seconds a step where it is slower."""
    return f"{rate:.1f} {unit}/s" if rate >= 1 or rate <= 0 else f"{1 / rate:.1f} s each"


@contextmanager
def progress(label: str, total: float, *, unit: str = "it", done: float = 0) -> Iterator[Progress]:
    """Show a bar with rate and time left while the block runs; a resumed stage starts at `done`."""
    began = time.monotonic()
    if _quiet or not sys.stderr.isatty():
        state = Progress(None, None, total)
        state.done = done
        yield state
        seconds = time.monotonic() - began
        pace = _pace((state.done - done) / max(seconds, 1e-9), unit)
        logging.getLogger("bertvision").info(
            "%s: %.0f %s in %.1f s (%s)", label, state.done, unit, seconds, pace
        )
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        ProgressColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bars
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(_pace(task.speed, unit) if task.speed else "")

    columns = (
        TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), Rate(),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.fields[figures]}"),
    )  # fmt: skip
    with Bars(*columns, console=Console(file=sys.stderr), speed_estimate_period=60) as bars:
        state = Progress(bars, bars.add_task(label, total=total, completed=int(done), figures=""), total)
        state.done = done
        yield state


class _Stderr(logging.Handler):
    """Write to the current stderr: while a bar is drawn, rich replaces it to print above the bar."""

    def emit(self, record: logging.LogRecord) -> None:
        note(self.format(record))


def setup_logging() -> None:
    """Send the library's log lines to stderr; called by the command line only."""
    handler = _Stderr()
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("bertvision")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
