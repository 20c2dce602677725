"""The report of a run, whatever its task: what results.json holds decides what is said and drawn."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bertvision import words
from bertvision.artifacts import write_text
from bertvision.report import details, figures, page, space
from bertvision.report.examples import example
from bertvision.report.page import Cell, Column, Fact, Row, Section, drawn
from bertvision.report.results import System, View, check

__all__ = ["headline", "render_run", "write_page"]

_MOST_METRICS = 6
"""Metrics that the first table has room for; of more it shows those that systems are compared by."""
_MOST_WEIGHTS = 6
_MOST_CLASSES = 8
_TUNED = ("epochs", "lr", "schedule", "warmup", "batch_size", "policy")
"""The settings of a fine-tuning that decide how much a head can gain."""
_NOTES = (
    "Differences are system minus snapshot on the same examples, mean over seeds, with 95 % bootstrap intervals over "
    "examples, which are not widened for the number of heads compared. An interval that contains zero means that this "
    "run cannot separate the two.",
    "Scores of several seeds are means; ± is one standard deviation.",
    "A control reads the last state only: what a head gains beyond it is what reading all layers is worth.",
    "Parameters are those that are trained; FLOPs are spent on top of the encoder; times are wall-clock seconds.",
)


def write_page(results: Mapping[str, Any], path: Path) -> None:
    """Put the report at `path`; an older one stays whole until the new one is written."""
    write_text(path, render_run(results))


def render_run(results: Mapping[str, Any]) -> str:
    """The whole page as text."""
    view = View(check(results))
    held, created = view.results, page.dated(str(view.results.get("created", "")))
    commit = f" at commit {held['commit'][:12]}" if held.get("commit") else ""
    return page.render(
        page.Page(
            headline=_headline(view),
            eyebrow=["report", str(held["encoder"].get("name", "")), created],
            sentences=_sentences(view),
            facts=_facts(view),
            sections=[
                _scores(view),
                _differences(view),
                _seeds(view),
                *(space.sections(view) if view.results["sweep"] else []),
                *_figures(view),
                _examples(view),
                _every_metric(view),
                _made(view),
            ],
            footer=f"Written by bertvision {held.get('bertvision', '')}{commit} from results.json, {created}.",
        )
    )


def headline(results: Mapping[str, Any]) -> str:
    """The finding in one sentence."""
    return _headline(View(check(results)))


# ---- the top of the page


def _headline(view: View) -> str:
    head, split, title = view.head, view.split, view.title()
    if view.results["sweep"]:
        return space.headline(view)
    if head is None:
        first = view.systems[0]
        return f"{first['label']} reaches {title} {view.mean_text(first)} on {split}; no head was fitted."
    if found := view.difference(head):
        size, ends = view.difference_text(found)
        verb = {"gain": "beats", "loss": "falls behind", "level": "is level with"}[view.verdict(found)]
        return f"{head['label']} {verb} its snapshot on {split}: {size} {title} (95 % interval {ends})."
    compared = "there is no snapshot to compare it with"
    if view.snapshot is not None:
        compared = f"its snapshot {view.mean_text(view.snapshot)}, without a paired interval"
    return f"{head['label']} reaches {title} {view.mean_text(head)} on {split}; {compared}."


def _sentences(view: View) -> list[str]:
    """What a fair reader asks next: the control, the ensemble, the trivial answer, how the snapshot was made."""
    said = []
    if view.results["sweep"]:
        return space.sentences(view)
    for kind in ("control", "ensemble", "baseline"):
        system = view.best_on_dev(kind)
        own = view.mean(view.head) if view.head else None
        score = view.mean(system) if system else None
        if system is None or own is None or score is None:
            continue
        size = words.change(abs(own - score), percent=view.percent()).lstrip("+")
        place = (
            f"{size} {'below' if own > score else 'above'} the head"
            if own != score
            else "level with the head"
        )
        said.append(
            f"The best {kind} on dev ({system['label']}) reaches {view.number(score)} on {view.split}, {place}."
        )
    made = view.results["finetune"]
    settings = words.lines({name: made.get(name) for name in _TUNED})
    tuned = (
        f"fine-tuned: {', '.join(' '.join(pair) for pair in settings)}" if made else "the encoder as it came"
    )
    # A line may break after a plain hyphen, which would part 1.5e- from its 4.
    return [*said, f"The snapshot is {tuned}.".replace("e-", "e\u2011")]


def _facts(view: View) -> list[Fact]:
    facts = [
        Fact(f"{view.title()} on {view.split}, {name}", view.mean_text(system), str(system["label"]))
        for name, system in (("chosen head", view.head), ("its snapshot", view.snapshot))
        if system is not None
    ]
    if view.head is not None:
        size = f"{words.count(view.head['parameters'])} parameters in that head"
        facts.append(Fact("of the encoder’s size", words.percent(view.head["percent"]), size))
    fit, tuned = view.results["fit"], view.results["finetune"]
    times = (
        ("fine-tuning", tuned, "seconds"),
        ("encoding", fit, "encode_seconds"),
        ("fitting", fit, "seconds"),
    )
    known = {name: time for name, facts, key in times if (time := words.finite(facts.get(key))) is not None}
    if known:
        note = ", ".join(f"{name} {words.duration(time)}" for name, time in known.items())
        note += f"; states {words.plain(fit['states'])}" if fit.get("states") else ""
        facts.append(Fact("training time", words.duration(sum(known.values())), note))
    return facts


# ---- tables of systems


def _row(view: View, system: System, cells: Iterable[Cell], *, note: str = "") -> Row:
    best = system is view.head
    # A run with several snapshots chooses a head on each; the best of them is the chosen one.
    more = "chosen on dev" if best else "best of its snapshot on dev" if system["best"] else note
    return Row(
        view.name(system), list(cells), system["kind"], ", ".join(filter(None, (system["kind"], more))), best
    )


def _metric_columns(view: View, names: Iterable[str], group: str = "") -> list[Column]:
    abouts = {name: str(view.results["metrics"][name].get("about") or "") for name in names}
    lower = {name: "" if view.higher(name) else "lower is better" for name in abouts}
    return [Column(view.title(n), group, "; ".join(filter(None, (abouts[n], lower[n])))) for n in abouts]


def _metric_cell(view: View, system: System, name: str) -> Cell:
    value, sd = view.mean(system, name), words.finite(view.score(system, name).get("sd"))
    return Cell(view.number(value, name), value, "" if sd is None else f"± {view.number(sd, name)}")


def _difference_cell(view: View, system: System, name: str = "") -> Cell:
    found = view.difference(system, name)
    if found is None:
        return Cell("" if view.versus(system) is None else words.UNKNOWN)
    size, ends = view.difference_text(found, name)
    return Cell(size, found["difference"], ends, view.verdict(found, name))


def _value_cell(value: Any) -> Cell:
    if value is None:
        return Cell("")
    return Cell(words.plain(value), float(value) if isinstance(value, bool) else words.finite(value))


def _cost_cells(system: System) -> list[Cell]:
    own, total = words.finite(system["parameters"]), words.finite(system["total"])
    more = f"{words.count(total)} in all" if own is not None and total is not None and total > own else ""
    written = {"percent": words.percent, "flops_per_token": words.compact, "seconds": words.duration}
    cells = [Cell(write(system[key]), words.finite(system[key])) for key, write in written.items()]
    return [Cell(words.count(own), own, more), *cells]


def _shown(view: View) -> list[str]:
    """The metrics of the first table."""
    names = list(view.results["metrics"])
    return names if len(names) <= _MOST_METRICS else (view.compared or names)[:_MOST_METRICS]


def _scores(view: View) -> Section:
    names, made = _shown(view), view.results["finetune"]
    columns = _metric_columns(view, names, "metrics")
    varied = space.names(view) if view.results["sweep"] else []
    columns += [Column(name, "values") for name in varied]
    columns.append(Column(view.title(), "against snapshot", "difference with its 95 % interval"))
    columns += [Column(title, "cost") for title in ("parameters", "of encoder", "FLOPs/token", "time")]
    columns += [Column("epochs"), Column("status", text=True)]
    rate = " ".join(text for pair in words.lines({"lr": made.get("lr")}) for text in pair)
    rows = []
    for system in view.systems:
        scores = [_metric_cell(view, system, name) for name in names]
        cells = [*scores, *(_value_cell(system["values"].get(name)) for name in varied)]
        cells += [_difference_cell(view, system), *_cost_cells(system)]
        cells += [_value_cell(system["epochs"]), Cell(system["status"] or "")]
        rows.append(_row(view, system, cells, note=rate if system["kind"] == "snapshot" else ""))
    about = "Nothing was tuned or chosen on this split."
    if view.split != "test":
        about = "The head was chosen on this same split, and so was what is tuned: these scores flatter."
    abouts = [f"{column.title}: {column.about}." for column in columns[: len(names)] if column.about]
    blocks = [page.Table("System", columns, rows, wide=True).filled(), page.Notes([*abouts, *_NOTES])]
    return Section("scores", f"Scores on {view.split}", blocks, about)


def _differences(view: View) -> Section:
    systems = [system for system in view.systems if view.versus(system) is not None]
    columns = _metric_columns(view, view.compared)
    columns.append(Column("p", about="McNemar’s exact test of the first seed"))
    rows = []
    for system in systems:
        cells = [_difference_cell(view, system, name) for name in view.compared]
        p = words.finite(system["versus"].get("mcnemar_p"))
        rows.append(_row(view, system, [*cells, Cell(words.p_value(p), p)]))
    title = f"Difference to the snapshot in {view.title()}"
    caption = (
        "Right of zero is more than the snapshot on the same examples. A line across zero settles nothing."
    )
    figure = drawn((figures.differences(view), title, caption))
    about = (
        "Every system answers the same examples as its snapshot, so the comparison is paired; p is McNemar’s."
    )
    blocks = [figure, page.Table("System", columns, rows)] if figure.figures else []
    return Section("differences", "Is the difference real?", blocks, about)


def _seeds(view: View) -> Section:
    """Interval and seeds of every system whose metric has them."""
    found = [s for s in view.systems if view.score(s).get("interval") or view.score(s).get("per_seed")]
    seeds = list(dict.fromkeys(seed for s in found for seed in view.score(s).get("per_seed") or {}))
    rows = []
    for system in found:
        ends = [view.number(end) for end in view.score(system).get("interval") or []]
        each = view.score(system).get("per_seed") or {}
        cells = [_metric_cell(view, system, view.metric), Cell(" … ".join(ends))]
        cells += [Cell(view.number(each[s]) if s in each else "", words.finite(each.get(s))) for s in seeds]
        rows.append(_row(view, system, cells))
    titles = [view.title(), "95 % interval", *(f"seed {seed}" for seed in seeds)]
    about = f"{view.title()} on {view.split}: intervals are over examples, of the mean over seeds."
    blocks = [page.Table("System", [Column(title) for title in titles], rows)] if rows else []
    return Section("seeds", "Intervals and seeds", blocks, about)


def _every_metric(view: View) -> Section:
    names = list(view.results["metrics"])
    rows = [_row(view, s, [_metric_cell(view, s, name) for name in names]) for s in view.systems]
    blocks = [page.Table("System", _metric_columns(view, names), rows, wide=True)]
    return Section("metrics", "Every metric", blocks if len(names) > len(_shown(view)) else [])


# ---- figures


def _figures(view: View) -> list[Section]:
    costs = drawn(
        (
            figures.score_against_cost(view),
            f"Trained parameters and {view.title()}",
            "Up and to the left is better. Dashed: the snapshot; bars: one standard deviation over seeds.",
        ),
        (
            figures.score_against_cost(view, "flops_per_token"),
            f"FLOPs per token and {view.title()}",
            "What a head adds to each token: few parameters can still cost many FLOPs.",
        ),
    )
    learning = drawn(
        (
            figures.finetune_curve(view),
            "Fine-tuning the encoder",
            "Thin: each recorded step; thick: running mean. Below: the learning rate.",
        ),
        (
            figures.fit_curves(view),
            "Fitting the heads",
            "The snapshot stays frozen. With several seeds, their mean.",
        ),
    )
    first = {True: "The pooled vector, then input", False: "Input"}
    captions = {
        s["name"]: f"{first[figures.over_pooled(view, s)]} embedding and layers" for s in view.systems
    }
    shares = [(figures.layer_weights(view, s), view.name(s), captions[s["name"]]) for s in view.systems]
    weights = page.Figures(drawn(*shares).figures[:_MOST_WEIGHTS], small=True)
    whose = f"The chosen head and its snapshot on {view.split}; of several seeds the one that is best on dev."
    return [
        Section("cost", "What quality costs", [costs]),
        Section("details", "A closer look", [drawn(*details.drawings(view))], whose),
        Section("learning", "Learning curves", [learning]),
        Section(
            "layers",
            "Layer weights",
            [weights],
            "Of the heads that mix hidden states; dashed: an even share.",
        ),
    ]


def _examples(view: View) -> Section:
    found = [example(raw) for raw in view.results["examples"]]
    right = [(raw.get("head_right"), raw.get("snapshot_right")) for raw in view.results["examples"]]
    about = f"A random draw of {len(found)} of the examples on {view.split} for which the two differ."
    wins, losses = right.count((True, False)), right.count((False, True))
    if wins or losses:
        about += f" The head alone is correct in {wins} of them, the snapshot alone in {losses}."
    return Section(
        "examples", "Where head and snapshot differ", [page.Examples(found)] if found else [], about
    )


# ---- how it was made


def _made(view: View) -> Section:
    held = view.results
    blocks: list[Any] = [page.Code(str(held["command"]))] if held.get("command") else []
    if held["data"]:
        titles = ("examples", "windows", "tokens", "tokens/window")
        columns = [Column("Data", text=True), *map(Column, titles), Column("Labels", text=True)]
        rows = [Row(split, _data_cells(facts)) for split, facts in held["data"].items()]
        blocks.append(page.Table("Split", columns, rows))
    own = held["details"].get(view.head["name"]) if view.head else None
    seeds = sorted({seed for system in view.systems for seed in system["seeds"] or []})
    groups = {
        "Task": held["task"],
        "Sweep": held["sweep"],
        "Tuned on dev": {key: value for key, value in (own or {}).items() if key not in details.KEYS},
        "Encoder": held["encoder"],
        "Fine-tuning": held["finetune"],
        "Fitting heads": held["fit"] | {"seeds": seeds},
        "Environment": {"bertvision": held.get("bertvision"), **held["environment"]},
    }
    lists = [(title, found) for title, facts in groups.items() if (found := list(words.lines(facts)))]
    return Section("run", "How it was made", [*blocks, page.Lists(lists)])


def _data_cells(facts: Mapping[str, Any]) -> list[Cell]:
    windows, tokens = words.finite(facts.get("windows")), words.finite(facts.get("tokens"))
    length = tokens / windows if tokens is not None and windows else None
    numbers = [*(facts.get(key) for key in ("examples", "windows", "tokens")), length]
    return [Cell(str(facts.get("name", ""))), *(Cell(words.count(n)) for n in numbers), Cell(_labels(facts))]


def _labels(facts: Mapping[str, Any]) -> str:
    """What the labels are: shares of classes, or the range of scores."""
    counts, scores = facts.get("counts"), facts.get("range")
    if isinstance(counts, Mapping) and counts:
        total = sum(counts.values()) or 1
        said = [f"{name} {100 * count / total:.0f} %" for name, count in list(counts.items())[:_MOST_CLASSES]]
        more = len(counts) - _MOST_CLASSES
        return ", ".join(said) + (f" and {more} more classes" if more > 0 else "")
    if isinstance(scores, Mapping):
        texts = [words.number(scores.get(key), percent=False) for key in ("low", "high", "mean", "spread")]
        return "{} to {}, mean {} ± {}".format(*texts)
    return words.UNKNOWN
