"""The tables of a report: a row for each system; a column is a title and a function that gives its cell.

A column without anything in it is left out, so the lists below name all that may be known.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from bertvision import words
from bertvision.report import figures, space
from bertvision.report.page import Cell, Column, Notes, Row, Section, Table, drawn
from bertvision.report.results import System, View

Columns = list[tuple[Column, Callable[[System], Cell]]]

_MOST_METRICS = 6
"""Metrics that the first table has room for; of more it shows those that systems are compared by."""
_NOTES: tuple[tuple[Callable[[View], Any], str], ...] = (
    (
        lambda view: view.compared,
        "Differences are system minus snapshot on the same examples, mean over seeds, with 95 % bootstrap intervals "
        "over examples, which are not widened for the number of heads compared. An interval that contains zero means "
        "that this run cannot separate the two.",
    ),
    (
        lambda view: any(view.score(system).get("sd") is not None for system in view.systems),
        "Scores of several seeds are means; ± is one standard deviation.",
    ),
    (
        lambda view: view.of_kind("control"),
        "A control reads the last state only: what a head gains beyond it is what reading all layers is worth.",
    ),
    (
        lambda view: any(system["parameters"] for system in view.systems),
        "Parameters are those that are trained; FLOPs are spent on top of the encoder; times are wall-clock seconds.",
    ),
)
"""Notes below the first table, and when they apply."""


def _table(view: View, columns: Columns, systems: Sequence[System], *, wide: bool = False) -> list[Table]:
    """The table without the columns in which no system has anything; none where no column is left."""
    rows = []
    for system in systems:
        best = system is view.head
        # A run with several snapshots chooses a head on each; the best of them is the chosen one.
        more = "chosen on dev" if best else "best of its snapshot on dev" if system["best"] else ""
        note = ", ".join(filter(None, (system["kind"], more)))
        cells = [cell(system) for _, cell in columns]
        rows.append(Row(view.name(system), cells, system["kind"], note, best))
    table = Table("System", [column for column, _ in columns], rows, wide).filled()
    return [table] if table.columns else []


def _metrics(view: View, names: Iterable[str], group: str = "", *, versus: bool = False) -> Columns:
    """A column for each metric: the score, or with `versus` the difference to the snapshot."""
    cell = _difference if versus else _score
    columns: Columns = []
    for name in names:
        abouts = (view.results["metrics"][name].get("about"), "" if view.higher(name) else "lower is better")
        columns.append(
            (Column(view.title(name), group, "; ".join(filter(None, abouts))), partial(cell, view, name))
        )
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


def _number(write: Callable[[Any], str], value: Any, note: str = "") -> Cell:
    return Cell(
        "" if value is None else write(value), words.finite(float(value) if value is True else value), note
    )


def _parameters(system: System) -> Cell:
    own, total = words.finite(system["parameters"]), words.finite(system["total"])
    more = f"{words.count(total)} in all" if own is not None and total is not None and total > own else ""
    return _number(words.count, own, more)


def _shown(view: View) -> list[str]:
    """The metrics of the first table."""
    names = list(view.results["metrics"])
    return names if len(names) <= _MOST_METRICS else (view.compared or names)[:_MOST_METRICS]


def scores(view: View) -> Section:
    metrics = _metrics(view, _shown(view), "metrics")
    columns: Columns = [
        *metrics,
        *(
            (Column(name, "values"), lambda s, name=name: _number(words.plain, s["values"].get(name)))
            for name in space.names(view)
        ),
        (
            Column(view.title(), "against snapshot", "difference with its 95 % interval"),
            partial(_difference, view, view.metric),
        ),
        (Column("parameters", "cost"), _parameters),
        (Column("of encoder", "cost"), lambda s: _number(words.percent, s["percent"])),
        (Column("FLOPs/token", "cost"), lambda s: _number(words.compact, s["flops_per_token"])),
        (Column("time", "cost"), lambda s: _number(words.duration, s["seconds"])),
        (Column("epochs"), lambda s: _number(words.plain, s["epochs"])),
        (Column("status", text=True), lambda s: Cell(s["status"] or "")),
    ]
    about = "Nothing was tuned or chosen on this split."
    if view.split != "test":
        about = "The head was chosen on this same split, and so was what is tuned: these scores flatter."
    abouts = [f"{column.title}: {column.about}." for column, _ in metrics if column.about]
    notes = Notes([*abouts, *(text for known, text in _NOTES if known(view))])
    table = _table(view, columns, view.systems, wide=True)
    return Section("scores", f"Scores on {view.split}", [*table, notes], about)


def differences(view: View) -> Section:
    columns = _metrics(view, view.compared, versus=True)
    p_value = Column("p", about="McNemar’s exact test of the first seed")
    columns.append((p_value, lambda s: _number(words.p_value, words.finite(s["versus"].get("mcnemar_p")))))
    table = _table(view, columns, [system for system in view.systems if view.versus(system) is not None])
    title = f"Difference to the snapshot in {view.title()}"
    caption = (
        "Right of zero is more than the snapshot on the same examples. A line across zero settles nothing."
    )
    figure = drawn((figures.differences(view), title, caption))
    about = (
        "Every system answers the same examples as its snapshot, so the comparison is paired; p is McNemar’s."
    )
    return Section(
        "differences", "Is the difference real?", [figure, *table] if figure.figures else [], about
    )


def seeds(view: View) -> Section:
    """Interval and seeds of every system whose metric has them."""
    found = [s for s in view.systems if view.score(s).get("interval") or view.score(s).get("per_seed")]
    seeds = list(dict.fromkeys(seed for s in found for seed in view.score(s).get("per_seed") or {}))

    def interval(system: System) -> Cell:
        return Cell(" … ".join(view.number(end) for end in view.score(system).get("interval") or []))

    def of_seed(seed: str, system: System) -> Cell:
        return _number(view.number, (view.score(system).get("per_seed") or {}).get(seed))

    columns: Columns = [
        *_metrics(view, [view.metric]),
        (Column("95 % interval"), interval),
        *((Column(f"seed {seed}"), partial(of_seed, seed)) for seed in seeds),
    ]
    about = f"{view.title()} on {view.split}: intervals are over examples, of the mean over seeds."
    return Section("seeds", "Intervals and seeds", _table(view, columns, found) if found else [], about)


def every_metric(view: View) -> Section:
    names = list(view.results["metrics"])
    table = _table(view, _metrics(view, names), view.systems, wide=True)
    return Section("metrics", "Every metric", table if len(names) > len(_shown(view)) else [])
