"""Plain tables that keep within the terminal: a narrow one leaves whole columns out instead of folding numbers."""

import shutil
import textwrap
from collections.abc import Mapping, Sequence

__all__ = ["columns", "terminal_width"]

_LONGEST = 36
"""Longer names in the first column are written in two lines, cut behind commas."""


def terminal_width() -> int:
    """Of the terminal, or as COLUMNS says; 120 where there is none."""
    return shutil.get_terminal_size((120, 24)).columns


def columns(
    rows: Sequence[Mapping[str, str]], width: int, *, texts: Sequence[str], optional: Sequence[str] = ()
) -> list[str]:
    """Lines of a table of `rows` (column -> cell), no longer than `width` if that can be had.

    `texts` are the columns of words, the others hold numbers; `optional` ones are left out in this order.
    """
    shown = list(rows[0])
    first = shown[0]
    folded = [_folded(row[first]) for row in rows]
    size = {c: max(len(c), *(len(row[c]) for row in rows)) for c in shown}
    size[first] = max(len(first), *(len(line) for lines in folded for line in lines))
    left_out: list[str] = []
    for column in (c for c in optional if c in shown):
        if sum(size[c] + 2 for c in shown) - 2 > width:
            shown.remove(column)
            left_out.append(column)

    def line(cells: Mapping[str, str]) -> str:
        sides = {c: "<" if c in texts else ">" for c in shown}
        return "  ".join(f"{cells.get(c, ''):{sides[c]}{size[c]}}" for c in shown).rstrip()

    lines = [line({c: c for c in shown}), "  ".join("-" * size[c] for c in shown)]
    for row, (name, *more) in zip(rows, folded, strict=True):
        lines += [line({**row, first: name}), *(line({first: rest}) for rest in more)]
    if left_out:
        lines += textwrap.wrap(f"left out for want of width: {', '.join(left_out)} (--json has all)", width)
    return lines


def _folded(name: str) -> list[str]:
    """A name as one line, or cut behind commas."""
    lines = [""]
    for part in name.replace(",", ",\n").splitlines() if len(name) > _LONGEST else [name]:
        if lines[-1] and len(lines[-1] + part) > _LONGEST:
            lines.append("  ")
        lines[-1] += part
    return lines
