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
from bertvision.report.results import System, View

__all__ = ["KEYS", "calibration", "confusion", "drawings", "errors", "points"]

KEYS = ("seed", "confusion", "calibration", "points", "errors")
"""What is drawn."""

_NAMED = 12
"""Classes up to which a figure has room for their names."""
_READABLE = 40
"""Classes up to which a matrix or a histogram can be read at all."""


def _detail(view: View, system: System, key: str) -> Any:
    return (view.results["details"].get(system["name"]) or {}).get(key)


def _compared(view: View) -> list[tuple[str, System]]:
    """The snapshot and the chosen head, as far as there are any, with the names of their colours."""
    return [(kind, s) for kind, s in (("snapshot", view.snapshot), ("head", view.head)) if s is not None]


def _found(view: View, key: str) -> list[tuple[str, System, Any]]:
    return [(kind, s, value) for kind, s in _compared(view) if (value := _detail(view, s, key))]


def _classes(view: View, count: int) -> list[str]:
    names = view.results["task"].get("classes") or []
    return [str(name) for name in names] if len(names) == count else [str(i) for i in range(count)]


def confusion(view: View, system: System) -> str | None:
    """Counts, shaded by their share of the row."""
    table = _detail(view, system, "confusion")
    if not table or len(table) > _READABLE:
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
        names = _classes(view, size) if named else []
        places = [i + 0.5 for i in range(len(names))]
        axes.set_xticks(places, [short(name, limit) for name in names])
        axes.set_yticks(places, [short(name, limit + 4) for name in names])
        axes.tick_params(length=0)
        if named and size > 4:
            axes.tick_params(axis="x", labelrotation=35)
        axes.set_xlabel("predicted")
        axes.set_ylabel("true")
        axes.spines[["left", "bottom"]].set_visible(False)
        return to_svg(figure, f"Confusion matrix of {system['label']} over {size} classes")


def calibration(view: View) -> str | None:
    """Share of correct predictions against their mean probability; below, how many examples each bin has."""
    curves = _found(view, "calibration")
    if not curves:
        return None
    with styled():
        figure = new_figure(3.6)
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        upper.plot([0, 1], [0, 1], color=PALETTE["soft"], linewidth=1.0, linestyle=DASHED)
        for j, (kind, system, bins) in enumerate(curves):
            full = [part for part in bins if part["count"]]
            upper.plot(
                [part["confidence"] for part in full],
                [part["accuracy"] for part in full],
                color=PALETTE[kind], linewidth=1.6, marker=MARKERS[kind], markersize=4,
                label=short(system["label"], 26),
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


def points(view: View, system: System) -> str | None:
    """A point an example; on the dashed line the prediction is exact."""
    own = _detail(view, system, "points")
    if not own:
        return None
    # Both systems on the same axes, or the wider one would look as good as the narrower.
    drawn = list(chain.from_iterable(chain.from_iterable(value for _, _, value in _found(view, "points"))))
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
        return to_svg(figure, f"Predicted against true scores of {len(own)} examples by {system['label']}")


def errors(view: View) -> str | None:
    """Histogram of predicted minus true."""
    found = _found(view, "errors")
    if not found:
        return None
    with styled():
        figure = new_figure(3.0)
        axes = figure.subplots()
        axes.axvline(0, color=PALETTE["ink"], linewidth=1.0)
        for kind, system, histogram in found:
            # Densities: the two systems need not have bins of one width.
            scale = (sum(histogram["counts"]) or 1) * (histogram["edges"][1] - histogram["edges"][0])
            density = [count / scale for count in histogram["counts"]]
            label = short(system["label"], 26)
            axes.stairs(density, histogram["edges"], linewidth=1.6, color=PALETTE[kind], label=label)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("predicted minus true score")
        axes.set_ylabel("density")
        legend_below(figure, axes)
        return to_svg(figure, "Histogram of prediction errors")


def drawings(view: View) -> list[tuple[str | None, str, str]]:
    """Every figure with its title and caption; None where there is nothing to draw."""
    found: list[tuple[str | None, str, str]] = []
    for _, system in reversed(_compared(view)):
        seed, name = _detail(view, system, "seed"), system["label"]
        which = f" Seed {seed}." if seed is not None and len(system["seeds"] or []) > 1 else ""
        shaded = f"Examples, and their share of the true class. Blue: correct; orange: confused.{which}"
        dots = f"A point an example (at most 1,500, drawn at random); dashed: exact.{which}"
        found.append((confusion(view, system), f"Confusions of {name}", shaded))
        found.append((points(view, system), f"Predictions of {name}", dots))
    sure = "On the dashed line a probability is correct as often as it promises; below it the system is too sure."
    narrow = "Left of zero the score was predicted too low. The narrower the better."
    return [*found, (calibration(view), "Calibration", sure), (errors(view), "Prediction errors", narrow)]
