"""The other figures of a sweep: scores in the order of the trials, and against each varied value."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bertvision.report import drawing, words
from bertvision.report.heatmap import metric_name, scored, shares

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["score_by_trial", "score_by_value"]


def score_by_trial(sweep: Mapping[str, Any]) -> str | None:
    """Each trial's score, and the best so far as a line."""
    trials = scored(sweep)
    if len(trials) < 2 or sweep["mode"] == "grid":
        return None
    ended = [t["score"] if t["status"] == "done" else -math.inf for t in trials]
    best = [score if score > -math.inf else math.nan for score in itertools.accumulate(ended, max)]
    with drawing.styled():
        figure = drawing.new_figure(2.6, drawing.NARROW)
        axes = figure.subplots()
        axes.step(
            [trial["number"] for trial in trials],
            best,
            where="post",
            color=drawing.PALETTE["control"],
            linewidth=1.6,
            label="best so far",
        )
        _dots(axes, [trial["number"] for trial in trials], trials)
        axes.locator_params(axis="x", integer=True)
        axes.set_xlabel("trial")
        axes.set_ylabel(f"{metric_name(sweep)} on dev")
        figure.legend(
            loc="outside lower center", ncols=3, handletextpad=0.3, handlelength=1.2, columnspacing=0.8
        )
        return drawing.to_svg(figure, f"Scores of {len(trials)} trials in their order")


def score_by_value(sweep: Mapping[str, Any], most: int = 6) -> list[tuple[str, float | None, str]]:
    """(name, its share of the spread where it is known, svg) of the varied numbers that explain most."""
    found = []
    for name, share in shares(sweep).items():
        about = sweep["space"].get(name, {})
        trials = [trial for trial in scored(sweep) if words.finite(trial["values"].get(name)) is not None]
        if len({trial["values"][name] for trial in trials}) < 2:
            continue
        with drawing.styled():
            figure = drawing.new_figure(2.1, drawing.NARROW)
            axes = figure.subplots()
            if about.get("log"):
                axes.set_xscale("log")
                axes.xaxis.set_major_formatter(lambda value, _: words.plain(value))
                axes.xaxis.set_minor_formatter(lambda _value, _: "")
            _dots(axes, [trial["values"][name] for trial in trials], trials)
            axes.set_xlabel(name)
            axes.set_ylabel(f"{metric_name(sweep)} on dev")
            svg = drawing.to_svg(figure, f"Scores of {len(trials)} trials against {name}")
        found.append((name, share, svg))
    return found[:most]


def _dots(axes: "Axes", across: Sequence[float], trials: Sequence[Mapping[str, Any]]) -> None:
    """Trials trained to their end as full dots, those ended early as rings."""
    for early, label in ((False, "trained to the end"), (True, "ended early")):
        mine = [
            (x, t["score"]) for x, t in zip(across, trials, strict=True) if (t["status"] != "done") == early
        ]
        if mine:
            axes.scatter(
                *zip(*mine, strict=True),
                s=20,
                facecolors="none" if early else drawing.PALETTE["head"],
                edgecolors=drawing.PALETTE["head"],
                linewidths=1.0,
                label=label,
                zorder=3,
            )
