"""A report as one HTML file: sections of a few kinds of blocks, rendered by page.html.j2.

Nothing is fetched, nothing is needed but a browser: styles and figures are inline, and the small script only adds
sorting to tables that are complete without it. Text of the user's data is escaped by the template. What the reports
say is in run.py and sweep.py; a new kind of block is a class here and a branch of the template.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import ClassVar

from bertvision import words
from bertvision._version import __version__


@dataclass(frozen=True)
class Cell:
    text: str
    value: float | None = None
    """What the column sorts by; None sorts last."""
    note: str = ""
    """A second, smaller line."""
    tone: str = ""
    """ "gain", "loss", "level" or nothing."""


@dataclass(frozen=True)
class Column:
    title: str
    group: str = ""
    """Columns side by side with one group have a common title above theirs."""
    about: str = ""
    """Shown where the pointer rests on the title."""
    text: bool = False
    """Whether it holds words, which stand on the left and may wrap."""


@dataclass(frozen=True)
class Row:
    label: str
    cells: Sequence[Cell]
    kind: str = ""
    """Of a system: draws its mark."""
    note: str = ""
    best: bool = False

    @property
    def parts(self) -> list[str]:
        """The label, cut where a line may break: adapter:size=64,lr=0.001 behind its colon and its commas."""
        return re.split(r"(?<=[:,])(?=\S)", self.label)


@dataclass(frozen=True)
class Table:
    block: ClassVar[str] = "table"
    first: str
    """Title of the first column, which holds the rows' labels."""
    columns: Sequence[Column]
    rows: Sequence[Row]
    wide: bool = False
    """Whether it takes the whole width and can be sorted."""

    def filled(self) -> "Table":
        """Without the columns in which no row has anything."""
        unknown = ("", words.UNKNOWN)
        kept = [
            i for i in range(len(self.columns)) if any(row.cells[i].text not in unknown for row in self.rows)
        ]
        rows = [replace(row, cells=[row.cells[i] for i in kept]) for row in self.rows]
        return replace(self, columns=[self.columns[i] for i in kept], rows=rows)

    @property
    def groups(self) -> list[tuple[str, int]]:
        """Common titles with the number of columns below each; none where no column has one."""
        found = [(title, len(list(own))) for title, own in groupby(self.columns, key=lambda c: c.group)]
        return found if any(title for title, _ in found) else []

    @property
    def edges(self) -> set[int]:
        """Where a group begins."""
        sizes = [size for _, size in self.groups]
        return {sum(sizes[:i]) for i in range(len(sizes))}


@dataclass(frozen=True)
class Figure:
    svg: str
    title: str
    caption: str


@dataclass(frozen=True)
class Figures:
    block: ClassVar[str] = "figures"
    figures: Sequence[Figure]
    small: bool = False


@dataclass(frozen=True)
class Notes:
    block: ClassVar[str] = "notes"
    notes: Sequence[str]


@dataclass(frozen=True)
class Lists:
    """Lists of names and values, side by side."""

    block: ClassVar[str] = "lists"
    lists: Sequence[tuple[str, Sequence[tuple[str, str]]]]


@dataclass(frozen=True)
class Code:
    block: ClassVar[str] = "code"
    text: str


@dataclass(frozen=True)
class Example:
    """An example with what is true and what two systems say of it."""

    texts: Sequence[str]
    pieces: Sequence[tuple[str, str]]
    """The context in order: text and the marks it wears ("truth", "head", "snapshot", several or none)."""
    answers: Sequence[tuple[str, str, bool | None]]
    """Who says what, and whether it is correct, where that can be said."""


@dataclass(frozen=True)
class Examples:
    block: ClassVar[str] = "examples"
    examples: Sequence[Example]


@dataclass(frozen=True)
class Section:
    id: str
    title: str
    blocks: Sequence[Table | Figures | Notes | Lists | Code | Examples]
    about: str = ""

    @property
    def pair(self) -> bool:
        """Whether its blocks are one figure and one table, which stand side by side where there is room."""
        first, *others = self.blocks
        alone = isinstance(first, Figures) and len(first.figures) == 1
        return alone and len(others) == 1 and isinstance(others[0], Table)

    @property
    def filled(self) -> bool:
        return any(not isinstance(block, Figures) or block.figures for block in self.blocks)


@dataclass(frozen=True)
class Fact:
    """One of the large figures under the headline."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Page:
    headline: str
    eyebrow: Sequence[str]
    """What report it is, in a small line above the headline."""
    sentences: Sequence[str]
    facts: Sequence[Fact]
    sections: Sequence[Section]
    footer: str
    version: str = field(default=__version__)


def render(page: Page) -> str:
    """The whole page as text."""
    sections = [section for section in page.sections if section.filled]
    return words.template(Path(__file__).with_name("page.html.j2"), escape=True).render(
        page=page, sections=sections
    )


def drawn(*figures: tuple[str | None, str, str]) -> Figures:
    """Those of the figures (SVG, title, caption) that there was something to draw of."""
    return Figures([Figure(svg, title, caption) for svg, title, caption in figures if svg is not None])


def dated(created: str) -> str:
    """An ISO time as people write it; another text as it is."""
    try:
        when = datetime.fromisoformat(created)
    except ValueError:
        return created
    return f"{when.day} {when:%B %Y, %H:%M} {when.tzname() or ''}".strip()
