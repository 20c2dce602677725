"""The figures of a task's own details: confusions, calibration, predicted scores and their errors.

`results["details"]` holds them for the chosen head and its snapshot, one member each; which figures there are follows
from the keys a kind of task writes (Task.details); keys that are not drawn are listed as settings.

    confusion    (C, C) examples of the row's class that were given the column's class
    calibration  [{"low", "high", "count", "confidence", "accuracy"}] bins of the probability of the predicted class
    points       [[true, predicted]] of a draw of examples
    errors       {"edges", "counts"} histogram of predicted minus true
"""

from itertools import chain
from typing import Any

from bertvision.report.drawing import (
    DASHED,
    MARKERS,
    PALETTE,
    legend_below,
    new_figure,
    short,
    styled,
    to_svg,
)
from bertvision.report.results import View

KEYS = ("seed", "confusion", "calibration", "points", "errors")
"""What is drawn."""

_NAMED = 12
"""Classes up to which a figure has room for their names."""
_READABLE = 40
"""Classes up to which a matrix can be read at all."""

Compared = list[tuple[str, str, Any]]
"""What is drawn of the snapshot and the chosen head: (name of its colour, label, value)."""


def confusion(table: list[list[int]], classes: list[str], label: str) -> str | None:
    """Counts, shaded by their share of the row."""
    if len(table) > _READABLE:
        return None
    from matplotlib.patches import Rectangle

    size, named = len(table), len(table) <= _NAMED
    limit = 14 if size <= 4 else 9
    with styled():
        figure = new_figure(min(4.4, 1.5 + 0.42 * size))
        axes = figure.subplots()
        for row, counts in enumerate(table):
            total = sum(counts) or 1
            for column, count in enumerate(counts):
                colour = PALETTE["head" if row == column else "control"]
                look = {"facecolor": colour, "alpha": 0.06 + 0.64 * count / total, "edgecolor": "none"}
                axes.add_patch(Rectangle((column, row), 1, 1, **look))
                if named:
                    text = f"{count:,}" + (f"\n{100 * count / total:.0f} %" if size <= 6 else "")
                    axes.text(
                        column + 0.5, row + 0.5, text, ha="center", va="center", color=PALETTE["ink"],
                        fontsize=8.5 if size <= 6 else 7,
                    )  # fmt: skip
        axes.set_xlim(0, size)
        axes.set_ylim(size, 0)
        axes.grid(visible=False)
        names = (classes if len(classes) == size else list(map(str, range(size)))) if named else []
        places = [i + 0.5 for i in range(len(names))]
        axes.set_xticks(places, [short(name, limit) for name in names])
        axes.set_yticks(places, [short(name, limit + 4) for name in names])
        axes.tick_params(length=0)
        if named and size > 4:
            axes.tick_params(axis="x", labelrotation=35)
        axes.set_xlabel("predicted")
        axes.set_ylabel("true")
        axes.spines[["left", "bottom"]].set_visible(False)
        return to_svg(figure, f"Confusion matrix of {label} over {size} classes")


def calibration(curves: Compared) -> str:
    """Share of correct predictions against their mean probability; below, how many examples each bin has."""
    with styled():
        figure = new_figure(3.6)
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        upper.plot([0, 1], [0, 1], color=PALETTE["soft"], linewidth=1.0, linestyle=DASHED)
        for j, (kind, label, bins) in enumerate(curves):
            full = [part for part in bins if part["count"]]
            upper.plot(
                [part["confidence"] for part in full],
                [part["accuracy"] for part in full],
                color=PALETTE[kind], linewidth=1.6, marker=MARKERS[kind], markersize=4,
                label=short(label, 26),
            )  # fmt: skip
            total = sum(part["count"] for part in bins) or 1
            wide = 0.84 / len(bins) / len(curves)
            at = [(part["low"] + part["high"]) / 2 + (j - (len(curves) - 1) / 2) * wide for part in bins]
            lower.bar(at, [100 * part["count"] / total for part in bins], width=wide, color=PALETTE[kind])
        upper.set_ylim(0, 1.03)
        upper.set_ylabel("share correct")
        lower.set_xlim(0, 1)
        lower.set_ylabel("examples, %")
        lower.set_xlabel("probability of the predicted class")
        legend_below(figure, upper)
        return to_svg(figure, "Share of correct predictions by the probability of the predicted class")


def points(own: list[list[float]], drawn: list[float], label: str) -> str:
    """A point an example; on the dashed line the prediction is exact. The axes hold all of `drawn`."""
    low, high = min(drawn), max(drawn)
    reach = 0.04 * (high - low) or 1.0
    with styled():
        figure = new_figure(3.4)
        axes = figure.subplots()
        axes.plot([low, high], [low, high], color=PALETTE["ink"], linewidth=1.0, linestyle=DASHED)
        axes.scatter(*zip(*own, strict=True), s=9, color=PALETTE["head"], alpha=0.35, linewidths=0)
        axes.set_xlim(low - reach, high + reach)
        axes.set_ylim(low - reach, high + reach)
        axes.set_xlabel("true score")
        axes.set_ylabel("predicted score")
        return to_svg(figure, f"Predicted against true scores of {len(own)} examples by {label}")


def errors(found: Compared) -> str:
    """Histogram of predicted minus true."""
    with styled():
        figure = new_figure(3.0)
        axes = figure.subplots()
        axes.axvline(0, color=PALETTE["ink"], linewidth=1.0)
        for kind, label, histogram in found:
            # Densities: the two systems need not have bins of one width.
            scale = (sum(histogram["counts"]) or 1) * (histogram["edges"][1] - histogram["edges"][0])
            density = [count / scale for count in histogram["counts"]]
            look = {"linewidth": 1.6, "color": PALETTE[kind], "label": short(label, 26)}
            axes.stairs(density, histogram["edges"], **look)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("predicted minus true score")
        axes.set_ylabel("density")
        legend_below(figure, axes)
        return to_svg(figure, "Histogram of prediction errors")


def drawings(view: View) -> list[tuple[str | None, str, str]]:
    """Every figure with its title and caption."""
    both = [("snapshot", view.snapshot), ("head", view.head)]
    known = [(kind, s, view.results["details"].get(s["name"]) or {}) for kind, s in both if s is not None]

    def values(key: str) -> Compared:
        return [(kind, system["label"], own[key]) for kind, system, own in known if own.get(key)]

    # Both systems on the same axes, or the wider one would look as good as the narrower.
    every = list(chain.from_iterable(chain.from_iterable(value for _, _, value in values("points"))))
    found: list[tuple[str | None, str, str]] = []
    for _, system, own in reversed(known):
        name, classes = system["label"], list(map(str, view.results["task"].get("classes") or []))
        which = f" Seed {own['seed']}." if len(system["seeds"] or []) > 1 and "seed" in own else ""
        if own.get("confusion"):
            shaded = f"Examples, and their share of the true class. Blue: correct; orange: confused.{which}"
            found.append((confusion(own["confusion"], classes, name), f"Confusions of {name}", shaded))
        if own.get("points"):
            dots = f"A point an example (at most 1,500, drawn at random); dashed: exact.{which}"
            found.append((points(own["points"], every, name), f"Predictions of {name}", dots))
    if curves := values("calibration"):
        sure = "On the dashed line a probability is correct as often as it promises; below it the system is too sure."
        found.append((calibration(curves), "Calibration", sure))
    if histograms := values("errors"):
        narrow = "Left of zero the score was predicted too low. The narrower the better."
        found.append((errors(histograms), "Prediction errors", narrow))
    return found
