"""The figures of the report: inline SVG, the same bytes for the same results.

Each function takes checked results and gives an `<svg>` element, or None when there is nothing to draw; drawing.py and
system_figures.py hold what they share with others.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from bertvision.report import rows, words
from bertvision.report.drawing import NARROW, PALETTE, known_points, new_figure, styled, to_svg
from bertvision.report.system_figures import draw_costs, draw_curves, draw_differences, priced

__all__ = [
    "differences",
    "finetune_curve",
    "fit_curves",
    "layer_weights",
    "over_channels",
    "score_against_cost",
]


def _smooth(values: Sequence[float]) -> list[float]:
    """A running mean centred on each value, so that it does not lag, over about a tenth of them."""
    smoothed = []
    for i in range(len(values)):
        reach = min(max(1, len(values) // 20), i, len(values) - 1 - i)
        near = values[i - reach : i + reach + 1]
        smoothed.append(sum(near) / len(near))
    return smoothed


# ------------------------------------------------------------------------------------- learning curves


def finetune_curve(results: Mapping[str, Any]) -> str | None:
    """Loss of fine-tuning over epochs, the learning rate in a small panel below it, snapshots marked."""
    entries = results["curves"]["finetune"]
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
        for snapshot in _fractions(results):
            for panel in (loss_panel, rate_panel):
                panel.axvline(snapshot, color=PALETTE["control"], linewidth=1.1, linestyle=(0, (4, 2)))
            loss_panel.annotate(
                f"snapshot {snapshot:g}",
                (snapshot, 1),
                xycoords=("data", "axes fraction"),
                xytext=(-4, -2),
                textcoords="offset points",
                ha="right" if snapshot > max(epochs) / 5 else "left",
                va="top",
                fontsize=8,
            )
        return to_svg(figure, f"Training loss and learning rate over {epochs[-1]:g} epochs of fine-tuning")


def _fractions(results: Mapping[str, Any]) -> list[float]:
    found = set()
    for system in results["systems"]:
        fraction = words.fraction(system["snapshot"])
        if system["kind"] == "snapshot" and fraction:
            found.add(fraction)
    return sorted(found)


def fit_curves(results: Mapping[str, Any]) -> str | None:
    """Training loss and, where it was measured, dev F1 of every fitted head, by epoch."""
    panels = (("loss", "training loss"), ("dev_f1", "F1 on dev"))
    return draw_curves(rows.overview(results), results["curves"]["fit"], panels)


# ---------------------------------------------------------------------------------------- the findings


def over_channels(results: Mapping[str, Any], system: str) -> bool:
    """Whether a head weighs the pooled vector beside the states: it has one weight more than there are states."""
    weights = results["layer_weights"].get(system) or []
    return len(weights) - 1 == results["encoder"].get("states")


def _state_names(results: Mapping[str, Any], count: int) -> list[str]:
    """`input` for the embedding output, else the number of the layer; a fit may read only some of them."""
    total = results["encoder"].get("states") or count
    chosen = results.get("settings", {}).get("states", {}).get("layers") or range(count)
    return [str(number % total or "input") for number in chosen]


def layer_weights(results: Mapping[str, Any], system: str) -> str | None:
    """How much each hidden state weighs in one head; the dashed line is an even share."""
    raw = [words.finite(weight) for weight in results["layer_weights"].get(system) or []]
    if not raw or None in raw:
        return None
    weights = [weight for weight in raw if weight is not None]
    with styled():
        figure = new_figure(2.1, NARROW)
        axes = figure.subplots()
        axes.bar(range(len(weights)), weights, color=PALETTE["head"], width=0.72)
        axes.axhline(1 / len(weights), color=PALETTE["ink"], linewidth=0.9, linestyle=(0, (4, 2)))
        axes.grid(visible=False, axis="x")
        every = -(-len(weights) // 9)
        shown = [i for i in range(len(weights)) if i % every == 0 or i == len(weights) - 1]
        pooled = over_channels(results, system)
        names = ["pooled"] * pooled + _state_names(results, len(weights) - pooled)
        if pooled:  # the embedding output stands too near to the pooled vector for two words
            shown = [0, *(i + 1 for i in shown if 0 < i < len(weights) - 1)]
        axes.set_xticks(shown, [names[i] for i in shown])
        axes.tick_params(axis="x", length=0)
        axes.set_xlabel("hidden state")
        axes.set_ylabel("weight")
        axes.margins(y=0.16)
        if len(weights) <= 9:
            for i, weight in enumerate(weights):
                axes.annotate(
                    f"{weight:.2f}",
                    (i, max(weight, 0.0)),
                    xytext=(0, 2),
                    textcoords="offset points",
                    ha="center",
                    va="bottom",
                    bbox={"facecolor": PALETTE["paper"], "edgecolor": "none", "pad": 0.4},
                    fontsize=8,
                )
        return to_svg(figure, f"Weights of the {len(weights)} hidden states")


def score_against_cost(results: Mapping[str, Any], cost: str = "parameters") -> str | None:
    """F1 at the tuned threshold against what a head costs."""
    view = rows.overview(results)
    points = [one for s in view.systems for one in priced(s, cost, rows.f1(s, view.split))]
    lines = [(rows.f1(system, view.split), system["label"]) for system in view.of_kind("snapshot")]
    axis = f"F1 on {view.split}, tuned threshold"
    return draw_costs(view, points, lines, cost=cost, metric="F1", axis=axis)


def differences(results: Mapping[str, Any]) -> str | None:
    """Each system's F1 less its snapshot's, with its paired 95 % interval, at both thresholds."""
    view = rows.overview(results)
    found = []
    for system in view.systems:
        versus = system["versus"]
        if versus and versus.get("split", view.split) == view.split:
            parts = [words.difference(versus, threshold) for threshold in ("tuned", "zero")]
            if any(parts):
                found.append((system, parts))
    names = ["tuned threshold", "threshold 0"]
    return draw_differences(view, found, names, metric="F1", unit=", points")
