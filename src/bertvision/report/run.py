"""The report of a run, whatever its task: what results.json holds decides what is said and drawn."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertvision import words
from bertvision.artifacts import write_text
from bertvision.report import details, figures, page, space, tables
from bertvision.report.examples import example
from bertvision.report.page import Cell, Column, Fact, Row, Section, drawn
from bertvision.report.results import View, check

_MOST_WEIGHTS = 6
_MOST_CLASSES = 8
_TUNED = ("epochs", "lr", "schedule", "warmup", "batch_size", "policy")
"""The settings of a fine-tuning that decide how much a head can gain."""


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
                tables.scores(view),
                tables.differences(view),
                tables.seeds(view),
                *(space.sections(view) if view.results["sweep"] else []),
                *_figures(view),
                _examples(view),
                tables.every_metric(view),
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
    weights = drawn(
        *(
            (
                figures.layer_weights(view, s),
                view.name(s),
                figures.first_weight(view, s) + " embedding and layers",
            )
            for s in view.systems
        )
    )
    whose = f"The chosen head and its snapshot on {view.split}; of several seeds the one that is best on dev."
    even = "Of the heads that mix hidden states; dashed: an even share."
    return [
        Section("cost", "What quality costs", [costs]),
        Section("details", "A closer look", [drawn(*details.drawings(view))], whose),
        Section("learning", "Learning curves", [learning]),
        Section("layers", "Layer weights", [page.Figures(weights.figures[:_MOST_WEIGHTS], small=True)], even),
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
