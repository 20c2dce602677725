"""The report of a label or score task: one HTML file with everything in it, in the look of the span report.

Nothing is fetched, nothing is needed but a browser. Text of the user's data is escaped by the template.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertvision.artifacts import write_text
from bertvision.report import figures, text_figures, text_rows, text_words, words
from bertvision.report.heatmap import heat_maps
from bertvision.report.html import Drawing, Fact, dated, drawn, layer_drawings, page, run_facts
from bertvision.report.rows import Overview, System, best_on_dev
from bertvision.report.text_schema import validate_texts

__all__ = ["render_texts", "summary_texts", "write_text_report"]


def write_text_report(results: Mapping[str, Any], path: Path) -> None:
    """Render `results` and put the page at `path`; an older report stays whole until the new one is."""
    write_text(path, render_texts(results))


def render_texts(results: Mapping[str, Any]) -> str:
    """The whole page as text."""
    checked = validate_texts(results)
    return page("text_report.html.j2", **_context(checked))


def summary_texts(results: Mapping[str, Any]) -> str:
    """The headline alone, for the command line."""
    checked = validate_texts(results)
    return _headline(checked, text_rows.overview(checked))


def _context(results: dict[str, Any]) -> dict[str, Any]:
    view = text_rows.overview(results)
    seeds, seed_rows = text_rows.seed_rows(results, view)
    task = results["task"]
    return {
        "results": results,
        "view": view,
        "task": task,
        "metric": text_words.TITLES[task["metric"]],
        "headline": _headline(results, view),
        "sentences": _sentences(results, view),
        "facts": _facts(results, view),
        "columns": text_rows.columns(results),
        "table": text_rows.table(results, view),
        "seeds": seeds,
        "seed_rows": seed_rows,
        "closer": _closer(results, view),
        "comparison": _comparison(results),
        "learning": _learning(results),
        "weights": layer_drawings(results, view),
        "maps": _maps(results),
        "examples": text_rows.examples(results),
        "data": text_rows.data_rows(results),
        "created": dated(results["created"]),
        "run_facts": _task_facts(task) + run_facts(results),
    }


def _headline(results: Mapping[str, Any], view: Overview) -> str:
    metric = results["task"]["metric"]
    if view.head is not None:
        return text_words.headline(view.head, view.snapshot, split=view.split, metric=metric)
    first = view.systems[0]
    own = text_words.number(text_rows.mean(first, view.split, metric))
    return f"{first['label']} reaches {text_words.TITLES[metric]} {own} on {view.split}; no head was fitted."


def _sentences(results: Mapping[str, Any], view: Overview) -> list[str]:
    """What a fair reader asks next: the controls, the ensemble, the trivial answer, how the snapshot was made."""
    said = []
    for kind, opening in (
        ("control", "The best control on dev"),
        ("ensemble", "The best ensemble on dev"),
        ("baseline", "The trivial baseline"),
    ):
        others = [system for system in view.of_kind(kind) if system is not view.head]
        said += _against(results, view, others, opening)
    at = view.snapshot["snapshot"] if view.snapshot is not None else None
    said.append(f"The snapshot is {words.schedule(results['finetune'], at)}.")
    return said


def _against(results: Mapping[str, Any], view: Overview, others: list[System], opening: str) -> list[str]:
    metric = results["task"]["metric"]
    system = best_on_dev(others, view.split, lambda s, split: text_rows.mean(s, split, metric))
    if system is None or view.head is None:
        return []
    own, score = (text_rows.mean(s, view.split, metric) for s in (view.head, system))
    if own is None or score is None:
        return []
    gap = own - score
    size = text_words.change(abs(gap)).lstrip("+")
    place = f"{size} below" if gap > 0 else f"{size} above" if gap < 0 else "level with"
    return [
        f"{opening} ({system['label']}) reaches {text_words.number(score)} on {view.split}, {place} the head."
    ]


def _facts(results: Mapping[str, Any], view: Overview) -> list[Fact]:
    metric = results["task"]["metric"]
    title = text_words.TITLES[metric]
    facts = []
    for name, system in (("chosen head", view.head), ("its snapshot", view.snapshot)):
        if system is not None:
            own = text_words.number(text_rows.mean(system, view.split, metric))
            facts.append(Fact(f"{title} on {view.split}, {name}", own, system["label"]))
    if view.head is not None:
        size = f"{words.count(view.head['parameters'])} parameters in that head"
        facts.append(Fact("of the encoder’s size", words.percent(view.head["percent"]), size))
    times = [
        ("fine-tuning", (results["finetune"] or {}).get("seconds")),
        ("encoding", results["fit"].get("encode_seconds")),
        ("fitting", results["fit"].get("seconds")),
    ]
    known = [(name, seconds) for name, raw in times if (seconds := words.finite(raw)) is not None]
    if known:
        note = ", ".join(f"{name} {words.duration(seconds)}" for name, seconds in known)
        facts.append(Fact("training time", words.duration(sum(seconds for _, seconds in known)), note))
    return facts


def _task_facts(task: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    lines = [("kind", str(task["kind"])), ("judged by", text_words.TITLES[task["metric"]])]
    if task["classes"]:
        lines.append(("classes", ", ".join(map(str, task["classes"]))))
    lines += [
        (said, str(task[key]))
        for key, said in (("loss", "loss"), ("merge", "windows merged by"))
        if task.get(key)
    ]
    if len(task["classes"]) == 2 and task.get("positive") is not None:
        lines.append(("F1 is of", str(task["classes"][task["positive"]])))
    return [("Task", lines)]


# --------------------------------------------------------------------------------------------- figures


def _comparison(results: Mapping[str, Any]) -> list[Drawing]:
    drawings = drawn(
        text_figures.differences(results),
        "Paired difference to the snapshot",
        "Right of zero: better than the snapshot on the same examples. A line across zero settles nothing.",
    )
    drawings += drawn(
        text_figures.score_against_cost(results),
        "Against trained parameters",
        "Up and to the left is better. The dashed line is the snapshot; bars: one standard deviation over seeds.",
    )
    return drawings


def _closer(results: Mapping[str, Any], view: Overview) -> list[Drawing]:
    """Confusions, histogram and calibration of labels; predictions and errors of scores."""
    drawings = []
    for system in (view.head, view.snapshot):
        if system is None:
            continue
        seed = (results["details"].get(system["name"]) or {}).get("seed")
        which = f" Seed {seed}." if seed is not None and len(system["seeds"] or []) > 1 else ""
        drawings += drawn(
            text_figures.confusion(results, system),
            f"Confusions of {system['label']}",
            f"Examples, and their share of the true class. Blue: right; orange: confused.{which}",
        )
        drawings += drawn(
            text_figures.predicted_against_true(results, system),
            f"Predictions of {system['label']}",
            f"A point an example (at most 1,500, drawn at random); dashed: exact.{which}",
        )
    drawings += drawn(
        text_figures.label_histogram(results),
        "Predicted labels against the truth",
        "A class that is said more often than it occurs is a habit, not a finding.",
    )
    drawings += drawn(
        text_figures.calibration(results),
        "Calibration",
        "On the dashed line a probability means what it says; below it the system is too sure of itself.",
    )
    drawings += drawn(
        text_figures.errors(results),
        "Prediction errors",
        "Left of zero: the score was predicted too low. The narrower the better.",
    )
    return drawings


def _learning(results: Mapping[str, Any]) -> list[Drawing]:
    drawings = drawn(
        figures.finetune_curve(results),
        "Fine-tuning the encoder",
        "Thin: each recorded step; thick: running mean. Below: the learning rate.",
    )
    drawings += drawn(
        text_figures.fit_curves(results),
        "Fitting the heads",
        "The snapshot stays frozen. With several seeds, their mean.",
    )
    return drawings


def _maps(results: Mapping[str, Any]) -> list[Drawing]:
    found = heat_maps(results["sweep"]) if results["sweep"] else []
    return [Drawing(svg, f"{across} and {up}", "The best score of every cell.") for across, up, svg in found]
