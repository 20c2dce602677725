"""The report of a sweep: one HTML file, in the look of the report of a run."""

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from bertvision.artifacts import write_text
from bertvision.report import words
from bertvision.report.heatmap import heat_maps, metric_name, names, scored, shares, short_score
from bertvision.report.html import Drawing, Fact, page
from bertvision.report.sweep_figures import score_by_trial, score_by_value

__all__ = ["render_sweep", "write_sweep_report"]


def write_sweep_report(sweep: Mapping[str, Any], path: Path) -> None:
    """Render the results of a sweep (train/sweep.py) and put the page at `path`."""
    write_text(path, render_sweep(sweep))


def render_sweep(sweep: Mapping[str, Any]) -> str:
    """The whole page as text."""
    best = next((trial for trial in sweep["trials"] if trial["number"] == sweep["best"]), None)
    return page(
        "sweep_report.html.j2",
        sweep=sweep,
        headline=_headline(sweep, best),
        sentences=_sentences(sweep),
        facts=_facts(sweep, best),
        maps=[_map(sweep, *found) for found in heat_maps(sweep)],
        curves=_curves(sweep),
        metric=metric_name(sweep),
        names=names(sweep),
        rows=_rows(sweep),
        run=_run(sweep),
    )


def _unit(sweep: Mapping[str, Any]) -> str:
    return "heads" if sweep["mode"] == "grid" else "trials"


def _headline(sweep: Mapping[str, Any], best: Mapping[str, Any] | None) -> str:
    count = len(sweep["trials"])
    if best is None:
        return f"None of {count} {_unit(sweep)} was trained to its end."
    score = short_score(sweep, best["score"])
    return f"The best of {count} {_unit(sweep)} scores {score} {metric_name(sweep)} on dev: {best['head']}."


def _sentences(sweep: Mapping[str, Any]) -> list[str]:
    said = []
    counts = [trial["status"] for trial in sweep["trials"]]
    ways = {"pruned": "ended early", "diverged": "diverged", "out of memory": "did not fit the memory"}
    ways["killed"] = "were killed again and again"
    told = [f"{counts.count(status)} {way}" for status, way in ways.items() if status in counts]
    if told:
        said.append(f"Of all {_unit(sweep)} {', '.join(told)}.")
    if counts.count("running"):
        said.append(f"{counts.count('running')} are not ended yet.")
    explained = {name: share for name, share in shares(sweep).items() if share is not None and share >= 0.005}
    if len(scored(sweep)) > 2 and explained:
        parts = [f"{name} {share:.0%}" for name, share in explained.items()]
        said.append(f"Share of the spread of scores that each value explains alone: {', '.join(parts)}.")
    said.append(
        "Scores on dev chose the epoch and the winner, so they flatter: score the winner on data that nothing was "
        "chosen on."
    )
    return said


def _facts(sweep: Mapping[str, Any], best: Mapping[str, Any] | None) -> list[Fact]:
    trials = scored(sweep)
    facts = []
    if best is not None:
        seeds = best.get("scores") or []
        spread = (
            f"seeds {', '.join(short_score(sweep, s) for s in seeds)}" if len(seeds) > 1 else best["head"]
        )
        facts.append(
            Fact(f"{metric_name(sweep)} on dev, the best", short_score(sweep, best["score"]), spread)
        )
        facts.append(
            Fact("parameters of the best", words.count(best.get("parameters")), f"trial {best['number']}")
        )
    if trials:
        middle = median(float(trial["score"]) for trial in trials)
        worst = min(float(trial["score"]) for trial in trials)
        facts.append(
            Fact("median of all", short_score(sweep, middle), f"the worst has {short_score(sweep, worst)}")
        )
    seconds = sum(trial.get("seconds") or 0.0 for trial in sweep["trials"])
    what = "of the heads' own steps" if sweep["mode"] == "grid" else "of all trials together"
    facts.append(Fact("time", words.duration(seconds), what))
    return facts


def _map(sweep: Mapping[str, Any], across: str, up: str, svg: str) -> Drawing:
    others = [name for name in names(sweep) if name not in (across, up)]
    caption = f"Best score of each cell{', whatever the other values' if others else ''}; bold: the best."
    if sweep["mode"] != "grid":
        caption += " Below a score: how many trials fell there."
    return Drawing(svg, f"{across} and {up}", caption)


def _curves(sweep: Mapping[str, Any]) -> list[Drawing]:
    found = []
    by_trial = score_by_trial(sweep)
    if by_trial is not None:
        found.append(Drawing(by_trial, "Trial by trial", "What was reached, and the best so far."))
    for name, share, svg in score_by_value(sweep):
        told = "" if share is None else f"Explains {share:.0%} of the spread of scores alone."
        found.append(Drawing(svg, name, told))
    return found


def _rows(sweep: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The trials, best first; those without a score last."""
    order = sorted(sweep["trials"], key=lambda trial: (trial["score"] is None, -(trial["score"] or 0.0)))
    return [
        {
            "number": trial["number"],
            "best": trial["number"] == sweep["best"],
            "score": (short_score(sweep, trial["score"]), trial["score"]),
            "values": [_value(trial["values"].get(name)) for name in names(sweep)],
            "cells": [
                (str(trial["epochs"]), trial["epochs"]),
                (words.count(trial.get("parameters")), trial.get("parameters")),
                (words.duration(trial.get("seconds")), trial.get("seconds")),
            ],
            "status": trial["status"],
        }
        for trial in order
    ]


def _value(value: Any) -> tuple[str, Any]:
    if isinstance(value, bool):
        return ("yes" if value else "no", int(value))
    return (words.plain(value), words.finite(value))


def _run(sweep: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """What was searched and how, as lists of names and values."""
    space = [(name, _dimension(about)) for name, about in sweep["space"].items()]
    untold = ("checkpoint_seconds", "activation_gb", "keep")
    fit = [(k.replace("_", " "), _told(v)) for k, v in sweep["fit"].items() if k not in untold]
    data = [
        (part, f"{sweep[part]['name']}, {sweep[part]['examples']:,} examples") for part in ("train", "dev")
    ]
    groups = [
        ("Space", [("heads", ", ".join(sweep["heads"])), *space]),
        ("Search", [(k, _told(v)) for k, v in (sweep["search"] or {"all combinations": "one fit"}).items()]),
        ("Data and encoder", [*data, ("encoder", str(sweep["encoder"]["name"]))]),
        ("Fitting", fit),
    ]
    return [(title, lines) for title, lines in groups if lines]


def _dimension(about: Mapping[str, Any]) -> str:
    if "choices" in about:
        return ", ".join(_value(value)[0] for value in about["choices"])
    more = "".join(
        f", {key}" if value is True else f", {key} {words.plain(value)}"
        for key, value in about.items()
        if key not in ("low", "high")
    )
    return f"{words.plain(about['low'])} to {words.plain(about['high'])}{more}"


def _told(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value) if isinstance(value, bool) else words.plain(value)
