"""Blocks of a study's sections: plain dicts that report/study_schema.py describes and the page draws.

Every section builds its tables and figures here, so that a score, a difference and a published number look the same
wherever they stand.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from bertvision.report.words import UNKNOWN, change, interval, p_value, score, verdict
from bertvision.tasks.span.compare import Difference

__all__ = [
    "axis",
    "bars",
    "code",
    "column",
    "difference_cell",
    "examples",
    "histogram",
    "interval_row",
    "intervals",
    "lines",
    "listing",
    "p_cell",
    "published_cell",
    "row",
    "scatter",
    "score_cell",
    "section",
    "series",
    "table",
    "text",
    "value_cell",
]

Block = dict[str, Any]
Cell = str | dict[str, Any]
Kind = Literal["snapshot", "head", "control", "published", "ensemble", "other"]


class ScoresLike(Protocol):
    """`view.Scores` and whatever has its means and deviations."""

    @property
    def exact(self) -> float: ...
    @property
    def f1(self) -> float: ...
    @property
    def sd_exact(self) -> float | None: ...
    @property
    def sd_f1(self) -> float | None: ...


# ---- cells


def value_cell(value: float | None, sd: float | None = None, *, digits: int = 1) -> Cell:
    """A number with its deviation over seeds below it; a dash where there is none."""
    if value is None:
        return {"text": UNKNOWN, "tone": "muted"}
    shown = score(value) if digits == 1 else f"{value:,.{digits}f}"
    return shown if sd is None else {"text": shown, "sub": f"± {sd:.{max(digits, 2)}f}"}


def score_cell(scores: ScoresLike, metric: Literal["exact", "f1"] = "f1") -> Cell:
    """A score in percent, with its deviation over seeds."""
    return value_cell(getattr(scores, metric), getattr(scores, f"sd_{metric}"))


def difference_cell(found: Difference | None) -> Cell:
    """A paired difference in points over its 95 % interval; a gain or a loss where the interval lacks zero."""
    if found is None:
        return {"text": UNKNOWN, "tone": "muted"}
    return {
        "text": change(found.difference),
        "sub": interval(found.low, found.high),
        "tone": verdict(vars(found)),
    }


def p_cell(p: float | None) -> Cell:
    """A probability of McNemar's test."""
    return {"text": p_value(p), "tone": "muted"}


def published_cell(value: float | str | None, note: str = "") -> Cell:
    """A number as printed in a paper, set back from the measured ones; a score in percent, or its text."""
    shown = value if isinstance(value, str) else score(value)
    return {"text": shown, "tone": "muted"} | ({"sub": note} if note else {})


# ---- tables


def column(name: str, align: Literal["text", "number"] = "number", group: str = "") -> dict[str, str]:
    return {"name": name, "align": align} | ({"group": group} if group else {})


def row(cells: Sequence[Cell], *, strong: bool = False, kind: str = "") -> dict[str, Any]:
    return {"cells": list(cells)} | ({"strong": True} if strong else {}) | ({"kind": kind} if kind else {})


def table(caption: str, columns: Sequence[Mapping[str, str]], rows: Sequence[Mapping[str, Any]]) -> Block:
    """Rows as `row` makes them; each has a cell for every column."""
    wrong = next((r for r in rows if len(r["cells"]) != len(columns)), None)
    assert wrong is None, f"a row of {len(columns)} columns has {len((wrong or {})['cells'])} cells"
    return {"type": "table", "caption": caption, "columns": list(columns), "rows": list(rows)}


# ---- figures


def axis(label: str, *, log: bool = False, unit: str = "") -> dict[str, Any]:
    return {"label": label} | ({"log": True} if log else {}) | ({"unit": unit} if unit else {})


def series(
    name: str,
    kind: Kind,
    points: Sequence[tuple[float, float]],
    *,
    band: Sequence[tuple[float, float, float]] = (),
    dashed: bool = False,
) -> dict[str, Any]:
    """A line: (x, y) points and, where it is known, (x, low, high) around them."""
    made: dict[str, Any] = {"name": name, "kind": kind, "points": [list(point) for point in points]}
    if band:
        made["band"] = [list(point) for point in band]
    return made | ({"dashed": True} if dashed else {})


def lines(
    title: str, caption: str, x: Mapping[str, Any], y: Mapping[str, Any], drawn: Sequence[Mapping[str, Any]]
) -> Block:
    """Lines as `series` makes them."""
    return {
        "type": "lines",
        "title": title,
        "caption": caption,
        "x": dict(x),
        "y": dict(y),
        "series": list(drawn),
    }


def scatter(
    title: str,
    caption: str,
    x: Mapping[str, Any],
    y: Mapping[str, Any],
    points: Sequence[Mapping[str, Any]],
    *,
    front: bool = False,
    lines_at: Sequence[Mapping[str, Any]] = (),
) -> Block:
    """Points {"x", "y", "label", "kind", "low"?, "high"?}; `front` draws those nothing beats in both."""
    block: Block = {"type": "scatter", "title": title, "caption": caption, "x": dict(x), "y": dict(y)}
    block["points"] = [dict(point) for point in points]
    if front:
        block["front"] = True
    if lines_at:
        block["lines_at"] = [dict(line) for line in lines_at]
    return block


def bars(
    title: str, caption: str, y: Mapping[str, Any], groups: Sequence[str], drawn: Sequence[Mapping[str, Any]]
) -> Block:
    """Series {"name", "kind", "values"}, a value or None for each group."""
    return {
        "type": "bars",
        "title": title,
        "caption": caption,
        "y": dict(y),
        "groups": list(groups),
        "series": [dict(one) for one in drawn],
    }


def histogram(
    title: str,
    caption: str,
    x: Mapping[str, Any],
    edges: Sequence[float],
    drawn: Sequence[Mapping[str, Any]],
) -> Block:
    """Series {"name", "kind", "counts"}, one count between every two edges."""
    return {
        "type": "histogram",
        "title": title,
        "caption": caption,
        "x": dict(x),
        "edges": list(edges),
        "series": [dict(one) for one in drawn],
    }


def interval_row(label: str, found: Difference) -> dict[str, Any]:
    return {"label": label, **vars(found)}


def intervals(title: str, caption: str, rows: Sequence[Mapping[str, Any]], unit: str = "points F1") -> Block:
    """Differences with their intervals, one below the other."""
    return {"type": "intervals", "title": title, "caption": caption, "unit": unit, "rows": list(rows)}


# ---- words


def text(*paragraphs: str) -> Block:
    return {"type": "text", "paragraphs": list(paragraphs)}


def listing(items: Sequence[str]) -> Block:
    return {"type": "list", "items": list(items)}


def code(printed: Sequence[str]) -> Block:
    return {"type": "code", "lines": list(printed)}


def examples(items: Sequence[Mapping[str, Any]]) -> Block:
    """Items {"question", "context", "gold": [...], "answers": [{"name", "text", "right"}]}."""
    return {"type": "examples", "items": [dict(item) for item in items]}


def section(id: str, title: str, about: str, blocks: Sequence[Block]) -> dict[str, Any]:
    return {"id": id, "title": title, "about": about, "blocks": list(blocks)}
