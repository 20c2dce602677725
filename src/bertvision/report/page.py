"""The report of a run, whatever its task: one HTML file, rendered by page.html.j2 from what results.json holds.

Nothing is fetched, nothing is needed but a browser: styles and figures are inline, and the small script only adds
sorting to tables that are complete without it. Text of the user's data is escaped by the template.

A page is made of sections. A table's column is a title and a function that gives its cell; a column in which no row has
anything is left out, so the lists of columns name all that may be known.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from bertvision import words
from bertvision._version import __version__
from bertvision.artifacts import write_text
from bertvision.report import figures, space
from bertvision.report.figures import Figure
from bertvision.report.results import System, View, check

_MOST_CLASSES = 8
_TUNED = ("epochs", "lr", "schedule", "warmup", "batch_size", "policy")
"""The settings of a fine-tuning that decide how much a head can gain."""
_CONTEXT, _MARGIN = 640, 160
"""Characters up to which a context is shown whole, and those left around a mark in a longer one."""
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
    lists: Sequence[tuple[str, Sequence[tuple[str, str]]]] = ()  # titled names and values, side by side

    @property
    def filled(self) -> bool:
        return any((self.code, self.figures, self.table, self.notes, self.examples, self.lists))


def write_page(results: Mapping[str, Any], path: Path) -> None:
    write_text(path, render_run(results))


def render_run(results: Mapping[str, Any]) -> str:
    view = View(check(results))
    held = view.results
    created = str(held.get("created", ""))[:16].replace("T", " ") + " UTC"
    commit = f" at commit {held['commit'][:12]}" if held.get("commit") else ""
    whose = f"The chosen head and its snapshot on {view.split}; of several seeds the one that is best on dev."
    even = "Of the heads that mix hidden states; dashed: an even share."
    costs = [one for cost in figures.COSTS for one in figures.score_against_cost(view, cost)]
    learning = figures.finetune_curve(view) + figures.fit_curves(view)
    sections = [
        _systems(view),
        _differences(view),
        _seeds(view),
        Section("maps", "Where the good ones are", figures=space.heat_maps(view)[: space.MOST_MAPS]),
        Section("values", "Scores by value", figures=space.curves(view), small=True),
        Section("cost", "What quality costs", figures=costs),
        Section("details", "A closer look", whose, figures=figures.details(view)),
        Section("learning", "Learning curves", figures=learning),
        Section("layers", "Layer weights", even, figures=figures.layer_weights(view), small=True),
        _examples(view),
        _made(view),
    ]
    return words.template(Path(__file__).with_name("page.html.j2"), escape=True).render(
        version=__version__,
        headline=_headline(view),
        eyebrow=["report", str(held["encoder"].get("name", "")), created],
        sentences=_sentences(view),
        facts=_facts(view),
        sections=[section for section in sections if section.filled],
        footer=f"Written by bertvision {held.get('bertvision', '')}{commit} from results.json, {created}.",
    )


def headline(results: Mapping[str, Any]) -> str:
    return _headline(View(check(results)))


def _headline(view: View) -> str:
    head, split, title = view.head, view.split, view.title()
    if view.results["sweep"]:
        return space.headline(view)
    if head is None:
        first = view.systems[0]
        return f"{first['label']} reaches {title} {view.mean_text(first)} on {split}; no head was fitted."
    if found := view.difference(head):
        verb = {"gain": "beats", "loss": "falls behind", "level": "is level with"}[found.verdict]
        return f"{head['label']} {verb} its snapshot on {split}: {found.text} {title} (95 % interval {found.ends})."
    compared = "there is no snapshot to compare it with"
    if view.snapshot is not None:
        compared = f"its snapshot {view.mean_text(view.snapshot)}, without a paired interval"
    return f"{head['label']} reaches {title} {view.mean_text(head)} on {split}; {compared}."


def _sentences(view: View) -> list[str]:
    """What a fair reader asks next: the control, the ensemble, the trivial answer, how the snapshot was made."""
    if view.results["sweep"]:
        return space.sentences(view)
    said = []
    own = view.mean(view.head) if view.head else None
    for kind in ("control", "ensemble", "baseline"):
        system = view.best_on_dev(kind)
        if system and own is not None and (score := view.mean(system)) is not None:
            size = words.change(abs(own - score), percent=view.about()["percent"]).lstrip("+")
            reached = f"reaches {view.number(score)} on {view.split}"
            side = "below" if own > score else "above"
            said.append(f"The best {kind} on dev ({system['label']}) {reached}, {size} {side} the head.")
    made = view.results["finetune"]
    settings = ", ".join(" ".join(pair) for pair in words.lines({name: made.get(name) for name in _TUNED}))
    tuned = f"fine-tuned: {settings}" if made else "the encoder as it came"
    # A line may break after a plain hyphen, which would part 1.5e- from its 4.
    return [*said, f"The snapshot is {tuned}.".replace("e-", "e\u2011")]


def _facts(view: View) -> list[tuple[str, str, str]]:
    facts = [
        (f"{view.title()} on {view.split}, {name}", view.mean_text(system), str(system["label"]))
        for name, system in (("chosen head", view.head), ("its snapshot", view.snapshot))
        if system is not None
    ]
    if view.head is not None:
        size = f"{words.count(view.head['parameters'])} parameters in that head"
        facts.append(("of the encoder’s size", words.percent(view.head["percent"]), size))
    fit, times = view.results["fit"], {"fine-tuning": view.results["finetune"].get("seconds")}
    times |= {"encoding": fit.get("encode_seconds"), "fitting": fit.get("seconds")}
    if known := {name: time for name, raw in times.items() if (time := words.finite(raw)) is not None}:
        note = ", ".join(f"{name} {words.duration(time)}" for name, time in known.items())
        note += f"; states {words.plain(fit['states'])}" if fit.get("states") else ""
        facts.append(("training time", words.duration(sum(known.values())), note))
    return facts


def _examples(view: View) -> Section:
    """Examples on which the chosen head and its snapshot differ, with what each says marked in the context."""
    raw = view.results["examples"]
    right = [(one.get("head_right"), one.get("snapshot_right")) for one in raw]
    about = f"A random draw of {len(raw)} of the examples on {view.split} for which the two differ."
    wins, losses = right.count((True, False)), right.count((False, True))
    if wins or losses:
        about += f" The head alone is correct in {wins} of them, the snapshot alone in {losses}."
    return Section("examples", "Where head and snapshot differ", about, examples=list(map(_example, raw)))


def _example(raw: Mapping[str, Any]) -> dict[str, Any]:
    truth, context = raw.get("truth"), str(raw.get("context") or "")
    marks = [(gold, "truth") for gold in (truth if isinstance(truth, list) else [truth])]
    marks += [(raw.get(who), who) for who in ("snapshot", "head")]
    said = [(who, _answer(raw.get(who)), raw.get(f"{who}_right")) for who in ("head", "snapshot")]
    return {
        "texts": [str(text) for text in raw.get("texts") or []],
        "pieces": marked(context, [(str(text), name) for text, name in marks if text]) if context else [],
        "answers": [("truth", _answer(truth), None), *said],
    }


def _answer(value: Any) -> str:
    if isinstance(value, list):
        return " · ".join(dict.fromkeys(map(_answer, value))) or "no answer"
    if isinstance(value, float):
        return words.number(value, percent=False)
    return words.UNKNOWN if value is None else str(value) or "no answer"


def marked(context: str, marks: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """A context in pieces, each with the names of the texts it is part of; stretches without one are cut where long."""
    spans = []
    for text, name in marks:
        if found := re.search(rf"(?<!\w){re.escape(text)}(?!\w)", context):
            spans.append((found.start(), found.end(), name))
    cuts = sorted({0, len(context), *(cut for start, end, _ in spans for cut in (start, end))})
    pieces = []
    for start, end in pairwise(cuts):
        names = dict.fromkeys(name for a, b, name in spans if a <= start and end <= b)
        text = context[start:end]
        if not names and len(text) > 2 * _MARGIN and len(context) > _CONTEXT:
            text = f"{text[:_MARGIN]} … {text[-_MARGIN:]}"
        pieces.append((text, " ".join(names)))
    return pieces


def _made(view: View) -> Section:
    def length(facts: Mapping[str, Any]) -> Cell:
        windows, tokens = words.finite(facts.get("windows")), words.finite(facts.get("tokens"))
        return Cell(words.count(tokens / windows if tokens is not None and windows else None))

    held = view.results
    sizes = ("examples", "windows", "tokens")
    columns = [
        Column("Data", lambda facts: Cell(str(facts.get("name", ""))), text=True),
        *(Column(key, lambda facts, key=key: Cell(words.count(facts.get(key)))) for key in sizes),
        Column("tokens/window", length),
        Column("Labels", _labels, text=True),
    ]
    table = _table("Split", columns, [(Row(split), facts) for split, facts in held["data"].items()])
    own = held["details"].get(view.head["name"]) if view.head else None
    seeds = sorted({seed for system in view.systems for seed in system["seeds"] or []})
    groups = {
        "Task": held["task"],
        "Sweep": held["sweep"],
        "Tuned on dev": {key: value for key, value in (own or {}).items() if key not in figures.DETAILS},
        "Encoder": held["encoder"],
        "Fine-tuning": held["finetune"],
        "Fitting heads": held["fit"] | {"seeds": seeds},
        "Environment": {"bertvision": held.get("bertvision"), **held["environment"]},
    }
    lists = [(title, found) for title, facts in groups.items() if (found := list(words.lines(facts)))]
    return Section("run", "How it was made", code=str(held.get("command") or ""), table=table, lists=lists)


def _labels(facts: Mapping[str, Any]) -> Cell:
    """What the labels are: shares of classes, or the range of scores."""
    counts, scores = facts.get("counts"), facts.get("range")
    if counts:
        total = sum(counts.values()) or 1
        said = [f"{name} {100 * count / total:.0f} %" for name, count in list(counts.items())[:_MOST_CLASSES]]
        more = len(counts) - _MOST_CLASSES
        return Cell(", ".join(said) + (f" and {more} more classes" if more > 0 else ""))
    if scores:
        texts = [words.number(scores.get(key), percent=False) for key in ("low", "high", "mean", "spread")]
        return Cell("{} to {}, mean {} ± {}".format(*texts))
    return Cell(words.UNKNOWN)


# ---- tables


def _number(write: Callable[[Any], str], value: Any, note: str = "") -> Cell:
    """A cell that sorts by its number, empty where there is none."""
    return Cell("" if value is None else write(value), words.finite(value), note)


def _table(first: str, columns: Sequence[Column], rows: Iterable[tuple[Row, Any]]) -> Table | None:
    """Fill the rows, each from its own subject, without the columns that stay empty; None where all do."""
    made = [(row, [column.cell(subject) for column in columns]) for row, subject in rows]
    empty = ("", words.UNKNOWN)
    kept = [i for i in range(len(columns)) if any(cells[i].text not in empty for _, cells in made)]
    filled = [replace(row, cells=[cells[i] for i in kept]) for row, cells in made]
    return Table(first, [columns[i] for i in kept], filled) if kept else None


def _of_systems(view: View, columns: Sequence[Column], systems: Sequence[System]) -> Table | None:
    rows: list[tuple[Row, System]] = []
    for system in systems:
        best = system is view.head
        # A run with several snapshots chooses a head on each; the best of them is the chosen one.
        more = "chosen on dev" if best else "best of its snapshot on dev" if system["best"] else ""
        note = ", ".join(filter(None, (system["kind"], more)))
        rows.append((Row(view.name(system), system["kind"], note, best), system))
    return _table("System", columns, rows)


def _metrics(view: View, names: Iterable[str], *, versus: bool = False) -> list[Column]:
    """A column for each metric: the score, or with `versus` the difference to the snapshot."""
    columns: list[Column] = []
    for name in names:
        facts = view.about(name)
        about = "; ".join(filter(None, (facts["about"], "" if facts["higher"] else "lower is better")))
        cell = partial(_difference if versus else _score, view, name)
        columns.append(Column(view.title(name), cell, about))
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
    more = f"{words.count(total)} in all" if own is not None and total > own else ""
    return _number(words.count, own, more)


def _systems(view: View) -> Section:
    """Every system: what it is compared by and what it costs, then its other metrics."""
    names = list(view.results["metrics"])
    first, versus = view.compared or names, partial(_difference, view, view.metric)
    columns = [
        *(metrics := _metrics(view, first)),
        *(Column(name, lambda s, n=name: _number(words.plain, s["values"].get(n))) for name in view.varied),
        Column(f"{view.title()} vs snapshot", versus, "difference with its 95 % interval"),
        Column("parameters", _parameters),
        Column("of encoder", lambda s: _number(words.percent, s["percent"])),
        Column("FLOPs/token", lambda s: _number(words.compact, s["flops_per_token"])),
        Column("time", lambda s: _number(words.duration, s["seconds"])),
        Column("epochs", lambda s: _number(words.plain, s["epochs"])),
        Column("status", lambda s: Cell(s["status"] or ""), text=True),
        *_metrics(view, [name for name in names if name not in first]),
    ]
    about = "Nothing was tuned or chosen on this split."
    if view.split != "test":
        about = "The head was chosen on this same split, and so was what is tuned: these scores flatter."
    several = any(view.score(system).get("sd") is not None for system in view.systems)
    notes = {
        **{f"{column.title}: {column.about}.": column.about for column in metrics},
        _DIFFERENCES: view.compared,
        "Scores of several seeds are means; ± is one standard deviation.": several,
        _CONTROLS: view.of_kind("control"),
        _COSTS: any(system["parameters"] for system in view.systems),
    }
    table = _of_systems(view, columns, view.systems)
    wide = table and replace(table, wide=True)
    applying = [text for text, applies in notes.items() if applies]
    return Section("scores", f"Scores on {view.split}", about, table=wide, notes=applying)


def _differences(view: View) -> Section:
    def exact(system: System) -> Cell:
        return _number(words.p_value, words.finite(system["versus"].get("mcnemar_p")))

    columns = _metrics(view, view.compared, versus=True)
    columns.append(Column("p", exact, "McNemar’s exact test of the first seed"))
    known = [system for system in view.systems if view.versus(system) is not None]
    about = (
        "Every system answers the same examples as its snapshot, so the comparison is paired; p is McNemar’s."
    )
    table = _of_systems(view, columns, known if any(map(view.difference, known)) else [])
    return Section("differences", "Is the difference real?", about, table=table)


def _seeds(view: View) -> Section:
    def own(system: System, key: str) -> Any:
        return view.score(system).get(key) or {}

    found = [system for system in view.systems if own(system, "interval") or own(system, "per_seed")]
    names = dict.fromkeys(name for system in found for name in own(system, "per_seed"))
    columns = [
        *_metrics(view, [view.metric]),
        Column("95 % interval", lambda s: Cell(" … ".join(map(view.number, own(s, "interval"))))),
        *(
            Column(f"seed {name}", lambda s, name=name: _number(view.number, own(s, "per_seed").get(name)))
            for name in names
        ),
    ]
    about = f"{view.title()} on {view.split}: intervals are over examples, of the mean over seeds."
    return Section("seeds", "Intervals and seeds", about, table=_of_systems(view, columns, found))
