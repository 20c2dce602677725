"""A report as one HTML file: sections of a few kinds of blocks, rendered by page.html.j2.

Nothing is fetched, nothing is needed but a browser: styles and figures are inline, and the small script only adds
sorting to tables that are complete without it. Text of the user's data is escaped by the template. What the reports
say is in run.py and sweep.py; a new kind of block is a class here and a branch of the template.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bertvision._version import __version__
from bertvision.report import words

if TYPE_CHECKING:
    from jinja2 import Template

__all__ = [
    "Cell", "Code", "Column", "Example", "Examples", "Fact", "Figure", "Figures", "Lists", "Notes", "Page", "Row",
    "Section", "Table", "dated", "drawn", "lines", "render", "template",
]  # fmt: skip

_HIDDEN = {"profiles", "checkpoint_seconds", "activation_gb", "log_every", "accumulate", "classes", "keep"}
"""Settings that no score depends on, or that are shown elsewhere."""


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
    return template("page.html.j2", escape=True).render(page=page, sections=sections)


def template(name: str, *, escape: bool) -> "Template":
    """A template of this folder: `escape` for HTML; `inline` keeps a text on its line and out of Markdown's tables."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=escape,  # explicit: jinja's own guess goes by the file ending and would miss ".j2"
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["svg"] = Markup
    environment.filters["inline"] = lambda text: re.sub(r"[<>|`\r\n]+", " ", str(text)).strip()
    return environment.get_template(name)


def drawn(*figures: tuple[str | None, str, str]) -> Figures:
    """Those of the figures (SVG, title, caption) that there was something to draw of."""
    return Figures([Figure(svg, title, caption) for svg, title, caption in figures if svg is not None])


def lines(facts: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, str]]:
    """Names and values of settings and costs as text; what is not known is left out."""
    for key, value in facts.items():
        name = f"{before}{key}".replace("_", " ")
        if value in (None, "", (), []) or key in _HIDDEN:
            continue
        if isinstance(value, Mapping):
            yield from lines(value, f"{name} ")
        elif key == "fingerprint":
            yield name, str(value)[:16]  # enough to recognise it; results.json holds the whole
        elif key.endswith("seconds"):
            yield name, words.duration(value)
        else:
            yield name, words.plain(value)


def dated(created: str) -> str:
    """An ISO time as people write it; another text as it is."""
    try:
        when = datetime.fromisoformat(created)
    except ValueError:
        return created
    return f"{when.day} {when:%B %Y, %H:%M} {when.tzname() or ''}".strip()
