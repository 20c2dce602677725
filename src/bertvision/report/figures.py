"""The figures of a report, as inline SVG in one look.

Matplotlib draws with the light palette below; in the finished SVG every palette colour becomes a CSS variable with the
light colour as its fallback (`var(--fig-head, #0072b2)`), so that the page can turn dark and the figure still stands
alone. All figures share one width, small enough to be read on a phone without scrolling. Colours are those of Okabe and
Ito, safe for colour-blind readers; marker shapes say the same again for print.

The functions of a part of the page take the view of checked results and give a list of figures, empty where there is
nothing to draw.
"""

import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np

from bertvision import words
from bertvision.report.results import View

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

NARROW = 3.5  # inches; for figures that stand three abreast
DASHED = (0, (4, 2))
PALETTE = {
    "ink": "#24292f",
    "soft": "#626a73",
    "grid": "#e3e6ea",
    "paper": "#fefefe",
    "snapshot": "#5c6670",
    "control": "#e69f00",
    "head": "#0072b2",
    "ensemble": "#aa5a8c",
    "baseline": "#9aa3ad",
}
MARKERS = {"snapshot": "s", "control": "D", "head": "o", "ensemble": "^"}
SERIES = ("#0173b3", "#d65f01", "#029f74", "#cc7aa8", "#57b5e9", "#e5a000", "#6d6d6d")
COSTS = {
    "parameters": (
        "Trained parameters",
        "trained parameters (log scale)",
        "Up and to the left is better. Dashed: the snapshot; bars: one standard deviation over seeds.",
    ),
    "flops_per_token": (
        "FLOPs per token",
        "FLOPs per token (log scale)",
        "What a head adds to each token: few parameters can still cost many FLOPs.",
    ),
}
"""Of a system: title, axis and caption of the figure."""
DETAILS = ("seed", "confusion", "calibration", "points", "errors")
"""The keys of a system's details that are drawn; see `details`."""
_FITTED = ("control", "head", "ensemble")
_LINES = ("-", "--", ":")
_PLACES = ((7, 0), (-7, 0), (0, 8), (0, -8), (6, 8), (-6, 8), (6, -8), (-6, -8))
"""Where a label may stand: right and up of its point, in font points."""
_NAMED, _READABLE = 12, 40
"""Classes up to which a confusion matrix has room for their names, and can be read at all."""
_VARIABLES = {colour: f"var(--fig-{name}, {colour})" for name, colour in PALETTE.items()}
_VARIABLES |= {colour: f"var(--fig-series-{i}, {colour})" for i, colour in enumerate(SERIES)}
_COLOUR = re.compile("|".join(_VARIABLES))
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be searched, read aloud, and takes the page's own font
    "svg.hashsalt": "bertvision",  # the same bytes for the same results
    "text.parse_math": False,  # a head labelled "$x" is a label, not a formula
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "text.color": PALETTE["ink"],
    "axes.labelcolor": PALETTE["soft"],
    "axes.edgecolor": PALETTE["baseline"],
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.formatter.useoffset": False,
    "grid.color": PALETTE["grid"],
    "legend.frameon": False,
    "lines.solid_capstyle": "round",
    **{f"axes.spines.{side}": False for side in ("top", "right")},
    **{f"{part}.linewidth": 0.8 for part in ("axes", "grid")},
    **{name: 8.5 for name in ("axes.labelsize", "xtick.labelsize", "ytick.labelsize", "legend.fontsize")},
    **{f"{axis}tick.color": PALETTE["baseline"] for axis in "xy"},
    **{f"{axis}tick.labelcolor": PALETTE["soft"] for axis in "xy"},
}

Cells = Mapping[tuple[int, int], tuple[str, dict[str, Any], dict[str, Any]]]
"""(column, row) -> text, look of the square, look of the text."""
Compared = list[tuple[str, str, Any]]
"""What is drawn of the snapshot and the chosen head: (name of its colour, label, value)."""


@dataclass(frozen=True)
class Figure:
    svg: str
    title: str
    caption: str = ""


@contextmanager
def canvas(height: float, width: float = 4.6, **panels: Any) -> "Iterator[tuple[Canvas, Any]]":
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        # A label in a script the font lacks is drawn by the browser's fonts; only its width is a guess.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = Canvas(figsize=(width, height), layout="constrained", facecolor="none")
        yield figure, figure.subplots(**panels)


def to_svg(figure: "Canvas", described: str) -> str:
    """The figure as an element to stand inside a page: no namespaces, no ids or styles that could leak."""
    for axes in figure.axes:
        axes.set_facecolor("none")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, facecolor="none")
    root = ElementTree.fromstring(buffer.getvalue())
    for parent in list(root.iter()):
        for child in list(parent):
            # The style sheet of a figure would apply to the whole page.
            if child.tag.endswith(("}metadata", "}style")):
                parent.remove(child)
    used = set(re.findall(r"#([\w-]+)", " ".join(v for e in root.iter() for v in e.attrib.values())))
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {
            key.rpartition("}")[2]: _COLOUR.sub(lambda hit: _VARIABLES[hit[0]], value)
            for key, value in element.attrib.items()
            if key != "id" or value in used
        }
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    style = "stroke-linejoin: round; stroke-linecap: butt"
    root.attrib |= {"style": style, "role": "img", "aria-label": described}
    return ElementTree.tostring(root, encoding="unicode")


def write(axes: "Axes", text: str, at: tuple[float, float], shift: tuple[float, float], **look: Any) -> Any:
    """A small text, shifted by font points from its place."""
    return axes.annotate(text, at, xytext=shift, textcoords="offset points", fontsize=8, **look)


def legend_below(figure: "Canvas", axes: "Axes", columns: int = 2) -> None:
    look = {"ncols": columns, "handlelength": 1.5, "columnspacing": 1.2}
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", **look)


def matrix(
    cells: Cells,
    columns: Sequence[str],
    rows: Sequence[str],
    axes: tuple[str, str],
    described: str,
    height: float | None = None,
) -> str:
    """Squares with a text each, the first row at the bottom."""
    from matplotlib.patches import Rectangle

    with canvas(height or 0.42 * len(rows) + 1.1) as (figure, panel):
        for (x, y), (text, square, ink) in cells.items():
            panel.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, **square))
            panel.text(x, y, text, ha="center", va="center", linespacing=1.15, **ink)
        ends = [(-0.5, len(names) - 0.5) for names in (columns, rows)]
        panel.set(xlim=ends[0], ylim=ends[1], xlabel=axes[0], ylabel=axes[1])
        turned = len(columns) * max(map(len, columns)) > 50
        look: dict[str, Any] = {"rotation": 30, "ha": "right"} if turned else {}
        panel.set_xticks(range(len(columns)), columns, **look)
        panel.set_yticks(range(len(rows)), rows)
        panel.tick_params(length=0)
        panel.grid(visible=False)
        panel.spines[:].set_visible(False)
        return to_svg(figure, described)


def short(label: Any, limit: int = 26) -> str:
    text = str(label)
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def log_scale(axes: "Axes", write: Callable[[float], str]) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: write(value))
    axes.xaxis.set_minor_formatter(lambda _value, _: "")


def score_against_cost(view: View, cost: str) -> list[Figure]:
    points = [
        (price, score, system)
        for system in view.systems
        if system["kind"] in _FITTED
        and (score := view.mean(system)) is not None
        and (price := words.finite(system[cost]) or 0.0) > 0
    ]
    if not points:
        return []
    title, label, caption = COSTS[cost]
    with canvas(3.4) as (figure, axes):
        log_scale(axes, lambda value: re.sub(r"\.0+", "", words.compact(value)))
        least, most = min(price for price, _, _ in points), max(price for price, _, _ in points)
        if least == most:  # no range to scale the axis by
            axes.set_xlim(least / 4, most * 4)
        for kind in _FITTED:
            if own := [point for point in points if point[2]["kind"] == kind]:
                prices, scores, systems = zip(*own, strict=True)
                axes.errorbar(
                    prices, scores, yerr=[words.finite(view.score(s).get("sd")) or 0.0 for s in systems],
                    fmt=MARKERS[kind], markersize=6, color=PALETTE[kind], markeredgecolor=PALETTE["ink"],
                    markeredgewidth=0.6, elinewidth=1.0, label=kind, zorder=3,
                )  # fmt: skip
        axes.margins(x=0.12, y=0.14)
        for system in view.of_kind("snapshot"):
            if (y := view.mean(system)) is not None:
                look: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "color": PALETTE["snapshot"]}
                axes.axhline(y, color=PALETTE["snapshot"], linewidth=1.2, linestyle=DASHED)
                write(axes, short(system["label"]), (1, y), (-2, 3), ha="right", **look)
        axes.set(xlabel=label, ylabel=f"{view.title()} on {view.split}")
        legend_below(figure, axes, 3)
        # The chosen head first: where space is short, its label is the one that stays.
        ordered = sorted(points, key=lambda point: (point[2] is not view.head, -point[1]))
        place_labels(axes, [(x, y, short(view.name(system), 28)) for x, y, system in ordered])
        svg = to_svg(figure, f"{view.title()} of {len(points)} systems against {label}")
    return [Figure(svg, f"{title} and {view.title()}", caption)]


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
            text = write(axes, label, (x, y), (right, up))
            text.set_horizontalalignment("left" if right > 0 else "right" if right else "center")
            text.set_verticalalignment("bottom" if up > 0 else "top" if up else "center")
            box = text.get_window_extent()
            inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
            if inside and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            text.remove()


def _known(entries: Sequence[Mapping[str, Any]], up: str) -> tuple[list[float], list[float]]:
    pairs = [(words.finite(entry.get("epoch")), words.finite(entry.get(up))) for entry in entries]
    kept = [(x, y) for x, y in pairs if x is not None and y is not None]
    return [x for x, _ in kept], [y for _, y in kept]


def finetune_curve(view: View) -> list[Figure]:
    epochs, losses = _known(view.results["curves"]["finetune"], "loss")
    if len(epochs) < 2:
        return []
    wide = 2 * (len(losses) // 20) + 1  # the running mean, over about a tenth of the steps
    means = np.convolve(losses, np.ones(wide) / wide, "valid")
    with canvas(3.0) as (figure, axes):
        axes.plot(epochs, losses, color=PALETTE["head"], linewidth=0.8, alpha=0.35)
        axes.plot(epochs[wide // 2 : len(epochs) - wide // 2], means, color=PALETTE["head"], linewidth=1.8)
        axes.set(xlabel="epoch", ylabel="training loss")
        axes.set_ylim(bottom=0)
        names = [re.search(r"\d+(?:\.\d+)?$", str(system["snapshot"])) for system in view.of_kind("snapshot")]
        for epoch in sorted({float(name[0]) for name in names if name} - {0.0}):
            axes.axvline(epoch, color=PALETTE["control"], linewidth=1.1, linestyle=DASHED)
            look: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "va": "top"}
            side = "right" if epoch > max(epochs) / 5 else "left"
            write(axes, f"snapshot {epoch:g}", (epoch, 1), (-4, -2), ha=side, **look)
        svg = to_svg(figure, f"Training loss over {epochs[-1]:g} epochs of fine-tuning")
    return [Figure(svg, "Fine-tuning the encoder", "Thin: each recorded step; thick: running mean.")]


def fit_curves(view: View) -> list[Figure]:
    curves = view.results["curves"]["fit"]
    series = [(system, curves[system["name"]]) for system in view.systems if curves.get(system["name"])]
    titles = {"loss": "training loss", "score": f"{view.title()} on dev"}
    panels = [key for key in titles if any(_known(entries, key)[0] for _, entries in series)]
    if not panels:
        return []
    height = 1.75 * len(panels) + 0.2 * -(-len(series) // 2) + 0.2
    with canvas(height, nrows=len(panels), sharex=True, squeeze=False) as (figure, axes):
        axes = axes[:, 0]
        for panel, key in zip(axes, panels, strict=True):
            for i, (system, entries) in enumerate(series):
                panel.plot(
                    *_known(entries, key), color=SERIES[i % len(SERIES)], marker="o", markersize=2.5,
                    linestyle=_LINES[i // len(SERIES) % len(_LINES)], linewidth=2.2 if system is view.head else 1.4,
                    label=short(view.name(system)),
                )  # fmt: skip
            panel.set_ylabel(titles[key])
        axes[-1].set_xlabel("epoch of fitting")
        # One tick is enough where there was one epoch; more would be fractions of it.
        axes[-1].xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        legend_below(figure, axes[0])
        svg = to_svg(figure, f"Learning curves of {len(series)} heads by epoch of fitting")
    return [Figure(svg, "Fitting the heads", "The snapshot stays frozen. With several seeds, their mean.")]


def layer_weights(view: View) -> list[Figure]:
    """How much each hidden state weighs in the heads that mix them; the dashed line is an even share."""
    kept = {system["name"]: system for system in view.systems}
    known = [
        (view.name(kept[name]), weights)
        for name, weights in view.results["layer_weights"].items()
        if name in kept and weights and all(words.finite(weight) is not None for weight in weights)
    ]
    return [Figure(_weights(weights, _state_names(view, len(weights))), name) for name, weights in known[:6]]


def _weights(weights: Sequence[float], names: Sequence[str]) -> str:
    with canvas(2.1, NARROW) as (figure, axes):
        axes.bar(range(len(weights)), weights, color=PALETTE["head"], width=0.72)
        axes.axhline(1 / len(weights), color=PALETTE["ink"], linewidth=0.9, linestyle=DASHED)
        axes.grid(visible=False, axis="x")
        shown = range(0, len(weights), -(-len(weights) // 9))
        axes.set_xticks(shown, [names[i] for i in shown])
        axes.tick_params(axis="x", length=0)
        axes.set(xlabel="hidden state", ylabel="weight")
        axes.margins(y=0.16)
        ground = {"facecolor": PALETTE["paper"], "edgecolor": "none", "pad": 0.4}  # lines run behind the text
        for i, weight in enumerate(weights if len(weights) <= 9 else []):
            look: dict[str, Any] = {"ha": "center", "va": "bottom", "bbox": ground}
            write(axes, f"{weight:.2f}", (i, max(weight, 0.0)), (0, 2), **look)
        return to_svg(figure, f"Weights of the {len(weights)} hidden states")


def _state_names(view: View, count: int) -> list[str]:
    """`input` for the embedding output, else the number of the layer; a fit may read only some of them."""
    total = view.results["encoder"].get("states") or count
    pooled = ["pool"] * (count == total + 1)  # the pooled vector is weighed first
    layers = (view.results["settings"].get("states") or {}).get("layers") or range(count - len(pooled))
    return pooled + [str(number % total or "input") for number in layers]


def details(view: View) -> list[Figure]:
    """Confusions, calibration, predicted scores and their errors, of the chosen head and its snapshot.

    `results["details"]` holds them, one member each; which figures there are follows from the keys a kind of task
    writes (Task.details); keys that are not drawn are listed as settings.

        confusion    (C, C) examples of the row's class that were given the column's class
        calibration  [{"low", "high", "count", "confidence", "accuracy"}] bins of the probability of the predicted class
        points       [[true, predicted]] of a draw of examples
        errors       {"edges", "counts"} histogram of predicted minus true
    """
    both = [("snapshot", view.snapshot), ("head", view.head)]
    known = [(kind, s, view.results["details"].get(s["name"]) or {}) for kind, s in both if s is not None]

    def values(key: str) -> Compared:
        return [(kind, system["label"], own[key]) for kind, system, own in known if own.get(key)]

    # Both systems on the same axes, or the wider one would look as good as the narrower.
    every = list(chain.from_iterable(chain.from_iterable(value for _, _, value in values("points"))))
    classes = list(map(str, view.results["task"].get("classes") or []))
    found: list[Figure] = []
    for _, system, own in reversed(known):
        name = system["label"]
        which = f" Seed {own['seed']}." if len(system["seeds"] or []) > 1 and "seed" in own else ""
        if 0 < len(own.get("confusion") or []) <= _READABLE:
            shaded = f"Examples, and their share of the true class. Blue: correct; orange: confused.{which}"
            found.append(Figure(_confusion(own["confusion"], classes, name), f"Confusions of {name}", shaded))
        if own.get("points"):
            dots = f"A point an example (at most 1,500, drawn at random); dashed: exact.{which}"
            found.append(Figure(_points(own["points"], every, name), f"Predictions of {name}", dots))
    if curves := values("calibration"):
        sure = "On the dashed line a probability is correct as often as it promises; below it the system is too sure."
        found.append(Figure(_calibration(curves), "Calibration", sure))
    if histograms := values("errors"):
        narrow = "Left of zero the score was predicted too low. The narrower the better."
        found.append(Figure(_errors(histograms), "Prediction errors", narrow))
    return found


def _confusion(table: list[list[int]], classes: list[str], label: str) -> str:
    size, cells = len(table), dict[tuple[int, int], Any]()
    ink = {"fontsize": 8.5 if size <= 6 else 7}
    for row, counts in enumerate(reversed(table)):
        for column, count in enumerate(counts):
            share = count / (sum(counts) or 1)
            text = f"{count:,}" + (f"\n{100 * share:.0f} %" if size <= 6 else "")
            colour = PALETTE["head" if row + column == size - 1 else "control"]
            square = {"facecolor": colour, "alpha": 0.06 + 0.64 * share, "edgecolor": "none"}
            cells[column, row] = (text if size <= _NAMED else "", square, ink)
    names = [short(name, 14 if size <= 4 else 9) for name in classes] if size <= _NAMED else [""] * size
    described = f"Confusion matrix of {label} over {size} classes"
    height = min(4.4, 1.5 + 0.42 * size)
    return matrix(cells, names, names[::-1], ("predicted", "true"), described, height)


def _calibration(curves: Compared) -> str:
    with canvas(3.2) as (figure, axes):
        axes.plot([0, 1], [0, 1], color=PALETTE["soft"], linewidth=1.0, linestyle=DASHED)
        for kind, label, bins in curves:
            points = [(part["confidence"], part["accuracy"]) for part in bins if part["count"]]
            look: dict[str, Any] = {"color": PALETTE[kind], "marker": MARKERS[kind], "markersize": 4}
            axes.plot(*zip(*points, strict=True), linewidth=1.6, label=short(label), **look)
        axes.set(xlim=(0, 1), ylim=(0, 1.03))
        axes.set(xlabel="probability of the predicted class", ylabel="share correct")
        legend_below(figure, axes)
        return to_svg(figure, "Share of correct predictions by the probability of the predicted class")


def _points(own: list[list[float]], drawn: list[float], label: str) -> str:
    """The axes hold all of `drawn`."""
    low, high = min(drawn), max(drawn)
    reach = 0.04 * (high - low) or 1.0
    ends = (low - reach, high + reach)
    with canvas(3.4) as (figure, axes):
        axes.plot([low, high], [low, high], color=PALETTE["ink"], linewidth=1.0, linestyle=DASHED)
        axes.scatter(*zip(*own, strict=True), s=9, color=PALETTE["head"], alpha=0.35, linewidths=0)
        axes.set(xlim=ends, ylim=ends, xlabel="true score", ylabel="predicted score")
        return to_svg(figure, f"Predicted against true scores of {len(own)} examples by {label}")


def _errors(found: Compared) -> str:
    with canvas(3.0) as (figure, axes):
        axes.axvline(0, color=PALETTE["ink"], linewidth=1.0)
        for kind, label, histogram in found:
            # Densities: the two systems need not have bins of one width.
            scale = (sum(histogram["counts"]) or 1) * (histogram["edges"][1] - histogram["edges"][0])
            look: dict[str, Any] = {"linewidth": 1.6, "color": PALETTE[kind], "label": short(label)}
            axes.stairs([count / scale for count in histogram["counts"]], histogram["edges"], **look)
        axes.set_ylim(bottom=0)
        axes.set(xlabel="predicted minus true score", ylabel="density")
        legend_below(figure, axes)
        return to_svg(figure, "Histogram of prediction errors")
