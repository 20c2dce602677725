"""The report of a sweep, in the look of the report of a run."""

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from bertvision.artifacts import write_text
from bertvision.report import page, sweep_figures, words
from bertvision.report.page import Cell, Column, Fact, Figures, Row, Section, Table, drawn
from bertvision.report.sweep_figures import Sweep, names, scored, shares, title

__all__ = ["render_sweep", "write_sweep_page"]

_ENDED = {
    "pruned": "ended early",
    "diverged": "diverged",
    "out of memory": "did not fit the memory",
    "killed": "were killed again and again",
    "running": "have not ended yet",
}
_MOST_CURVES = 6


def write_sweep_page(sweep: Sweep, path: Path) -> None:
    """Render the results of a sweep (train/sweep.py) and put the page at `path`."""
    write_text(path, render_sweep(sweep))


def render_sweep(sweep: Sweep) -> str:
    """The whole page as text."""
    best = next((trial for trial in sweep["trials"] if trial["number"] == sweep["best"]), None)
    grid = sweep["mode"] == "grid"
    about = (
        "Best first. The score is that of the best epoch on dev, the mean over seeds where there are several."
    )
    about += "" if grid else " A trial that was ended early has what it had reached."
    whole = page.Page(
        headline=_headline(sweep, best),
        eyebrow=["sweep", str(sweep["encoder"]["name"]), str(sweep["train"]["name"])],
        sentences=_sentences(sweep),
        facts=_facts(sweep, best),
        sections=[
            Section("maps", "Where the good ones are", [_maps(sweep)]),
            Section("curves", "Scores", [_curves(sweep)]),
            Section("trials", "All heads" if grid else "All trials", [_table(sweep)], about),
            Section("run", "How it was made", [page.Lists(_made(sweep))]),
        ],
        footer=f"Written by bertvision {sweep['bertvision']} from sweep.json.",
    )
    return page.render(whole)


def _unit(sweep: Sweep) -> str:
    return "heads" if sweep["mode"] == "grid" else "trials"


def _score(sweep: Sweep, value: Any) -> str:
    return words.number(value, percent=sweep["percent"])


def _headline(sweep: Sweep, best: Mapping[str, Any] | None) -> str:
    count = len(sweep["trials"])
    if best is None:
        return f"None of {count} {_unit(sweep)} ran to its end."
    score = _score(sweep, best["score"])
    return f"The best of {count} {_unit(sweep)} reaches {title(sweep)} {score} on dev: {best['head']}."


def _sentences(sweep: Sweep) -> list[str]:
    said = []
    counts = [trial["status"] for trial in sweep["trials"]]
    ended = [f"{counts.count(status)} {how}" for status, how in _ENDED.items() if status in counts]
    if ended:
        said.append(f"Of all {_unit(sweep)} {', '.join(ended)}.")
    parts = [f"{name} {share:.0%}" for name, share in shares(sweep).items() if share and share >= 0.005]
    if len(scored(sweep)) > 2 and parts:
        said.append(f"Share of the spread of scores that each value explains alone: {', '.join(parts)}.")
    said.append(
        "Scores on dev chose the epoch and the winner, so they flatter: score the winner on data that nothing was "
        "chosen on."
    )
    return said


def _facts(sweep: Sweep, best: Mapping[str, Any] | None) -> list[Fact]:
    facts, scores = [], [float(trial["score"]) for trial in scored(sweep)]
    if best is not None:
        seeds = [_score(sweep, seed) for seed in best.get("scores") or []]
        note = f"seeds {', '.join(seeds)}" if len(seeds) > 1 else str(best["head"])
        facts.append(Fact(f"{title(sweep)} on dev, the best", _score(sweep, best["score"]), note))
        size = words.count(best.get("parameters"))
        facts.append(Fact("parameters of the best", size, f"trial {best['number']}"))
    if scores:
        worst = f"the worst has {_score(sweep, min(scores))}"
        facts.append(Fact("median of all", _score(sweep, median(scores)), worst))
    seconds = sum(trial.get("seconds") or 0.0 for trial in sweep["trials"])
    what = "of the heads' own steps" if sweep["mode"] == "grid" else "of all trials together"
    return [*facts, Fact("time", words.duration(seconds), what)]


def _maps(sweep: Sweep) -> Figures:
    others = ", whatever the other values" if len(names(sweep)) > 2 else ""
    count = "" if sweep["mode"] == "grid" else " Below a score: how many trials fell there."
    caption = f"Best score of each cell{others}; bold: the best.{count}"
    found = sweep_figures.heat_maps(sweep)
    return drawn(*((svg, f"{across} and {up}", caption) for across, up, svg in found))


def _curves(sweep: Sweep) -> Figures:
    texts = {
        name: "" if share is None else f"Explains {share:.0%} of the spread of scores alone."
        for name, share in shares(sweep).items()
    }
    found = drawn(*((sweep_figures.score_by_value(sweep, name), name, text) for name, text in texts.items()))
    return Figures(found.figures[:_MOST_CURVES], small=True)


def _table(sweep: Sweep) -> Table:
    """The trials, best first; those without a score last."""
    varied = names(sweep)
    columns = [
        Column(title(sweep)),
        *map(Column, varied),
        *map(Column, ("epochs", "parameters", "time")),
    ]
    order = sorted(sweep["trials"], key=lambda trial: (trial["score"] is None, -(trial["score"] or 0.0)))
    rows = [
        Row(
            str(trial["number"]),
            [
                Cell(_score(sweep, trial["score"]), words.finite(trial["score"])),
                *(_value(trial["values"].get(name)) for name in varied),
                Cell(str(trial["epochs"]), words.finite(trial["epochs"])),
                Cell(words.count(trial.get("parameters")), words.finite(trial.get("parameters"))),
                Cell(words.duration(trial.get("seconds")), words.finite(trial.get("seconds"))),
                Cell(str(trial["status"])),
            ],
            best=trial["number"] == sweep["best"],
        )
        for trial in order
    ]
    first = "Head" if sweep["mode"] == "grid" else "Trial"
    return Table(first, [*columns, Column("status", text=True)], rows, wide=True)


def _value(value: Any) -> Cell:
    return Cell(words.plain(value), float(value) if isinstance(value, bool) else words.finite(value))


def _made(sweep: Sweep) -> list[tuple[str, list[tuple[str, str]]]]:
    """What was searched and how."""
    data = {
        split: f"{sweep[split]['name']}, {sweep[split]['examples']:,} examples" for split in ("train", "dev")
    }
    groups = {
        "Space": {"heads": sweep["heads"], **sweep["space"]},
        "Search": sweep["search"] or {"all combinations": "one fit"},
        "Data and encoder": {**data, "encoder": sweep["encoder"]["name"]},
        "Fitting": sweep["fit"],
    }
    return [(title, list(page.lines(facts))) for title, facts in groups.items()]
