"""What a page is made of (sections, tables, figures), and the tables: a row for each system.

A column is a title and a function that gives its cell. A column in which no row has anything is left out, so the lists
below name all that may be known.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

from bertvision import words
from bertvision.report import figures
from bertvision.report.drawing import Figure
from bertvision.report.results import System, View

_MOST_METRICS = 6
"""Metrics that the first table has room for; of more it shows those that systems are compared by."""
_DIFFERENCES = (
    "Differences are system minus snapshot on the same examples, mean over seeds, with 95 % bootstrap intervals over "
    "examples, which are not widened for the number of heads compared. An interval that contains zero means that this "
    "run cannot separate the two."
)
_CONTROLS = (
    "A control reads the last state only: what a head gains beyond it is what reading all layers is worth."
)
_COSTS = "Parameters are those that are trained; FLOPs are spent on top of the encoder; times are wall-clock seconds."


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
    cell: Callable[[Any], Cell]
    """The cell of a row's system or data."""
    group: str = ""
    """Columns side by side with one group have a common title above theirs."""
    about: str = ""
    """Shown where the pointer rests on the title."""
    text: bool = False
    """Whether it holds words, which stand on the left and may wrap."""


@dataclass(frozen=True)
class Row:
    label: str
    kind: str = ""
    """Of a system: draws its mark."""
    note: str = ""
    best: bool = False
    cells: Sequence[Cell] = ()

    @property
    def parts(self) -> list[str]:
        """The label, cut where a line may break: adapter:size=64,lr=0.001 behind its colon and its commas."""
        return re.split(r"(?<=[:,])(?=\S)", self.label)


@dataclass(frozen=True)
class Table:
    first: str
    """Title of the first column, which holds the rows' labels."""
    columns: Sequence[Column]
    rows: Sequence[Row]
    wide: bool = False
    """Whether it takes the whole width and can be sorted."""

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
class Section:
    """A part of the page, its blocks in the order of the fields; one with nothing in it is left out."""

    id: str
    title: str
    about: str = ""
    code: str = ""
    figures: Sequence[Figure] = ()
    small: bool = False
    """Whether the figures are small ones."""
    table: Table | None = None
    notes: Sequence[str] = ()
    examples: Sequence[dict[str, Any]] = ()
    lists: Sequence[tuple[str, Sequence[tuple[str, str]]]] = ()
    """Titled lists of names and values, side by side."""

    @property
    def pair(self) -> bool:
        """Whether it is one figure and one table, which stand side by side where there is room."""
        return len(self.figures) == 1 and self.table is not None

    @property
    def filled(self) -> bool:
        return any((self.code, self.figures, self.table, self.notes, self.examples, self.lists))


def number(write: Callable[[Any], str], value: Any, note: str = "") -> Cell:
    """A cell that sorts by its number, empty where there is none."""
    return Cell("" if value is None else write(value), words.finite(value), note)


def table(
    first: str, columns: Sequence[Column], rows: Iterable[tuple[Row, Any]], *, wide: bool = False
) -> Table | None:
    """Fill the rows, each from its own subject, without the columns that stay empty; None where all do."""
    made = [(row, [column.cell(subject) for column in columns]) for row, subject in rows]
    empty = ("", words.UNKNOWN)
    kept = [i for i in range(len(columns)) if any(cells[i].text not in empty for _, cells in made)]
    filled = [replace(row, cells=[cells[i] for i in kept]) for row, cells in made]
    return Table(first, [columns[i] for i in kept], filled, wide) if kept else None


def _table(
    view: View, columns: Sequence[Column], systems: Sequence[System], *, wide: bool = False
) -> Table | None:
    rows: list[tuple[Row, System]] = []
    for system in systems:
        best = system is view.head
        # A run with several snapshots chooses a head on each; the best of them is the chosen one.
        more = "chosen on dev" if best else "best of its snapshot on dev" if system["best"] else ""
        note = ", ".join(filter(None, (system["kind"], more)))
        rows.append((Row(view.name(system), system["kind"], note, best), system))
    return table("System", columns, rows, wide=wide)


def _metrics(view: View, names: Iterable[str], group: str = "", *, versus: bool = False) -> list[Column]:
    """A column for each metric: the score, or with `versus` the difference to the snapshot."""
    columns: list[Column] = []
    for name in names:
        facts = view.about(name)
        about = "; ".join(filter(None, (facts["about"], "" if facts["higher"] else "lower is better")))
        cell = partial(_difference if versus else _score, view, name)
        columns.append(Column(view.title(name), cell, group, about))
    return columns


def _score(view: View, name: str, system: System) -> Cell:
    value, sd = view.mean(system, name), words.finite(view.score(system, name).get("sd"))
    return Cell(view.number(value, name), value, "" if sd is None else f"± {view.number(sd, name)}")


def _difference(view: View, name: str, system: System) -> Cell:
    found = view.difference(system, name)
    if found is None:
        return Cell("" if view.versus(system) is None else words.UNKNOWN)
    size, ends = view.difference_text(found, name)
    return Cell(size, found["difference"], ends, view.verdict(found, name))


def _p_value(system: System) -> Cell:
    return number(words.p_value, words.finite(system["versus"].get("mcnemar_p")))


def _value(name: str, system: System) -> Cell:
    return number(words.plain, system["values"].get(name))


def _parameters(system: System) -> Cell:
    own, total = words.finite(system["parameters"]), words.finite(system["total"])
    more = f"{words.count(total)} in all" if own is not None and total is not None and total > own else ""
    return number(words.count, own, more)


def _shown(view: View) -> list[str]:
    """The metrics of the first table."""
    names = list(view.results["metrics"])
    return names if len(names) <= _MOST_METRICS else (view.compared or names)[:_MOST_METRICS]


def scores(view: View) -> Section:
    metrics = _metrics(view, _shown(view), "metrics")
    difference = partial(_difference, view, view.metric)
    columns = [
        *metrics,
        *(Column(name, partial(_value, name), "values") for name in view.varied),
        Column(view.title(), difference, "against snapshot", "difference with its 95 % interval"),
        Column("parameters", _parameters, "cost"),
        Column("of encoder", lambda s: number(words.percent, s["percent"]), "cost"),
        Column("FLOPs/token", lambda s: number(words.compact, s["flops_per_token"]), "cost"),
        Column("time", lambda s: number(words.duration, s["seconds"]), "cost"),
        Column("epochs", lambda s: number(words.plain, s["epochs"])),
        Column("status", lambda s: Cell(s["status"] or ""), text=True),
    ]
    about = "Nothing was tuned or chosen on this split."
    if view.split != "test":
        about = "The head was chosen on this same split, and so was what is tuned: these scores flatter."
    spread = any(view.score(system).get("sd") is not None for system in view.systems)
    notes = {
        **{f"{column.title}: {column.about}.": column.about for column in metrics},
        _DIFFERENCES: view.compared,
        "Scores of several seeds are means; ± is one standard deviation.": spread,
        _CONTROLS: view.of_kind("control"),
        _COSTS: any(system["parameters"] for system in view.systems),
    }
    return Section(
        *("scores", f"Scores on {view.split}", about),
        table=_table(view, columns, view.systems, wide=True),
        notes=[text for text, applies in notes.items() if applies],
    )


def differences(view: View) -> Section:
    columns = [
        *_metrics(view, view.compared, versus=True),
        Column("p", _p_value, about="McNemar’s exact test of the first seed"),
    ]
    drawn = figures.differences(view)
    found = [system for system in view.systems if drawn and view.versus(system) is not None]
    about = (
        "Every system answers the same examples as its snapshot, so the comparison is paired; p is McNemar’s."
    )
    table = _table(view, columns, found)
    return Section("differences", "Is the difference real?", about, figures=drawn, table=table)


def seeds(view: View) -> Section:
    """Interval and seeds of every system whose metric has them."""
    found = [s for s in view.systems if view.score(s).get("interval") or view.score(s).get("per_seed")]
    seeds = list(dict.fromkeys(seed for s in found for seed in view.score(s).get("per_seed") or {}))

    def interval(system: System) -> Cell:
        return Cell(" … ".join(view.number(end) for end in view.score(system).get("interval") or []))

    def of_seed(seed: str, system: System) -> Cell:
        return number(view.number, (view.score(system).get("per_seed") or {}).get(seed))

    columns = [
        *_metrics(view, [view.metric]),
        Column("95 % interval", interval),
        *(Column(f"seed {seed}", partial(of_seed, seed)) for seed in seeds),
    ]
    about = f"{view.title()} on {view.split}: intervals are over examples, of the mean over seeds."
    return Section("seeds", "Intervals and seeds", about, table=_table(view, columns, found))


def every_metric(view: View) -> Section:
    names = list(view.results["metrics"])
    systems = view.systems if len(names) > len(_shown(view)) else []
    table = _table(view, _metrics(view, names), systems, wide=True)
    return Section("metrics", "Every metric", table=table)
