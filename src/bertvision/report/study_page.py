"""The report of a study: one HTML file of sections, in the look of the report of a run.

A study is a mapping of sections and blocks (study_schema.py); this turns each block into what the template shows.
Nothing is computed here: every number was in the blocks. Below a figure stand the numbers it was drawn from.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from bertvision.artifacts import write_text
from bertvision.report import rows, study_figures, words
from bertvision.report.html import dated, page
from bertvision.report.study_figures import Sketch
from bertvision.report.study_scatter import scatter
from bertvision.report.study_schema import validate_study
from bertvision.report.study_tables import Table, numbers_of, shown_table

__all__ = ["render_study", "summary_study", "write_study_report"]

_DRAWN: dict[str, Callable[[Mapping[str, Any], str], list[Sketch]]] = {
    "lines": study_figures.lines,
    "scatter": scatter,
    "bars": study_figures.bars,
    "histogram": study_figures.histogram,
    "intervals": study_figures.intervals,
}
_MARKS = ("head", "snapshot")
"""How the first two answers to a question are underlined in its text."""


@dataclass(frozen=True)
class Figure:
    title: str
    caption: str
    sketches: list[Sketch]
    numbers: Table

    @property
    def wide(self) -> bool:
        """Whether it takes the whole width."""
        return self.sketches[0].size == "wide"


@dataclass(frozen=True)
class Part:
    """Something of a section: figures side by side, a table, or words."""

    type: str
    figures: list[Figure] = field(default_factory=list)
    table: Table | None = None
    texts: list[str] = field(default_factory=list)
    examples: list[dict[str, Any]] = field(default_factory=list)


def write_study_report(study: Mapping[str, Any], path: Path) -> None:
    """Render `study` and put the page at `path`; an older report stays whole until the new one is."""
    write_text(path, render_study(study))


def summary_study(study: Mapping[str, Any]) -> str:
    """The headline alone, for the command line."""
    return validate_study(study)["headline"]


def render_study(study: Mapping[str, Any]) -> str:
    """The whole page as text."""
    checked = validate_study(study)
    sections = [
        {**section, "about": prose(section["about"]), "parts": _parts(section)}
        for section in checked["sections"]
    ]
    return page(
        "study.html.j2",
        study=checked,
        created=dated(checked["created"]),
        lede=[prose(sentence) for sentence in checked["lede"]],
        sections=sections,
        environment=_environment(checked["environment"]),
    )


def prose(text: str) -> Any:
    """A text for the page: escaped, with `code` set as such."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _parts(section: Mapping[str, Any]) -> list[Part]:
    found: list[Part] = []
    for i, block in enumerate(section["blocks"]):
        kind = block["type"]
        if kind in _DRAWN:
            sketches = _DRAWN[kind](block, f"{section['id']}-{i}")
            figure = Figure(block["title"], block["caption"], sketches, numbers_of(block))
            found.append(Part("figures", figures=[figure]))
        elif kind == "table":
            found.append(Part("table", table=shown_table(block)))
        elif kind == "examples":
            found.append(Part("examples", examples=[_example(item) for item in block["items"]]))
        elif kind == "code":
            found.append(Part("code", texts=["\n".join(block["lines"])]))
        else:
            texts = block["paragraphs" if kind == "text" else "items"]
            found.append(Part(kind, texts=[prose(text) for text in texts]))
    return _side_by_side(found)


def _side_by_side(parts: Sequence[Part]) -> list[Part]:
    """Small figures that follow each other share a grid; a wide one keeps its place alone."""
    joined: list[Part] = []
    small = lambda part: part.type == "figures" and not part.figures[0].wide  # noqa: E731
    for together, some in groupby(parts, key=small):
        if together:
            joined.append(Part("figures", figures=[figure for part in some for figure in part.figures]))
        else:
            joined += some
    return joined


def _example(item: Mapping[str, Any]) -> dict[str, Any]:
    answers = list(zip(item["answers"], [*_MARKS, *[""] * len(item["answers"])], strict=False))
    marks = [(text, "gold") for text in item["gold"]]
    marks += [(answer["text"], mark) for answer, mark in answers if mark]
    return {
        "question": item["question"],
        "pieces": rows.marked(item["context"], marks),
        "gold": list(dict.fromkeys(item["gold"])),
        "answers": [{**answer, "mark": mark} for answer, mark in answers],
    }


def _environment(environment: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Names and values; what is an object itself becomes a list of its own."""
    plain = [
        (_spaced(key), _told(value)) for key, value in environment.items() if not isinstance(value, Mapping)
    ]
    nested = [
        (_spaced(key), [(_spaced(name), _told(one)) for name, one in value.items()])
        for key, value in environment.items()
        if isinstance(value, Mapping) and value
    ]
    return [*([("Machine and versions", plain)] if plain else []), *nested]


def _spaced(key: Any) -> str:
    return str(key).replace("_", " ")


def _told(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_told, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return words.count(value) if isinstance(value, int) and abs(value) >= 10_000 else words.plain(value)
