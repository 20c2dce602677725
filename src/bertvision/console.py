"""The only place that prints.

Results go to stdout, everything a person watches (notes, progress) to stderr, so that `--json` output can be piped.
Progress bars are drawn on a terminal only; without one each stage prints one line when it ends. Of several processes
that train as one, only rank 0 prints; the others call `quiet` and keep their warnings.
"""

import io
import json
import logging
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqdm import tqdm

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
    from tqdm import tqdm

    tqdm.write(text, file=sys.stderr)
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
    first, *others = shown = list(dict.fromkeys(name for row in rows for name in row))
    cells = {name: [name, *(row.get(name, "") for row in rows)] for name in shown}
    size = {name: max(map(len, column)) for name, column in cells.items()}
    left = {first, *(name for name in others if not all(map(_is_number, cells[name][1:])))}
    left_out: list[str] = []
    for name in (name for name in optional if name in shown):
        if sum(size[c] + 2 for c in shown) - 2 > width:
            shown.remove(name)
            left_out.append(name)

    def line(row: Mapping[str, str]) -> str:
        return "  ".join(f"{row.get(c, ''):{'<' if c in left else '>'}{size[c]}}" for c in shown).rstrip()

    lines = [line({c: c for c in shown}), "  ".join("-" * size[c] for c in shown), *map(line, rows)]
    if left_out:
        lines += textwrap.wrap(f"left out for want of width: {', '.join(left_out)} (--json has all)", width)
    return lines


def _is_number(cell: str) -> bool:
    return not cell or cell[0] in "+-−–." or cell[0].isdigit()


def _pace(rate: float, unit: str) -> str:
    """The speed of a stage: steps a second, or seconds a step where it is slower."""
    return f"{rate:.1f} {unit}/s" if rate >= 1 or rate <= 0 else f"{1 / rate:.1f} s each"


@contextmanager
def progress(label: str, total: float, *, unit: str = "it", done: float = 0) -> "Iterator[tqdm[Any]]":
    """Show a bar with rate and time left while the block runs; a resumed stage starts at `done`."""
    from tqdm import tqdm

    drawn = not _quiet and sys.stderr.isatty()
    shown = sys.stderr if drawn else io.StringIO()  # a disabled bar would not count
    began = time.monotonic()
    with tqdm(desc=label, total=total, initial=done, unit=f" {unit}", file=shown, dynamic_ncols=True) as bar:
        yield bar
    seconds = time.monotonic() - began
    if not drawn:
        pace = _pace((bar.n - done) / max(seconds, 1e-9), unit)
        logging.getLogger("bertvision").info("%s: %.0f %s in %.1f s (%s)", label, bar.n, unit, seconds, pace)


class _Stderr(logging.Handler):
    """Write to the current stderr, above a bar that is drawn."""

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
