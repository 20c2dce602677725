"""What a page is made of (sections, tables, figures), and the tables: a row for each system.

A column is a title and a function that gives its cell. A column in which no row has anything is left out, so the lists
below name all that may be known.
"""

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
    text: str = ""
    value: float | None = None  # what the column sorts by; None sorts last
    note: str = ""  # a second, smaller line
    tone: str = ""  # "gain", "loss", "level" or nothing


@dataclass(frozen=True)
class Column:
    title: str
    cell: Callable[[Any], Cell]  # of a row's subject: a system, or the facts of a split
    group: str = ""  # columns side by side with one group have a common title above theirs
    about: str = ""  # shown where the pointer rests on the title
    text: bool = False  # whether it holds words, which stand on the left and may wrap


@dataclass(frozen=True)
class Row:
    label: str
    kind: str = ""  # of a system: draws its mark
    note: str = ""
    best: bool = False
    cells: Sequence[Cell] = ()


@dataclass(frozen=True)
class Table:
    first: str  # title of the first column, which holds the rows' labels
    columns: Sequence[Column]
    rows: Sequence[Row]
    wide: bool = False  # whether it takes the whole width and can be sorted

    @property
    def groups(self) -> list[tuple[str, int]]:
        """Common titles with the number of columns below each; none where no column has one."""
        found = [(title, len(list(own))) for title, own in groupby(self.columns, key=lambda c: c.group)]
        return found if any(title for title, _ in found) else []


@dataclass(frozen=True)
class Section:
    """A part of the page, its blocks in the order of the fields; one with nothing in it is left out."""

    id: str
    title: str
    about: str = ""
    code: str = ""
    figures: Sequence[Figure] = ()
    small: bool = False  # whether the figures are small ones
    table: Table | None = None
    notes: Sequence[str] = ()
    examples: Sequence[dict[str, Any]] = ()
    lists: Sequence[
        tuple[str, Sequence[tuple[str, str]]]
    ] = ()  # titled lists of names and values, side by side

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
    return Cell(found.text, found.size, found.ends, found.verdict)


def _parameters(system: System) -> Cell:
    own, total = words.finite(system["parameters"]), words.finite(system["total"]) or 0.0
    return number(words.count, own, f"{words.count(total)} in all" if own is not None and total > own else "")


def _shown(view: View) -> list[str]:
    """The metrics of the first table."""
    names = list(view.results["metrics"])
    return names if len(names) <= _MOST_METRICS else (view.compared or names)[:_MOST_METRICS]


def scores(view: View) -> Section:
    metrics = _metrics(view, _shown(view), "metrics")
    difference = partial(_difference, view, view.metric)
    columns = [
        *metrics,
        *(
            Column(name, lambda s, name=name: number(words.plain, s["values"].get(name)), "values")
            for name in view.varied
        ),
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
    notes = {
        **{f"{column.title}: {column.about}.": column.about for column in metrics},
        _DIFFERENCES: view.compared,
        "Scores of several seeds are means; ± is one standard deviation.": any(
            view.score(system).get("sd") is not None for system in view.systems
        ),
        _CONTROLS: view.of_kind("control"),
        _COSTS: any(system["parameters"] for system in view.systems),
    }
    table = _table(view, columns, view.systems, wide=True)
    applying = [text for text, applies in notes.items() if applies]
    return Section("scores", f"Scores on {view.split}", about, table=table, notes=applying)


def differences(view: View) -> Section:
    def p_value(system: System) -> Cell:
        return number(words.p_value, words.finite(system["versus"].get("mcnemar_p")))

    columns = [
        *_metrics(view, view.compared, versus=True),
        Column("p", p_value, about="McNemar’s exact test of the first seed"),
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

    def own(system: System, key: str) -> Any:
        return view.score(system).get(key) or {}

    found = [system for system in view.systems if own(system, "interval") or own(system, "per_seed")]
    names = dict.fromkeys(name for system in found for name in own(system, "per_seed"))
    columns = [
        *_metrics(view, [view.metric]),
        Column("95 % interval", lambda s: Cell(" … ".join(map(view.number, own(s, "interval"))))),
        *(
            Column(f"seed {name}", lambda s, name=name: number(view.number, own(s, "per_seed").get(name)))
            for name in names
        ),
    ]
    about = f"{view.title()} on {view.split}: intervals are over examples, of the mean over seeds."
    return Section("seeds", "Intervals and seeds", about, table=_table(view, columns, found))


def every_metric(view: View) -> Section:
    names = list(view.results["metrics"])
    systems = view.systems if len(names) > len(_shown(view)) else []
    return Section("metrics", "Every metric", table=_table(view, _metrics(view, names), systems, wide=True))
