"""The results of a study, as `results.json` holds them: sections of blocks, checked before anything is drawn.

    study    {"schema": 1, "kind": "study", "bertvision", "commit", "created", "command", "title",
              "headline": sentence, "lede": [sentence], "facts": [{"name", "value", "note"}],
              "sections": [section], "environment": {...}}
    section  {"id": unique, letters, digits and hyphens, "title", "short"?: title in the navigation,
              "about"?: sentences, "blocks": [block]}
    block    by its "type":
      table      {"caption", "columns": [{"name", "align": "text" | "number", "group"?}],
                  "rows": [{"cells": [cell], "strong"?: bool, "kind"?}]}
                  cell = text | {"text", "sub"?, "tone"?: "gain" | "loss" | "level" | "muted"}
      lines      {"title", "caption", "x": axis, "y": axis, "series": [{"name", "kind", "points": [[x, y]],
                  "band"?: [[x, low, high]], "dashed"?: bool}]}
      scatter    {"title", "caption", "x": axis, "y": axis,
                  "points": [{"x", "y", "label", "kind", "name"?, "low"?, "high"?}],
                  "front"?: bool (less x, more y), "lines_at"?: [{"y", "label"}]}
                  a point with an empty label is drawn without words; its name is told where the pointer rests on it
      bars       {"title", "caption", "y": axis, "groups": [label], "series": [{"name", "kind", "values": [y | null]}]}
      histogram  {"title", "caption", "x": axis, "edges": [x], "series": [{"name", "kind", "counts": [number]}]}
      intervals  {"title", "caption", "unit", "rows": [{"label", "difference", "low", "high"}]}
      text {"paragraphs": [text]}    list {"items": [text]}    code {"lines": [text]}
      examples   {"items": [{"question", "context", "gold": [text], "answers": [{"name", "text", "right": bool}]}]}
    axis     {"label", "log"?: bool, "unit"?}
    kind     snapshot, control, head, ensemble, published or other: colour and shape

In texts `backticks` set code. What is wrong is refused in one sentence that names the section and the block.
"""

import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from bertvision.errors import ArtifactError
from bertvision.report.schema import RESULTS_FILE, SCHEMA
from bertvision.report.words import finite

__all__ = ["STUDY_KINDS", "about_study", "validate_study"]

STUDY_KINDS = ("snapshot", "control", "head", "ensemble", "published", "other")
"""In the order in which legends show them."""
_TONES = ("gain", "loss", "level", "muted")
_ALIGNS = ("text", "number")
_REST = {"commit": "", "command": "", "title": "", "lede": [], "facts": [], "environment": {}}

Check = Callable[[Any, str], None]
"""Refuses a value; the text says where it stands."""


def about_study(results: Any) -> bool:
    """Whether these are results of a study."""
    return isinstance(results, Mapping) and results.get("kind") == "study"


def validate_study(study: Any, source: str = RESULTS_FILE) -> dict[str, Any]:
    """A copy of `study` with every optional part present; `source` names the file in messages."""
    if not about_study(study):
        raise ArtifactError(f"{source}: key kind is not 'study'; give the results.json of a study")
    version = study.get("schema")
    if version != SCHEMA:
        raise ArtifactError(
            f"{source}: key schema is {version!r}, this version of bertvision reads {SCHEMA}; "
            "make the report with the version that wrote it"
        )
    checked = {**_REST, **{key: value for key, value in study.items() if value is not None}}
    whole = {"bertvision": _text, "created": _text, "headline": _text, "title": _text, "commit": _text}
    whole |= {"command": _text, "lede": _texts, "facts": _each(_FACT), "environment": _mapping}
    _fields(checked, source, whole | {"sections": _list})
    if not checked["sections"]:
        raise ArtifactError(f"{source}: key sections is empty; a study needs at least one")
    seen: set[str] = set()
    checked["sections"] = [_section(s, i, source, seen) for i, s in enumerate(checked["sections"])]
    return checked


def _section(section: Any, number: int, source: str, seen: set[str]) -> dict[str, Any]:
    where = f"{source}: section {number + 1}"
    _mapping(section, where)
    _fields(section, where, {"id": _text})
    where = f"{source}: section {section['id']!r}"
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", section["id"]):
        raise ArtifactError(f"{where}: its id should be of small letters, digits and hyphens")
    if section["id"] in seen:
        raise ArtifactError(f"{where}: the id occurs twice; ids of sections must differ")
    seen.add(section["id"])
    _fields(section, where, {"title": _text, "blocks": _list, "about?": _text, "short?": _text})
    for i, block in enumerate(section["blocks"]):
        here = f"{where}, block {i + 1}"
        _mapping(block, here)
        kind = block.get("type")
        if kind not in _BLOCKS:
            raise ArtifactError(f"{here}: type is {kind!r}; known types are {', '.join(_BLOCKS)}")
        here += f" ({kind})"
        _fields(block, here, _BLOCKS[kind])
        if kind in _WHOLE:
            _WHOLE[kind](block, here)
    return {"about": "", "short": section["title"], **section}


# ---- what a value must be


def _wrong(where: str, wanted: str, value: Any) -> ArtifactError:
    return ArtifactError(f"{where} should be {wanted}, not {value if value is None else repr(value)[:40]}")


def _text(value: Any, where: str) -> None:
    if not isinstance(value, str):
        raise _wrong(where, "a text", value)


def _flag(value: Any, where: str) -> None:
    if not isinstance(value, bool):
        raise _wrong(where, "true or false", value)


def _number(value: Any, where: str) -> None:
    if finite(value) is None:
        raise _wrong(where, "a number", value)


def _number_or_none(value: Any, where: str) -> None:
    if value is not None:
        _number(value, where)


def _list(value: Any, where: str) -> None:
    if not isinstance(value, list | tuple):
        raise _wrong(where, "a list", value)


def _mapping(value: Any, where: str) -> None:
    if not isinstance(value, Mapping):
        raise _wrong(where, "an object", value)


def _one_of(names: tuple[str, ...]) -> Check:
    def check(value: Any, where: str) -> None:
        if value not in names:
            raise _wrong(where, f"one of {', '.join(names)}", value)

    return check


def _many(check: Check, *, least: int = 0) -> Check:
    """A list of values that all pass."""

    def check_all(value: Any, where: str) -> None:
        _list(value, where)
        if len(value) < least:
            raise ArtifactError(
                f"{where} should hold {least} or more; leave the block out where there is nothing"
            )
        for i, one in enumerate(value):
            check(one, f"{where}[{i}]")

    return check_all


def _row_of(count: int) -> Check:
    """A list of so many numbers."""

    def check(value: Any, where: str) -> None:
        _many(_number)(value, where)
        if len(value) != count:
            raise _wrong(where, f"{count} numbers", value)

    return check


def _fields(holder: Mapping[str, Any], where: str, fields: Mapping[str, Check]) -> None:
    """Keys that must be there, or may where the name ends in a question mark."""
    for name, check in fields.items():
        key = name.rstrip("?")
        if key in holder and not (name.endswith("?") and holder[key] is None):
            check(holder[key], f"{where}: {key}")
        elif not name.endswith("?"):
            raise ArtifactError(f"{where}: {key} is missing")


def _object(fields: Mapping[str, Check]) -> Check:
    def check(value: Any, where: str) -> None:
        _mapping(value, where)
        _fields(value, where, fields)

    return check


def _each(fields: Mapping[str, Check], *, least: int = 0) -> Check:
    return _many(_object(fields), least=least)


def _cell(value: Any, where: str) -> None:
    if not isinstance(value, str):
        _object({"text": _text, "sub?": _text, "tone?": _one_of(_TONES)})(value, where)


_texts = _many(_text)
_kind = _one_of(STUDY_KINDS)
_axis = _object({"label": _text, "log?": _flag, "unit?": _text})
_NAMED: dict[str, Check] = {"name": _text, "kind": _kind}
_DRAWN: dict[str, Check] = {"title": _text, "caption": _text}
_FACT: dict[str, Check] = {"name": _text, "value": _text, "note": _text}
_BLOCKS: dict[str, dict[str, Check]] = {
    "table": {
        "caption": _text,
        "columns": _each({"name": _text, "align": _one_of(_ALIGNS), "group?": _text}, least=1),
        "rows": _each({"cells": _many(_cell), "strong?": _flag, "kind?": _kind}),
    },
    "lines": _DRAWN
    | {"x": _axis, "y": _axis}
    | {
        "series": _each(
            _NAMED | {"points": _many(_row_of(2)), "band?": _many(_row_of(3)), "dashed?": _flag}, least=1
        )
    },
    "scatter": _DRAWN
    | {"x": _axis, "y": _axis, "front?": _flag, "lines_at?": _each({"y": _number, "label": _text})}
    | {
        "points": _each(
            {"x": _number, "y": _number, "label": _text, "kind": _kind, "name?": _text}
            | {"low?": _number, "high?": _number},
            least=1,
        )
    },
    "bars": _DRAWN
    | {"y": _axis, "groups": _many(_text, least=1)}
    | {"series": _each(_NAMED | {"values": _many(_number_or_none)}, least=1)},
    "histogram": _DRAWN
    | {"x": _axis, "edges": _many(_number, least=2)}
    | {"series": _each(_NAMED | {"counts": _many(_number)}, least=1)},
    "intervals": _DRAWN
    | {"unit": _text}
    | {"rows": _each({"label": _text, "difference": _number, "low": _number, "high": _number}, least=1)},
    "text": {"paragraphs": _texts},
    "list": {"items": _texts},
    "code": {"lines": _texts},
    "examples": {
        "items": _each(
            {"question": _text, "context": _text, "gold": _texts}
            | {"answers": _each({"name": _text, "text": _text, "right": _flag})}
        )
    },
}


# ---- what must hold between the parts of a block


def _as_many(block: Mapping[str, Any], where: str, rows: str, key: str, wanted: int, of: str) -> None:
    for i, row in enumerate(block[rows]):
        if len(row[key]) != wanted:
            raise ArtifactError(
                f"{where}: {rows}[{i}] has {len(row[key])} {key}, but there are {wanted} {of}"
            )


def _check_table(block: Mapping[str, Any], where: str) -> None:
    _as_many(block, where, "rows", "cells", len(block["columns"]), "columns")


def _check_bars(block: Mapping[str, Any], where: str) -> None:
    _as_many(block, where, "series", "values", len(block["groups"]), "groups")


def _check_histogram(block: Mapping[str, Any], where: str) -> None:
    _as_many(block, where, "series", "counts", len(block["edges"]) - 1, "bins between the edges")
    if any(low >= high for low, high in pairwise(block["edges"])):
        raise ArtifactError(f"{where}: edges should grow from each to the next")


def _check_logs(block: Mapping[str, Any], where: str) -> None:
    """A logarithm of zero has no place on an axis."""
    drawn = block.get("points") or [p for series in block["series"] for p in series["points"]]
    for i, axis in enumerate("xy"):
        values = [point[axis] if isinstance(point, Mapping) else point[i] for point in drawn]
        if block[axis].get("log") and values and min(values) <= 0:
            raise ArtifactError(
                f"{where}: {axis} has a log axis and the value {min(values):g}; leave the point out"
            )


_WHOLE: dict[str, Check] = {
    "table": _check_table,
    "bars": _check_bars,
    "histogram": _check_histogram,
    "lines": _check_logs,
    "scatter": _check_logs,
}
