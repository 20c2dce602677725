"""The figures of a label or score report: inline SVG in the style of figures.py.

Each function takes checked results and gives an `<svg>` element, or None when there is nothing to draw. Those about one
system take its name and read `results["details"]`.
"""

from collections.abc import Mapping
from typing import Any

from bertvision.report import text_rows, text_words
from bertvision.report.drawing import (
    MARKERS,
    PALETTE,
    new_figure,
    short,
    styled,
    to_svg,
)
from bertvision.report.system_figures import draw_costs, draw_curves, draw_differences, priced
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
    found = [(s, [part]) for s in view.systems if (part := text_words.paired(s["versus"], view.split))]
    return draw_differences(view, found, metric=text_words.TITLES[results["task"]["metric"]])


def score_against_cost(results: Mapping[str, Any], cost: str = "parameters") -> str | None:
    """The task's metric against what a head costs; bars are one standard deviation over seeds."""
    view, metric = text_rows.overview(results), metrics_of(results)[0]
    points = []
    for system in view.systems:
        spread = (system["scores"].get(view.split, {}).get("spread") or {}).get(metric)
        points += priced(system, cost, text_rows.mean(system, view.split, metric), spread)
    lines = [(text_rows.mean(s, view.split, metric), s["label"]) for s in view.of_kind("snapshot")]
    title = text_words.TITLES[metric]
    return draw_costs(view, points, lines, cost=cost, metric=title, axis=f"{title} on {view.split}")


def fit_curves(results: Mapping[str, Any]) -> str | None:
    """Training loss and, where it was measured, the task's metric on dev of every fitted head, by epoch."""
    title = f"{text_words.TITLES[results['task']['metric']]} on dev"
    panels = (("loss", "training loss"), ("dev_score", title))
    return draw_curves(text_rows.overview(results), results["curves"]["fit"], panels)
