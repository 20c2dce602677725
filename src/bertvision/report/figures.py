"""The figures of all systems of a run: differences, score against cost, learning curves, layer weights.

Each function takes the view of checked results and gives an `<svg>` element, or None where there is nothing to draw.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bertvision import words
from bertvision.report.drawing import (
    DASHED,
    MARKERS,
    NARROW,
    PALETTE,
    SERIES,
    known_points,
    legend_below,
    new_figure,
    short,
    styled,
    to_svg,
)
from bertvision.report.results import System, View

if TYPE_CHECKING:
    from matplotlib.axes import Axes


COSTS = {"parameters": "trained parameters (log scale)", "flops_per_token": "FLOPs per token (log scale)"}
_FITTED = ("control", "head", "ensemble")
_LINES = ("-", "--", ":")
_PLACES = ((7, 0), (-7, 0), (0, 8), (0, -8), (6, 8), (-6, 8), (6, -8), (-6, -8))
"""Where a label may stand: right and up of its point, in font points."""


def differences(view: View) -> str | None:
    """Each system minus its snapshot, with the paired 95 % interval."""
    found = [(system, part) for system in view.systems if (part := view.difference(system))]
    if not found:
        return None
    look = {"color": PALETTE["head"], "marker": "o", "markersize": 5.0, "linewidth": 1.8}
    with styled():
        figure = new_figure(0.46 * len(found) + 0.8)
        axes = figure.subplots()
        axes.axvline(0, color=PALETTE["ink"], linewidth=1.0)
        for i, (system, part) in enumerate(found):
            size = part["difference"]
            reach = [[max(0.0, size - part["low"])], [max(0.0, part["high"] - size)]]
            axes.errorbar(size, i, xerr=reach, zorder=3, **look)
            # The name above its row, on a ground of its own: no line runs through it.
            axes.annotate(
                short(view.name(system), 44), (0, i), xycoords=("axes fraction", "data"), xytext=(0, 6),
                textcoords="offset points", va="bottom", fontsize=8.5,
                fontweight="bold" if system is view.head else "normal",
                bbox={"facecolor": PALETTE["paper"], "edgecolor": "none", "pad": 1.0},
            )  # fmt: skip
        axes.set_ylim(len(found) - 0.45, -0.75)
        axes.grid(visible=False, axis="y")
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(f"{view.title()} on {view.split} minus the snapshot's, with 95 % interval")
        return to_svg(figure, f"Differences of {len(found)} systems to their snapshot in {view.title()}")


def score_against_cost(view: View, cost: str = "parameters") -> str | None:
    """The metric against what a head costs; bars are one standard deviation over seeds, lines are snapshots."""
    points = [
        (price, score, system)
        for system in view.systems
        if system["kind"] in _FITTED
        and (score := view.mean(system)) is not None
        and (price := words.finite(system[cost]) or 0.0) > 0
    ]
    if not points:
        return None
    with styled():
        figure = new_figure(3.4)
        axes = figure.subplots()
        axes.set_xscale("log")
        least, most = min(price for price, _, _ in points), max(price for price, _, _ in points)
        if least == most:  # no range to scale the axis by
            axes.set_xlim(least / 4, most * 4)
        axes.xaxis.set_major_formatter(lambda value, _: re.sub(r"\.0+", "", words.compact(value)))
        axes.xaxis.set_minor_formatter(lambda _value, _: "")
        for kind in _FITTED:
            own = [point for point in points if point[2]["kind"] == kind]
            if own:
                axes.errorbar(
                    [price for price, _, _ in own],
                    [score for _, score, _ in own],
                    yerr=[words.finite(view.score(system).get("sd")) or 0.0 for _, _, system in own],
                    fmt=MARKERS[kind], markersize=6, color=PALETTE[kind], markeredgecolor=PALETTE["ink"],
                    markeredgewidth=0.6, elinewidth=1.0, label=kind, zorder=3,
                )  # fmt: skip
        axes.margins(x=0.12, y=0.14)
        for system in view.of_kind("snapshot"):
            if (y := view.mean(system)) is not None:
                axes.axhline(y, color=PALETTE["snapshot"], linewidth=1.2, linestyle=DASHED)
                axes.annotate(
                    short(system["label"], 26), (1, y), xycoords=("axes fraction", "data"), xytext=(-2, 3),
                    textcoords="offset points", ha="right", fontsize=8, color=PALETTE["snapshot"],
                )  # fmt: skip
        axes.set_xlabel(COSTS[cost])
        axes.set_ylabel(f"{view.title()} on {view.split}")
        legend_below(figure, axes, 3)
        # The chosen head first: where space is short, its label is the one that stays.
        ordered = sorted(points, key=lambda point: (point[2] is not view.head, -point[1]))
        place_labels(axes, [(x, y, short(view.name(system), 28)) for x, y, system in ordered])
        return to_svg(figure, f"{view.title()} of {len(points)} systems against {COSTS[cost]}")


def place_labels(axes: "Axes", points: Sequence[tuple[float, float, str]]) -> None:
    """Write each label beside its point where it covers neither a point nor another label, or leave it out."""
    from matplotlib.transforms import Bbox

    root = axes.get_figure(root=True)
    assert root is not None
    root.draw_without_rendering()  # settles the layout, so that extents are final
    taken = [Bbox([dot - 5, dot + 5]) for dot in (axes.transData.transform((x, y)) for x, y, _ in points)]
    frame = axes.get_window_extent()
    for x, y, label in points:
        for right, up in _PLACES:
            text = axes.annotate(label, (x, y), xytext=(right, up), textcoords="offset points", fontsize=8)
            text.set_horizontalalignment("left" if right > 0 else "right" if right else "center")
            text.set_verticalalignment("bottom" if up > 0 else "top" if up else "center")
            box = text.get_window_extent()
            inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
            if inside and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            text.remove()


# ---- learning curves


def finetune_curve(view: View) -> str | None:
    """Loss of fine-tuning over epochs, snapshots marked, the learning rate in a small panel below it."""
    entries = view.results["curves"]["finetune"]
    epochs, losses = known_points(entries, "epoch", "loss")
    if len(epochs) < 2:
        return None
    with styled():
        figure = new_figure(3.5)
        loss_panel, rate_panel = figure.subplots(2, 1, sharex=True, height_ratios=(3.2, 1))
        loss_panel.plot(epochs, losses, color=PALETTE["head"], linewidth=0.8, alpha=0.35)
        loss_panel.plot(epochs, _smooth(losses), color=PALETTE["head"], linewidth=1.8)
        loss_panel.set_ylabel("training loss")
        loss_panel.set_ylim(bottom=0)
        at, rates = known_points(entries, "epoch", "lr")
        rate_panel.plot(at, rates, color=PALETTE["soft"], linewidth=1.4)
        rate_panel.set_ylim(0, max(rates, default=1.0) * 1.15 or 1.0)
        rate_panel.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
        rate_panel.yaxis.get_offset_text().set(fontsize=7.5, color=PALETTE["soft"])
        rate_panel.locator_params(axis="y", nbins=2)
        rate_panel.set_ylabel("rate")
        rate_panel.set_xlabel("epoch")
        for epoch in sorted({_epoch(system) for system in view.of_kind("snapshot")} - {0.0}):
            for panel in (loss_panel, rate_panel):
                panel.axvline(epoch, color=PALETTE["control"], linewidth=1.1, linestyle=DASHED)
            loss_panel.annotate(
                f"snapshot {epoch:g}", (epoch, 1), xycoords=("data", "axes fraction"), xytext=(-4, -2),
                textcoords="offset points", ha="right" if epoch > max(epochs) / 5 else "left", va="top", fontsize=8,
            )  # fmt: skip
        return to_svg(figure, f"Training loss and learning rate over {epochs[-1]:g} epochs of fine-tuning")


def _epoch(snapshot: System) -> float:
    """The epochs in a snapshot's name; 0 where it has none."""
    known = re.search(r"(\d+(?:\.\d+)?)$", str(snapshot["snapshot"]))
    return float(known[1]) if known else 0.0


def _smooth(values: Sequence[float]) -> list[float]:
    """A running mean centred on each value, so that it does not lag, over about a tenth of them."""
    smoothed = []
    for i in range(len(values)):
        reach = min(max(1, len(values) // 20), i, len(values) - 1 - i)
        near = values[i - reach : i + reach + 1]
        smoothed.append(sum(near) / len(near))
    return smoothed


def fit_curves(view: View) -> str | None:
    """Training loss and, where it was measured, the metric on dev of every fitted head, by epoch."""
    curves = view.results["curves"]["fit"]
    series = [(system, curves[system["name"]]) for system in view.systems if curves.get(system["name"])]
    panels = [
        (key, title)
        for key, title in (("loss", "training loss"), ("score", f"{view.title()} on dev"))
        if any(known_points(entries, "epoch", key)[0] for _, entries in series)
    ]
    if not panels:
        return None
    with styled():
        figure = new_figure(1.75 * len(panels) + 0.2 * -(-len(series) // 2) + 0.2)
        axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        for panel, (key, title) in zip(axes, panels, strict=True):
            for i, (system, entries) in enumerate(series):
                panel.plot(
                    *known_points(entries, "epoch", key),
                    color=SERIES[i % len(SERIES)],
                    linestyle=_LINES[i // len(SERIES) % len(_LINES)],
                    linewidth=2.2 if system is view.head else 1.4,
                    marker="o",
                    markersize=2.5,
                    label=short(view.name(system), 26),
                )
            panel.set_ylabel(title)
        axes[-1].set_xlabel("epoch of fitting")
        # One tick is enough where there was one epoch; more would be fractions of it.
        axes[-1].xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        legend_below(figure, axes[0])
        return to_svg(figure, f"Learning curves of {len(series)} heads by epoch of fitting")


# ---- layer weights


def first_weight(view: View, system: System) -> str:
    """What a head weighs first: the pooled vector, where it has one weight more than there are states."""
    weights = view.results["layer_weights"].get(system["name"]) or []
    pooled = len(weights) - 1 == view.results["encoder"].get("states")
    return "The pooled vector, then input" if pooled else "Input"


def layer_weights(view: View, system: System) -> str | None:
    """How much each hidden state weighs in one head; the dashed line is an even share."""
    raw = [words.finite(weight) for weight in view.results["layer_weights"].get(system["name"]) or []]
    weights = [weight for weight in raw if weight is not None]
    if not weights or len(weights) < len(raw):
        return None
    pooled = "pooled" in first_weight(view, system)
    names = ["pooled"] * pooled + _state_names(view, len(weights) - pooled)
    every = -(-len(weights) // 9)
    shown = [i for i in range(len(weights)) if i % every == 0 or i == len(weights) - 1]
    if pooled:  # the embedding output stands too near to the pooled vector for two words
        shown = [0, *(i + 1 for i in shown if 0 < i < len(weights) - 1)]
    with styled():
        figure = new_figure(2.1, NARROW)
        axes = figure.subplots()
        axes.bar(range(len(weights)), weights, color=PALETTE["head"], width=0.72)
        axes.axhline(1 / len(weights), color=PALETTE["ink"], linewidth=0.9, linestyle=DASHED)
        axes.grid(visible=False, axis="x")
        axes.set_xticks(shown, [names[i] for i in shown])
        axes.tick_params(axis="x", length=0)
        axes.set_xlabel("hidden state")
        axes.set_ylabel("weight")
        axes.margins(y=0.16)
        for i, weight in enumerate(weights if len(weights) <= 9 else []):
            axes.annotate(
                f"{weight:.2f}", (i, max(weight, 0.0)), xytext=(0, 2), textcoords="offset points", ha="center",
                va="bottom", bbox={"facecolor": PALETTE["paper"], "edgecolor": "none", "pad": 0.4}, fontsize=8,
            )  # fmt: skip
        return to_svg(figure, f"Weights of the {len(weights)} hidden states")


def _state_names(view: View, count: int) -> list[str]:
    """`input` for the embedding output, else the number of the layer; a fit may read only some of them."""
    total = view.results["encoder"].get("states") or count
    states: Any = view.results["settings"].get("states") or {}
    return [str(number % total or "input") for number in states.get("layers") or range(count)]
