"""Figures of all systems of a run, whatever its task: learning curves, score against cost, differences.

What they show is read off results by figures.py (spans) and text_figures.py (labels and scores); here it is drawn.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertvision.report import words
from bertvision.report.drawing import (
    COSTS,
    LINE_STYLES,
    MARKERS,
    PALETTE,
    SERIES,
    draw_interval,
    interval_look,
    known_points,
    name_row,
    new_figure,
    place_labels,
    short,
    styled,
    to_svg,
)
from bertvision.report.rows import Overview, System

__all__ = ["Priced", "draw_costs", "draw_curves", "draw_differences", "priced"]

_COLUMNS = 2
"""Of a legend with the names of heads."""
_FITTED = ("control", "head", "ensemble")


def draw_curves(view: Overview, curves: Mapping[str, Any], panels: Sequence[tuple[str, str]]) -> str | None:
    """Fitted heads by epoch, a panel a quantity: (key of the records, title); those nobody recorded are left out."""
    series = [(system, curves[system["name"]]) for system in view.systems if curves.get(system["name"])]
    drawn = [
        panel for panel in panels if any(known_points(entries, "epoch", panel[0])[0] for _, entries in series)
    ]
    if not drawn:
        return None
    with styled():
        figure = new_figure(1.75 * len(drawn) + 0.2 * -(-len(series) // _COLUMNS) + 0.2)
        axes = figure.subplots(len(drawn), 1, sharex=True, squeeze=False)[:, 0]
        for panel, (key, title) in zip(axes, drawn, strict=True):
            for i, (system, entries) in enumerate(series):
                at, values = known_points(entries, "epoch", key)
                panel.plot(
                    at,
                    values,
                    color=SERIES[i % len(SERIES)],
                    linestyle=LINE_STYLES[i // len(SERIES) % len(LINE_STYLES)],
                    linewidth=2.2 if system is view.head else 1.4,
                    marker="o",
                    markersize=2.5,
                    label=short(view.title(system), 26),
                )
            panel.set_ylabel(title)
        axes[-1].set_xlabel("epoch of fitting")
        # One tick is enough where there was one epoch; more would be fractions of it.
        axes[-1].xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower center", ncols=_COLUMNS, handlelength=1.8, columnspacing=1.2
        )
        return to_svg(figure, f"Learning curves of {len(series)} heads by epoch of fitting")


@dataclass(frozen=True)
class Priced:
    """A system, what it costs and what it scores."""

    cost: float
    score: float
    system: System
    spread: float = 0.0
    """One standard deviation over seeds."""


def priced(system: System, cost: str, score: float | None, spread: float | None = None) -> list[Priced]:
    """One where both are known and it costs anything of its own, as a head does; else none."""
    price = words.finite(system[cost])
    if not price or price <= 0 or score is None or system["kind"] not in _FITTED:
        return []
    return [Priced(price, score, system, words.finite(spread) or 0.0)]


def draw_costs(
    view: Overview,
    points: Sequence[Priced],
    snapshots: Sequence[tuple[float | None, str]],
    *,
    cost: str,
    metric: str,
    axis: str,
) -> str | None:
    """Systems by their cost; a snapshot, (score, label), is a line: its cost lies before."""
    if not points:
        return None
    with styled():
        figure = new_figure(3.4)
        axes = figure.subplots()
        axes.set_xscale("log")
        least, most = min(point.cost for point in points), max(point.cost for point in points)
        if least == most:  # no range to scale the axis by
            axes.set_xlim(least / 4, most * 4)
        axes.xaxis.set_major_formatter(lambda value, _: re.sub(r"\.0+", "", words.compact(value)))
        axes.xaxis.set_minor_formatter(lambda _value, _: "")
        for kind in _FITTED:
            mine = [point for point in points if point.system["kind"] == kind]
            if mine:
                axes.errorbar(
                    [point.cost for point in mine],
                    [point.score for point in mine],
                    yerr=[point.spread for point in mine],
                    fmt=MARKERS[kind],
                    markersize=6,
                    color=PALETTE[kind],
                    markeredgecolor=PALETTE["ink"],
                    markeredgewidth=0.6,
                    elinewidth=1.0,
                    label=kind,
                    zorder=3,
                )
        axes.margins(x=0.12, y=0.14)
        for y, label in snapshots:
            if y is not None:
                axes.axhline(y, color=PALETTE["snapshot"], linewidth=1.2, linestyle=(0, (5, 2)))
                axes.annotate(
                    short(label, 26),
                    (1, y),
                    xycoords=("axes fraction", "data"),
                    xytext=(-2, 3),
                    textcoords="offset points",
                    ha="right",
                    fontsize=8,
                    color=PALETTE["snapshot"],
                )
        axes.set_xlabel(COSTS[cost])
        axes.set_ylabel(axis)
        figure.legend(loc="outside lower center", ncols=3, handletextpad=0.2)
        # The chosen head first: where space is short, its label is the one that stays.
        ordered = sorted(points, key=lambda point: (point.system is not view.head, -point.score))
        place_labels(axes, [(p.cost, p.score, short(view.title(p.system), 28)) for p in ordered])
        return to_svg(figure, f"{metric} of {len(points)} systems against {COSTS[cost]}")


def draw_differences(
    view: Overview,
    found: Sequence[tuple[System, Sequence[Mapping[str, float] | None]]],
    names: Sequence[str] = (),
    *,
    metric: str,
    unit: str = "",
) -> str | None:
    """Each system less its snapshot, with paired 95 % intervals: a full dot, and a ring for a second one.

    `names` tell the two apart; where there is one there is nothing to tell.
    """
    if not found:
        return None
    from matplotlib.lines import Line2D

    looks = [interval_look(PALETTE["head"], full=True), interval_look(PALETTE["snapshot"], full=False)]
    with styled():
        figure = new_figure(0.46 * len(found) + (1.0 if names else 0.8))
        axes = figure.subplots()
        axes.axvline(0, color=PALETTE["ink"], linewidth=1.0)
        for i, (system, parts) in enumerate(found):
            for part, look, down in zip(parts, looks, (0.0, 0.24), strict=False):
                if part is not None:
                    draw_interval(axes, i + down, part, look)
            name_row(axes, i, view.title(system), bold=system is view.head)
        axes.set_ylim(len(found) - 0.45, -0.75)
        axes.grid(visible=False, axis="y")
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(f"{metric} on {view.split} less the snapshot's{unit}, with 95 % interval")
        if names:
            keys = [Line2D([], [], **look) for look in looks]
            figure.legend(keys, names, loc="outside lower center", ncols=2)
        told = f"Paired {metric} differences of {len(found)} systems to their snapshot on {view.split}"
        return to_svg(figure, told)
