"""The only place that prints.

Results go to stdout, everything a person watches (notes, progress) to stderr, so that `--json` output can be
piped. Progress bars are drawn on a terminal only; without one a stage is one line when it ends. `rich` is
imported on first use, so that the library works without it. Of several processes that train as one only rank 0 is
heard; the others call `quiet` and keep their warnings.
"""

import json
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

__all__ = [
    "Progress",
    "emit",
    "emit_json",
    "note",
    "progress",
    "quiet",
    "setup_logging",
    "size_text",
    "table",
]


_quiet = False


def quiet() -> None:
    """From now on this process shows no results, no progress and no notes of the library, only its warnings."""
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
    """Tell the person watching something; goes to stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def size_text(count: float) -> str:
    """Bytes as people read them, in three digits: 830 kB, 17.9 GB."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            value = count / size
            return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"
    return f"{count:.0f} B"


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table to stdout; columns of numbers are right-aligned."""
    if _quiet:
        return
    from rich.console import Console
    from rich.table import Table

    grid = Table(title=title or None, title_justify="left", header_style="bold")
    for i, column in enumerate(columns):
        numbers = all(not row[i] or row[i][:1] in "+-−" or row[i][:1].isdigit() for row in rows)
        grid.add_column(column, justify="right" if i and numbers else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(str(cell) for cell in row))
    # Without a terminal rich would fall back to 80 columns and fold every number.
    width = None if sys.stdout.isatty() else 160
    Console(file=sys.stdout, highlight=False, width=width).print(grid)


class Progress:
    """A running stage: `advance(n)` moves it, `tell(loss=0.3)` shows figures beside it."""

    def __init__(self, bar: Any, task: Any, total: float) -> None:
        self._bar, self._task, self.total = bar, task, total
        self.done = 0.0

    def advance(self, amount: float = 1) -> None:
        self.done += amount
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done)

    def tell(self, **figures: float | str) -> None:
        if self._bar is not None:
            shown = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in figures.items())
            self._bar.update(self._task, figures="  ".join(shown))


def _pace(rate: float, unit: str) -> str:
    """How fast a stage goes; what is slower than one a second is told the other way round."""
    return f"{rate:.1f} {unit}/s" if rate >= 1 or rate <= 0 else f"{1 / rate:.1f} s each"


@contextmanager
def progress(label: str, total: float, *, unit: str = "it", done: float = 0) -> Iterator[Progress]:
    """Show a bar with rate and time left while the block runs; `done` is what a resumed stage has behind it."""
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
    """Writes to whatever stderr is now: while a bar is drawn, rich puts itself there and prints above the bar."""

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
