"""Write the report: one HTML file, made from the JSON of tables.py and nothing else."""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from papers.figures import TITLES, draw

_DIGITS = {"depth": 2, "efficiency": 2, "percent": 3, "parameters": 0, "trainable": 0}
_TEMPLATE = Path(__file__).with_name("report.html.j2")


def render(results: Mapping[str, Any]) -> str:
    """The whole page."""
    import jinja2

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    parts = [{**part, "tables": [_table(table) for table in part["tables"]]} for part in results["parts"]]
    return template.render(results=results, parts=parts)


def _table(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table's heads, cells and figure; columns that are empty everywhere are left out."""
    columns = [
        (metric, kind)
        for metric in table["metrics"]
        for kind in ("published", "published_gain", "measured", "gain")
        if any(metric in row.get(kind, {}) for row in table["rows"])
    ]
    heads = [
        {"title": TITLES[metric], "span": sum(name == metric for name, _ in columns)}
        for metric in dict.fromkeys(metric for metric, _ in columns)
    ]
    rows = [
        {"name": row["name"], "cells": [_cell(row, *column) for column in columns]} for row in table["rows"]
    ]
    notes = [f"{row['name']}: {note}." for row in table["rows"] for note in row["notes"]]
    kinds = {"published": "published", "published_gain": "gain", "measured": "measured", "gain": "gain"}
    return {"title": table["title"], "heads": heads, "rows": rows, "notes": notes, "figure": draw(table)} | {
        "kinds": [(kind, kinds[kind]) for _, kind in columns]
    }


def _cell(row: Mapping[str, Any], metric: str, kind: str) -> dict[str, str]:
    """A number, and in small print its interval, its spread over seeds and their count."""
    value = row.get(kind, {}).get(metric)
    cell = {"kind": kind, "text": "", "small": ""}
    if value is None:
        return cell
    gain = kind.endswith("gain")
    if isinstance(value, int | float):
        return cell | {"text": _number(value, metric, gain)}
    small = []
    if value["interval"]:
        small.append(" … ".join(_number(end, metric, gain) for end in value["interval"]))
    if value["sd"] is not None:
        small.append(f"±{_number(value['sd'], metric)}, {value['seeds']} seeds")
    return cell | {"text": _number(value["mean"], metric, gain), "small": "; ".join(small)}


def _number(value: float, metric: str, signed: bool = False) -> str:
    digits = 0 if abs(value) >= 1000 else _DIGITS.get(metric, 1)
    text = f"{value:+,.{digits}f}" if signed else f"{value:,.{digits}f}"
    return escape(text.replace("-", "−"))
