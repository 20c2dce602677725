"""The figures of a label or score report: inline SVG in the style of figures.py.

Each function takes checked results and gives an `<svg>` element, or None when there is nothing to draw. Those about one
system take its name and read `results["details"]`.
"""

from collections.abc import Mapping
from typing import Any

from bertvision.report import text_rows, text_words, words
from bertvision.report.drawing import (
    COSTS,
    LINE_STYLES,
    MARKERS,
    PALETTE,
    SERIES,
    known_points,
    name_row,
    new_figure,
    place_labels,
    short,
    styled,
    to_svg,
)
from bertvision.report.text_schema import metrics_of

__all__ = [
    "calibration",
    "confusion",
    "differences",
    "errors",
    "fit_curves",
    "label_histogram",
    "predicted_against_true",
    "score_against_cost",
]

_MOST_NAMED = 12
"""Classes up to which the matrix has room for numbers."""
_MOST_CLASSES = 40
"""Classes up to which a matrix or a histogram can be read at all."""


def _detail(results: Mapping[str, Any], system: Mapping[str, Any] | None, key: str) -> Any:
    return None if system is None else (results["details"].get(system["name"]) or {}).get(key)


def _compared(results: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """The snapshot and the chosen head, as far as there are any, with the colour each wears."""
    view = text_rows.overview(results)
    return [(kind, s) for kind, s in (("snapshot", view.snapshot), ("head", view.head)) if s is not None]


# ------------------------------------------------------------------------------------------- labels


def confusion(results: Mapping[str, Any], system: Mapping[str, Any]) -> str | None:
    """The matrix of one system: counts, shaded by the share of their row."""
    table, names = _detail(results, system, "confusion"), results["task"]["classes"]
    if not table or len(names) > _MOST_CLASSES:
        return None
    from matplotlib.patches import Rectangle

    size, told = len(names), len(names) <= _MOST_NAMED
    limit = 14 if size <= 4 else 9
    with styled():
        figure = new_figure(min(4.4, 1.5 + 0.42 * size))
        axes = figure.subplots()
        for row, counts in enumerate(table):
            total = sum(counts) or 1
            for column, count in enumerate(counts):
                share = count / total
                colour = PALETTE["head" if row == column else "control"]
                axes.add_patch(
                    Rectangle(
                        (column, row), 1, 1, facecolor=colour, alpha=0.06 + 0.64 * share, edgecolor="none"
                    )
                )
                if told:
                    small = 8.5 if size <= 6 else 7
                    middle = {"ha": "center", "va": "center", "color": PALETTE["ink"], "fontsize": small}
                    text = f"{count:,}" + (f"\n{100 * share:.0f} %" if size <= 6 else "")
                    axes.text(column + 0.5, row + 0.5, text, **middle)
        axes.set_xlim(0, size)
        axes.set_ylim(size, 0)
        axes.grid(visible=False)
        places = [i + 0.5 for i in range(size)] if told else []
        axes.set_xticks(places, [short(name, limit) for name in names] if told else [])
        axes.set_yticks(places, [short(name, limit + 4) for name in names] if told else [])
        axes.tick_params(length=0)
        if told and size > 4:
            axes.tick_params(axis="x", labelrotation=35)
        axes.set_xlabel("predicted")
        axes.set_ylabel("true")
        for side in ("left", "bottom"):
            axes.spines[side].set_visible(False)
        return to_svg(figure, f"Confusion matrix of {system['label']} over {size} classes")


def label_histogram(results: Mapping[str, Any]) -> str | None:
    """How often each class occurs and how often each system says it."""
    names = results["task"]["classes"]
    tables = [
        (kind, short(s["label"], 26), t)
        for kind, s in _compared(results)
        if (t := _detail(results, s, "confusion"))
    ]
    if not tables or len(names) > _MOST_CLASSES:
        return None
    total = sum(map(sum, tables[0][2])) or 1
    series = [("true labels", PALETTE["baseline"], [sum(row) for row in tables[0][2]])]
    series += [
        (label, PALETTE[kind], [sum(row[i] for row in table) for i in range(len(names))])
        for kind, label, table in tables
    ]
    width = 0.8 / len(series)
    with styled():
        figure = new_figure(2.9)
        axes = figure.subplots()
        for j, (label, colour, counts) in enumerate(series):
            at = [i - 0.4 + (j + 0.5) * width for i in range(len(names))]
            axes.bar(at, [100 * c / total for c in counts], width=0.92 * width, color=colour, label=label)
        axes.grid(visible=False, axis="x")
        named = len(names) <= _MOST_NAMED
        axes.set_xticks(range(len(names)) if named else [], [short(n, 14) for n in names] if named else [])
        axes.tick_params(axis="x", length=0, labelrotation=0 if len(names) <= 5 else 35)
        axes.set_ylabel("share of examples, %")
        figure.legend(loc="outside lower center", ncols=2, handlelength=1.2, columnspacing=1.2)
        return to_svg(figure, f"True and predicted shares of {len(names)} classes")


def calibration(results: Mapping[str, Any]) -> str | None:
    """Share of right predictions against their mean probability; below, how many examples are that sure."""
    curves = [
        (kind, s, bins) for kind, s in _compared(results) if (bins := _detail(results, s, "calibration"))
    ]
    if not curves:
        return None
    with styled():
        figure = new_figure(3.6)
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        upper.plot([0, 1], [0, 1], color=PALETTE["soft"], linewidth=1.0, linestyle=(0, (4, 2)))
        for j, (kind, system, bins) in enumerate(curves):
            full = [part for part in bins if part["count"]]
            upper.plot(
                [part["confidence"] for part in full],
                [part["accuracy"] for part in full],
                color=PALETTE[kind],
                linewidth=1.6,
                marker=MARKERS[kind],
                markersize=4,
                label=short(system["label"], 26),
            )
            total = sum(part["count"] for part in bins) or 1
            wide = 0.42 / len(bins) * 2 / len(curves)
            at = [(part["low"] + part["high"]) / 2 + (j - (len(curves) - 1) / 2) * wide for part in bins]
            lower.bar(at, [100 * part["count"] / total for part in bins], width=wide, color=PALETTE[kind])
        upper.set_ylim(0, 1.03)
        upper.set_ylabel("share right")
        lower.set_xlim(0, 1)
        lower.set_ylabel("examples, %")
        lower.set_xlabel("probability of the predicted class")
        handles, labels = upper.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2)
        return to_svg(figure, "Share of right predictions by the probability of the predicted class")


# ------------------------------------------------------------------------------------------- scores


def predicted_against_true(results: Mapping[str, Any], system: Mapping[str, Any]) -> str | None:
    """A point an example; on the dashed line the prediction is exact."""
    points = _detail(results, system, "points")
    if not points:
        return None
    x, y = zip(*points, strict=True)
    # Both systems on the same axes, or the wider one would look as good as the narrower.
    drawn = [p for _, s in _compared(results) for p in _detail(results, s, "points") or []]
    low, high = min(map(min, drawn)), max(map(max, drawn))
    with styled():
        figure = new_figure(3.4)
        axes = figure.subplots()
        axes.plot([low, high], [low, high], color=PALETTE["ink"], linewidth=1.0, linestyle=(0, (4, 2)))
        axes.scatter(x, y, s=9, color=PALETTE["head"], alpha=0.35, linewidths=0)
        reach = 0.04 * (high - low)
        axes.set_xlim(low - reach, high + reach)
        axes.set_ylim(low - reach, high + reach)
        axes.set_xlabel("true score")
        axes.set_ylabel("predicted score")
        return to_svg(figure, f"Predicted against true scores of {len(points)} examples")


def errors(results: Mapping[str, Any]) -> str | None:
    """Histogram of predicted less true, head and snapshot."""
    found = [(kind, s, e) for kind, s in _compared(results) if (e := _detail(results, s, "errors"))]
    if not found:
        return None
    with styled():
        figure = new_figure(3.0)
        axes = figure.subplots()
        axes.axvline(0, color=PALETTE["ink"], linewidth=1.0)
        for kind, system, histogram in found:
            total = sum(histogram["counts"]) or 1
            # Densities: the two systems need not have bins of one width.
            width = histogram["edges"][1] - histogram["edges"][0]
            density = [count / total / width for count in histogram["counts"]]
            look = {"linewidth": 1.6, "color": PALETTE[kind], "label": short(system["label"], 26)}
            axes.stairs(density, histogram["edges"], **look)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("predicted less true score")
        axes.set_ylabel("density")
        figure.legend(loc="outside lower center", ncols=2)
        return to_svg(figure, "Histogram of prediction errors")


# ------------------------------------------------------------------------------------ all systems


def differences(results: Mapping[str, Any]) -> str | None:
    """Each system's metric less its snapshot's, with its paired 95 % interval."""
    view = text_rows.overview(results)
    title = text_words.TITLES[results["task"]["metric"]]
    found = [(s, part) for s in view.systems if (part := text_words.paired(s["versus"], view.split))]
    if not found:
        return None
    with styled():
        figure = new_figure(0.42 * len(found) + 0.8)
        axes = figure.subplots()
        axes.axvline(0, color=PALETTE["ink"], linewidth=1.0)
        for i, (system, part) in enumerate(found):
            size = part["difference"]
            reach = [[max(0.0, size - part["low"])], [max(0.0, part["high"] - size)]]
            kind = system["kind"]
            axes.errorbar(
                size,
                i,
                xerr=reach,
                color=PALETTE[kind],
                marker=MARKERS[kind],
                markersize=5,
                linewidth=1.8,
                zorder=3,
            )
            name_row(axes, i, view.title(system), bold=system is view.head)
        axes.set_ylim(len(found) - 0.45, -0.75)
        axes.grid(visible=False, axis="y")
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(f"{title} on {view.split} less the snapshot's, with 95 % interval")
        return to_svg(figure, f"Paired differences of {len(found)} systems to their snapshot on {view.split}")


def score_against_cost(results: Mapping[str, Any], cost: str = "parameters") -> str | None:
    """The task's metric against what a head costs; bars are one standard deviation over seeds."""
    import re

    view, metric = text_rows.overview(results), metrics_of(results)[0]
    points = []
    for system in view.systems:
        x, y = words.finite(system[cost]), text_rows.mean(system, view.split, metric)
        if x and y is not None and system["kind"] in ("control", "head", "ensemble"):
            spread = (system["scores"][view.split].get("spread") or {}).get(metric)
            points.append((x, y, words.finite(spread) or 0.0, system))
    if not points:
        return None
    with styled():
        figure = new_figure(3.4)
        axes = figure.subplots()
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: re.sub(r"\.0+", "", words.compact(value)))
        axes.xaxis.set_minor_formatter(lambda _value, _: "")
        for kind in ("control", "head", "ensemble"):
            mine = [(x, y, spread) for x, y, spread, system in points if system["kind"] == kind]
            if mine:
                x, y, spread = zip(*mine, strict=True)
                axes.errorbar(
                    x,
                    y,
                    yerr=spread,
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
        for system in view.of_kind("snapshot"):
            y = text_rows.mean(system, view.split, metric)
            if y is not None:
                axes.axhline(y, color=PALETTE["snapshot"], linewidth=1.2, linestyle=(0, (5, 2)))
                beside = {"xytext": (-2, 3), "textcoords": "offset points", "ha": "right", "fontsize": 8}
                place = ("axes fraction", "data")
                axes.annotate(
                    short(system["label"], 26), (1, y), xycoords=place, color=PALETTE["snapshot"], **beside
                )
        axes.set_xlabel(COSTS[cost])
        axes.set_ylabel(f"{text_words.TITLES[metric]} on {view.split}")
        figure.legend(loc="outside lower center", ncols=3, handletextpad=0.2)
        # The chosen head first: where space is short, its label is the one that stays.
        points.sort(key=lambda point: (point[3] is not view.head, -point[1]))
        place_labels(axes, [(x, y, short(view.title(system), 28)) for x, y, _, system in points])
        return to_svg(figure, f"{text_words.TITLES[metric]} of {len(points)} systems against {COSTS[cost]}")


def fit_curves(results: Mapping[str, Any]) -> str | None:
    """Training loss and, where it was measured, the task's metric on dev of every fitted head, by epoch."""
    view, curves = text_rows.overview(results), results["curves"]["fit"]
    series = [(system, curves[system["name"]]) for system in view.systems if curves.get(system["name"])]
    title = f"{text_words.TITLES[results['task']['metric']]} on dev"
    drawn = [
        panel
        for panel in (("loss", "training loss"), ("dev_score", title))
        if any(known_points(entries, "epoch", panel[0])[0] for _, entries in series)
    ]
    if not drawn:
        return None
    with styled():
        figure = new_figure(1.75 * len(drawn) + 0.2 * -(-len(series) // 2) + 0.2)
        panels = figure.subplots(len(drawn), 1, sharex=True, squeeze=False)[:, 0]
        for panel, (key, name) in zip(panels, drawn, strict=True):
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
            panel.set_ylabel(name)
        panels[-1].set_xlabel("epoch of fitting")
        panels[-1].xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower center", ncols=2, handlelength=1.8, columnspacing=1.2
        )
        return to_svg(figure, f"Learning curves of {len(series)} heads by epoch of fitting")
