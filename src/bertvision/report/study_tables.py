"""Tables of a study: those of its blocks, and the numbers behind each figure, ready for the template.

Columns can be sorted. The cells of a block are texts made for reading ("3 min 20 s", "+0.4", "21.6 M"), so what a cell
is worth is read back from its text; columns of words go by the alphabet.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertvision.report import words
from bertvision.report.study_figures import axis_label

__all__ = ["Cell", "Column", "Row", "Table", "numbers_of", "shown_table", "worth"]

_LEAST_SORTED = 6
"""Rows from which a table is worth sorting."""
_LONG = 24
"""Letters of words that may break into lines."""
_SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_SIZES = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_NUMBER = re.compile(r"([+-]?\d+(?:\.\d+)?(?:e-?\d+)?)\s*(ms|min|[shkMGT])?(?![A-Za-z])")


@dataclass(frozen=True)
class Column:
    name: str
    text: bool
    edge: bool
    """Whether it begins a group."""
    long: bool = False
    """Whether its words need lines of their own."""


@dataclass(frozen=True)
class Cell:
    text: str
    under: str
    tone: str
    value: float | None
    """By which its column is sorted."""


@dataclass(frozen=True)
class Row:
    cells: list[Cell]
    strong: bool
    kind: str
    new_kind: bool
    """Whether a group of rows begins here."""


@dataclass(frozen=True)
class Table:
    caption: str
    columns: list[Column]
    groups: list[tuple[str, int]]
    """(name, columns) from left to right; empty where no column is in one."""
    rows: list[Row]

    @property
    def sortable(self) -> bool:
        return len(self.rows) >= _LEAST_SORTED and len(self.columns) > 1


def shown_table(block: Mapping[str, Any]) -> Table:
    """A table block with what the template needs."""
    about, groups = block["columns"], _groups(block["columns"])
    edges = [i == 0 or about[i].get("group") != about[i - 1].get("group") for i in range(len(about))]
    texts = [[_text(row["cells"][i]) for row in block["rows"]] for i in range(len(about))]
    columns = [
        Column(
            column["name"],
            column["align"] == "text",
            edge=edge and i > 0 and bool(groups),
            long=max(map(len, texts[i]), default=0) > _LONG,
        )
        for i, (column, edge) in enumerate(zip(about, edges, strict=True))
    ]
    values = [
        _ranks(t) if column.text else [worth(one) for one in t]
        for t, column in zip(texts, columns, strict=True)
    ]
    begins = _begins([row.get("kind") or "" for row in block["rows"]])
    rows = []
    for r, row in enumerate(block["rows"]):
        cells = [_cell(cell, values[c][r]) for c, cell in enumerate(row["cells"])]
        kind = row.get("kind") or ""
        rows.append(Row(cells, bool(row.get("strong")), kind, begins[r]))
    return Table(block["caption"], columns, groups, rows)


def _groups(columns: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
    spans: list[tuple[str, int]] = []
    for column in columns:
        name = column.get("group") or ""
        if spans and spans[-1][0] == name:
            spans[-1] = name, spans[-1][1] + 1
        else:
            spans.append((name, 1))
    return spans if any(name for name, _ in spans) else []


def _begins(kinds: Sequence[str]) -> list[bool]:
    """Where groups of rows begin: at every new kind, or, where kinds return, at each return of the first one."""
    changes = [i > 0 and kind != kinds[i - 1] for i, kind in enumerate(kinds)]
    if sum(changes) < len(set(kinds)):
        return changes
    return [change and kind == kinds[0] for change, kind in zip(changes, kinds, strict=True)]


def _text(cell: str | Mapping[str, Any]) -> str:
    return cell if isinstance(cell, str) else cell["text"]


def _cell(cell: str | Mapping[str, Any], value: float | None) -> Cell:
    if isinstance(cell, str):
        return Cell(cell, "", "", value)
    return Cell(cell["text"], cell.get("sub") or "", cell.get("tone") or "", value)


def _ranks(texts: Sequence[str]) -> list[float | None]:
    order = {
        text: float(rank) for rank, text in enumerate(sorted(set(texts), key=str.casefold, reverse=True))
    }
    return [order[text] for text in texts]


def worth(text: str) -> float | None:
    """What a cell says in one number: "3 min 20 s" -> 200, "21.6 M" -> 21600000, a dash -> None."""
    plain = text.replace("−", "-").replace("\u2011", "-").replace(",", "").replace("\u00a0", " ")
    found = [(float(number), unit) for number, unit in _NUMBER.findall(plain)]
    if not found:
        return None
    number, unit = found[0]
    if unit in _SECONDS:
        return sum(value * _SECONDS[name] for value, name in found if name in _SECONDS)
    return number * _SIZES.get(unit, 1.0)


# ---- the numbers of a figure


def numbers_of(block: Mapping[str, Any]) -> Table:
    """What a figure was drawn from, as a table."""
    columns, rows = _TABLES[block["type"]](block)
    about = [{"name": name, "align": "number" if i else "text"} for i, name in enumerate(columns)]
    kinds = [row[0] for row in rows]
    cells = [row[1:] for row in rows]
    return shown_table(
        {
            "caption": f"Numbers of “{block['title']}”",
            "columns": about,
            "rows": [{"cells": c, "kind": k} for c, k in zip(cells, kinds, strict=True)],
        }
    )


def _plain(value: float | None) -> str:
    known = words.finite(value)
    if known is None:
        return words.UNKNOWN
    return (
        f"{known:,.2f}".rstrip("0").rstrip(".").replace("-", "−") if abs(known) >= 0.1 else words.plain(known)
    )


Numbers = tuple[list[str], list[list[str]]]
"""Names of the columns, and rows: the kind of what it is about, then its cells."""


def _of_lines(block: Mapping[str, Any]) -> Numbers:
    series = block["series"]
    at = sorted({x for one in series for x, _ in one["points"]})
    known = [{x: y for x, y in one["points"]} for one in series]
    rows = [["", _plain(x), *(_plain(points.get(x)) for points in known)] for x in at]
    return [axis_label(block["x"]), *(one["name"] for one in series)], rows


def _of_scatter(block: Mapping[str, Any]) -> Numbers:
    points = sorted(block["points"], key=lambda point: point["x"])
    rows = [[p["kind"], p["label"] or p.get("name") or "", _plain(p["x"]), f"{p['y']:.2f}"] for p in points]
    return ["system", axis_label(block["x"]), axis_label(block["y"])], rows


def _of_bars(block: Mapping[str, Any]) -> Numbers:
    series = block["series"]
    rows = [
        ["", group, *(_plain(one["values"][i]) for one in series)] for i, group in enumerate(block["groups"])
    ]
    return [axis_label(block["y"]), *(one["name"] for one in series)], rows


def _of_histogram(block: Mapping[str, Any]) -> Numbers:
    edges, series = block["edges"], block["series"]
    rows = [
        ["", f"{_plain(edges[i])} – {_plain(edges[i + 1])}", *(_plain(one["counts"][i]) for one in series)]
        for i in range(len(edges) - 1)
    ]
    return [axis_label(block["x"]), *(one["name"] for one in series)], rows


def _of_intervals(block: Mapping[str, Any]) -> Numbers:
    rows = [
        ["", row["label"], words.signed(row["difference"], digits=2)]
        + [words.signed(row[end], digits=2) for end in ("low", "high")]
        for row in block["rows"]
    ]
    return ["", f"difference ({block['unit']})", "low", "high"], rows


_TABLES = {
    "lines": _of_lines,
    "scatter": _of_scatter,
    "bars": _of_bars,
    "histogram": _of_histogram,
    "intervals": _of_intervals,
}
