"""The report of a run: one HTML file with everything in it.

Nothing is fetched, nothing is needed but a browser: styles and figures are inline, and the small script only
adds sorting to a table that is complete without it. Text of the user's data is escaped by the template.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from bertvision.artifacts import write_text
from bertvision.report import figures, rows, words
from bertvision.report.schema import validate

__all__ = [
    "Drawing",
    "Fact",
    "dated",
    "drawn",
    "layer_drawings",
    "page",
    "render",
    "run_facts",
    "summary",
    "write_report",
]

_MOST_WEIGHT_FIGURES = 6
# Settings that no score depends on.
_UNTOLD = {"checkpoint_seconds", "log_every", "accumulate", "profiles"}


@dataclass(frozen=True)
class Drawing:
    svg: str
    title: str
    caption: str


@dataclass(frozen=True)
class Fact:
    """One of the large figures under the headline."""

    name: str
    value: str
    note: str


def write_report(results: Mapping[str, Any], path: Path) -> None:
    """Render `results` and put the page at `path`; an older report stays whole until the new one is."""
    write_text(path, render(results))


def render(results: Mapping[str, Any]) -> str:
    """The whole page as text."""
    checked = validate(results)
    return page("template.html.j2", **_context(checked))


def page(template: str, **context: Any) -> str:
    """A template of this folder with the values it names."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    loader = FileSystemLoader(Path(__file__).parent)
    # Explicitly on: jinja's own guess goes by the file ending and would miss ".j2".
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["svg"] = Markup
    return environment.get_template(template).render(**context)


def summary(results: Mapping[str, Any]) -> str:
    """The headline alone, for the command line."""
    checked = validate(results)
    return _headline(rows.overview(checked))


def _context(results: dict[str, Any]) -> dict[str, Any]:
    view = rows.overview(results)
    seeds, seed_rows = rows.seed_rows(view)
    return {
        "results": results,
        "view": view,
        "headline": _headline(view),
        "sentences": _sentences(results, view),
        "facts": _facts(results, view),
        "table": rows.table(view, results["finetune"]),
        "differences": rows.difference_rows(view),
        "seeds": seeds,
        "seed_rows": seed_rows,
        "data": rows.data_rows(results),
        "disagreements": rows.examples(results),
        "comparison": _comparison(results),
        "costs": _costs(results, view),
        "learning": _learning(results),
        "weights": layer_drawings(results, view),
        "created": dated(results["created"]),
        "run_facts": run_facts(results),
    }


# ----------------------------------------------------------------------------------------------- words


def _headline(view: rows.Overview) -> str:
    if view.head is not None:
        return words.headline(view.head, view.snapshot, view.split)
    first = view.systems[0]
    own = words.score(rows.f1(first, view.split))
    return f"{first['label']} scores {own} F1 on {view.split}; no head was fitted."


def _sentences(results: Mapping[str, Any], view: rows.Overview) -> list[str]:
    """What a fair reader asks next: the other threshold, the control, the ensemble, the trivial answer."""
    said = []
    head, split = view.head, view.split
    if head is not None:
        found = words.difference(head["versus"], "zero")
        if found is not None:
            inside = ", which contains zero" if words.verdict(found) == "level" else ""
            ends = words.interval(found["low"], found["high"])
            size = words.change(found["difference"])
            said.append(f"With no threshold tuned at all the difference is {size} F1 ({ends}{inside}).")
        said += _against(
            head,
            view.of_kind("control"),
            split,
            "Of the controls, which read the last state only, the best on dev",
        )
        said += _against(head, view.of_kind("ensemble"), split, "The best ensemble on dev")
        said += _against(head, view.of_kind("baseline"), split, "The best trivial baseline on dev")
    at = view.snapshot["snapshot"] if view.snapshot is not None else None
    said.append(f"The snapshot is {words.schedule(results['finetune'], at)}.")
    return said


def _against(head: Mapping[str, Any], others: list[rows.System], split: str, opening: str) -> list[str]:
    system = rows.best_on_dev(others, split, rows.f1)
    own, score = rows.f1(head, split), None if system is None else rows.f1(system, split)
    if system is None or own is None or score is None:
        return []
    gap = own - score
    size = words.change(abs(gap)).lstrip("+")
    place = f"{size} below" if gap > 0 else f"{size} above" if gap < 0 else "level with"
    return [f"{opening} ({system['label']}) scores {words.score(score)} on {split}, {place} the head."]


_STATES = {"live": "encoded in every epoch", "memory": "kept in memory", "stored": "read from a store"}


def _facts(results: Mapping[str, Any], view: rows.Overview) -> list[Fact]:
    facts = []
    split, head = view.split, view.head
    if head is not None:
        facts.append(Fact(f"F1 on {split}, chosen head", words.score(rows.f1(head, split)), head["label"]))
    if view.snapshot is not None:
        own = words.score(rows.f1(view.snapshot, split))
        facts.append(Fact(f"F1 on {split}, its snapshot", own, view.snapshot["label"]))
    if head is not None:
        size = words.count(head["parameters"])
        facts.append(
            Fact("of the encoder’s size", words.percent(head["percent"]), f"{size} parameters in that head")
        )
    times = [
        ("fine-tuning", (results["finetune"] or {}).get("seconds")),
        ("encoding", results["fit"].get("encode_seconds")),
        ("fitting", results["fit"].get("seconds")),
    ]
    known = [(name, seconds) for name, raw in times if (seconds := words.finite(raw)) is not None]
    if known:
        note = ", ".join(f"{name} {words.duration(seconds)}" for name, seconds in known)
        if states := results["fit"].get("states"):
            note += f"; states {' and '.join(str(_STATES.get(source) or source) for source in states)}"
        facts.append(Fact("training time", words.duration(sum(seconds for _, seconds in known)), note))
    return facts


def dated(created: str) -> str:
    """The time of results.json as people write it."""
    try:
        when = datetime.fromisoformat(created)
    except ValueError:
        return created
    return f"{when.day} {when:%B %Y, %H:%M} {when.tzname() or ''}".strip()


def run_facts(results: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Settings, encoder and machine as lists of names and values; what is not known is left out."""
    groups = [
        ("Encoder", results["encoder"]),
        ("Fine-tuning", results["finetune"] or {}),
        ("Fitting heads", results["fit"]),
        ("Environment", {"bertvision": results["bertvision"], **results["environment"]}),
    ]
    shown = []
    for title, facts in groups:
        lines = [
            (key.replace("_", " "), _fact(key, value))
            for key, value in facts.items()
            if value is not None and key not in _UNTOLD
        ]
        if lines:
            shown.append((title, lines))
    seeds = sorted({seed for system in results["systems"] for seed in system["seeds"] or []})
    if seeds:
        shown.append(("Seeds", [("heads", ", ".join(map(str, seeds)))]))
    return shown


def _fact(key: str, value: Any) -> str:
    if key == "fingerprint":
        return str(value)[:16]  # enough to recognise it; results.json holds the whole
    if key.endswith("seconds"):
        return words.duration(value)
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, bool) or words.finite(value) is None:
        return str(value)
    return words.count(value) if abs(value) >= 1000 else words.plain(value)


# --------------------------------------------------------------------------------------------- figures


def drawn(svg: str | None, title: str, caption: str) -> list[Drawing]:
    """A list to add to others; empty where there was nothing to draw."""
    return [] if svg is None else [Drawing(svg, title, caption)]


def _comparison(results: Mapping[str, Any]) -> list[Drawing]:
    caption = (
        "Right of zero: better than the snapshot on the same questions. A line across zero settles nothing."
    )
    return drawn(figures.differences(results), "Paired difference to the snapshot", caption)


def _costs(results: Mapping[str, Any], view: rows.Overview) -> list[Drawing]:
    titles = {"parameters": "F1 against trained parameters", "flops_per_token": "F1 against FLOPs per token"}
    captions = {
        "parameters": "Up and to the left is better. The dashed line is the snapshot.",
        "flops_per_token": "What a head adds to each token: few parameters can still cost many FLOPs.",
    }
    drawings = []
    for cost, title in titles.items():
        drawings += drawn(figures.score_against_cost(results, cost), title, captions[cost])
    return drawings


def _learning(results: Mapping[str, Any]) -> list[Drawing]:
    drawings = drawn(
        figures.finetune_curve(results),
        "Fine-tuning the encoder",
        "Thin: each recorded step; thick: running mean. Below: the learning rate.",
    )
    drawings += drawn(
        figures.fit_curves(results),
        "Fitting the heads",
        "The snapshot stays frozen. With several seeds, their mean.",
    )
    return drawings


def layer_drawings(results: Mapping[str, Any], view: rows.Overview) -> list[Drawing]:
    """The layer weights of the systems that have some."""
    drawings = []
    for system in view.systems:
        svg = figures.layer_weights(results, system["name"])
        pooled = figures.over_channels(results, system["name"])
        first = (
            "The pooled vector first, then input embedding and layers"
            if pooled
            else "Input embedding first, then the layers"
        )
        drawings += drawn(svg, system["label"], f"{first}; dashed: an even share.")
    return drawings[:_MOST_WEIGHT_FIGURES]
