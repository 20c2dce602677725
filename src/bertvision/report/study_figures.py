"""The figures of a study, drawn from its blocks (study_schema.py): lines, bars, histograms and intervals.

A figure gives one drawing or two: one for a page, and, where that is wide, a second one for a phone. The scatter plot,
which has words to place, is in study_scatter.py.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bertvision.report import drawing, words
from bertvision.report.drawing import PALETTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "PHONE",
    "WIDE",
    "Numbered",
    "Sketch",
    "axis_label",
    "bars",
    "dress",
    "histogram",
    "intervals",
    "legend",
    "lines",
    "tick",
    "ticks",
]

WIDE = 8.4
"""Inches of a figure that has the page to itself."""
PHONE = 3.9
"""Inches of its second drawing: fewer, so that words are larger on a small screen."""
_MANY_BARS = 18
_NUMBERED_BARS = 14
_ROW_LETTERS = 64
"""Of a difference's name and its numbers, on one line of a figure in half the page."""


@dataclass(frozen=True)
class Numbered:
    """A point that had no room for its name."""

    number: int
    kind: str
    label: str
    place: str
    """Its values in words."""


@dataclass(frozen=True)
class Sketch:
    """One drawing of a figure."""

    svg: str
    size: str = ""
    """wide: for a page; phone: instead of the wide one where that is too small to read; else for both."""
    numbered: list[Numbered] = field(default_factory=list)


# ---- what they share


def axis_label(axis: Mapping[str, Any]) -> str:
    more = [axis["unit"]] if axis.get("unit") else []
    more += ["log scale"] if axis.get("log") else []
    return f"{axis['label']} ({', '.join(more)})" if more else axis["label"]


def tick(value: float, _: Any = None) -> str:
    """A number at an axis, short: 0.5, 2,000, 30 k."""
    if abs(value) < 9999.5:
        return f"{value:,.6g}".replace("-", "−")
    return re.sub(r"\.0+(?=\D|$)", "", words.compact(value))


_LETTER = 5.6
"""Points that a letter of the numbers at an axis takes across, at the most."""


def ticks(values: Sequence[float]) -> list[str]:
    """The numbers of an axis: finer than three digits where two of them would read alike (110.2 M, 110.4 M)."""
    told = [tick(value) for value in values]
    for digits in range(1, 7):
        if len(set(told)) == len(set(values)):
            break
        told = [_fine(value, digits) for value in values]
    return told


def _fine(value: float, digits: int) -> str:
    for size, letter in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= max(size, 9999.5):
            return f"{value / size:,.{digits}f}{letter}".replace("-", "−")
    return f"{value:,.{digits}f}".replace("-", "−")


def _thinned(told: list[str], room: float) -> list[str]:
    """Every second number, or every fourth, where all would run into each other; `room` in letters."""
    step = 1
    while step < len(told) and sum(len(one) + 2 for one in told[::step]) > room:
        step *= 2
    return [one if i % step == 0 else "" for i, one in enumerate(told)]


def _between_decades(span: float) -> tuple[float, ...]:
    """Where a log axis has numbers: decades alone would leave a short one with one or two."""
    if span < 12:
        return (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
    return (1.0, 2.0, 5.0) if span < 200 else (1.0,)


def dress(axes: "Axes", block: Mapping[str, Any]) -> None:
    """Labels and scales of both axes; an axis that a block does not name is left as it is."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    class Ticks(FuncFormatter):
        """All numbers of an axis are told together."""

        across = False

        def format_ticks(self, values: Any) -> list[str]:
            told = ticks([float(value) for value in values])
            figure = axes.get_figure(root=True)
            if not self.across or figure is None:
                return told
            return _thinned(told, axes.get_position().width * figure.get_figwidth() * 72 / _LETTER)

    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        about = block.get(name)
        if about is None:
            continue
        axis.set_label_text(axis_label(about))
        if about.get("log"):
            (axes.set_xscale if name == "x" else axes.set_yscale)("log")
            low, high = axis.get_view_interval()
            axis.set_major_locator(LogLocator(subs=_between_decades(high / low)))
            axis.set_minor_formatter(NullFormatter())
        shown = Ticks(tick)
        shown.across = name == "x"
        axis.set_major_formatter(shown)


def legend(figure: "Figure", handles: Sequence[Any], names: Sequence[str]) -> None:
    """Below the figure, in as many columns as the longest name allows."""
    width = figure.get_figwidth() * 72
    shown = [drawing.short(name, 56) for name in names]
    columns = max(1, int(width // (max(map(len, shown)) * 5.2 + 34)))
    figure.legend(
        handles,
        shown,
        loc="outside lower center",
        ncols=min(columns, len(shown)),
        handlelength=1.8,
        handletextpad=0.6,
        columnspacing=1.2,
    )


def looks(series: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Colour and line of each: that of its kind where all kinds differ, else one of a row of colours."""
    kinds = [one["kind"] for one in series]
    if len(set(kinds)) == len(kinds):
        return [(PALETTE[kind], "-") for kind in kinds]
    colours, styles = drawing.SERIES, drawing.LINE_STYLES
    return [(colours[i % len(colours)], styles[i // len(colours) % len(styles)]) for i in range(len(kinds))]


# ---- the figures


def lines(block: Mapping[str, Any], salt: str) -> list[Sketch]:
    """Series over an axis, each with its band where it has one."""
    series = block["series"]
    with drawing.styled(salt):
        figure = drawing.new_figure(2.9 + 0.2 * (len(series) // 2))
        axes = figure.subplots()
        handles = []
        for one, (colour, style) in zip(series, looks(series), strict=True):
            points = sorted(map(tuple, one["points"]))
            across, up = [x for x, _ in points], [y for _, y in points]
            if one.get("band"):
                band = sorted(map(tuple, one["band"]))
                low, high = [b[1] for b in band], [b[2] for b in band]
                axes.fill_between([b[0] for b in band], low, high, color=colour, alpha=0.16, linewidth=0)
            (line,) = axes.plot(
                across,
                up,
                color=colour,
                linestyle=(0, (4, 2)) if one.get("dashed") else style,
                linewidth=1.7,
                marker=drawing.MARKERS[one["kind"]],
                markersize=4,
                markerfacecolor=PALETTE["paper"] if one.get("dashed") else colour,
            )
            handles.append(line)
        dress(axes, block)
        legend(figure, handles, [one["name"] for one in series])
        told = "; ".join(_range(one["name"], [y for _, y in one["points"]]) for one in series)
        svg = drawing.to_svg(figure, block["title"], details=f"{axis_label(block['y'])}: {told}.")
        return [Sketch(svg)]


def _range(name: str, values: Sequence[float]) -> str:
    return f"{name} from {tick(min(values))} to {tick(max(values))}" if values else f"{name}: nothing"


def bars(block: Mapping[str, Any], salt: str) -> list[Sketch]:
    """Groups of bars that begin at zero; many of them get a wide drawing beside the small one."""
    if len(block["groups"]) * len(block["series"]) <= _MANY_BARS:
        return [Sketch(_bars(block, salt, drawing.WIDTH))]
    return [
        Sketch(_bars(block, f"{salt}-wide", WIDE), "wide"),
        Sketch(_bars(block, f"{salt}-phone", PHONE), "phone"),
    ]


def _bars(block: Mapping[str, Any], salt: str, inches: float) -> str:
    groups, series = block["groups"], block["series"]
    width = (0.8 if len(groups) > 3 else 0.55) / len(series)
    count = len(groups) * len(series)
    with drawing.styled(salt):
        figure = drawing.new_figure(3.0, inches)
        axes = figure.subplots()
        handles = []
        for i, (one, (colour, _)) in enumerate(zip(series, looks(series), strict=True)):
            known = [(g, value) for g, value in enumerate(one["values"]) if value is not None]
            at = [g + (i - (len(series) - 1) / 2) * width for g, _ in known]
            drawn = axes.bar(at, [value for _, value in known], width * 0.92, color=colour)
            handles.append(drawn)
            if count <= (_NUMBERED_BARS if inches < WIDE else 3 * _NUMBERED_BARS):
                texts = [_short(value) for _, value in known]
                axes.bar_label(drawn, texts, padding=1.5, fontsize=7, color=PALETTE["soft"])
        axes.axhline(0, color=PALETTE["baseline"], linewidth=0.8)
        dress(axes, block)
        axes.set_xlim(-0.55, len(groups) - 0.45)
        axes.margins(y=0.1)
        crowded = sum(map(len, groups)) * 6 > inches * 62
        numbers = all(len(group) <= 5 for group in groups)
        if crowded and numbers:  # layers, lengths: every second or third says enough
            every = -(-len(groups) * 24 // int(inches * 62))
            shown = [i for i in range(len(groups)) if i % every == 0]
            axes.set_xticks(shown, [groups[i] for i in shown])
        elif crowded:
            names = [drawing.short(group, 24) for group in groups]
            axes.set_xticks(range(len(groups)), names, rotation=35, ha="right", rotation_mode="anchor")
        else:
            axes.set_xticks(range(len(groups)), groups)
        axes.tick_params(axis="x", length=0)
        axes.grid(visible=False, axis="x")
        if len(series) > 1:
            legend(figure, handles, [one["name"] for one in series])
        told = "; ".join(
            _range(one["name"], [value for value in one["values"] if value is not None]) for one in series
        )
        return drawing.to_svg(figure, block["title"], details=f"{len(groups)} groups of bars. {told}.")


def _short(value: float) -> str:
    return words.compact(value) if abs(value) >= 1000 else f"{value:.3g}".replace("-", "−")


def histogram(block: Mapping[str, Any], salt: str) -> list[Sketch]:
    """Counts between edges, one outline a series."""
    series, edges = block["series"], block["edges"]
    with drawing.styled(salt):
        figure = drawing.new_figure(2.9)
        axes = figure.subplots()
        handles = []
        for one, (colour, style) in zip(series, looks(series), strict=True):
            axes.stairs(one["counts"], edges, fill=True, color=colour, alpha=0.14)
            handles.append(axes.stairs(one["counts"], edges, color=colour, linestyle=style, linewidth=1.6))
        dress(axes, block)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(tick)
        axes.set_ylabel("count" if any(max(one["counts"]) > 1 for one in series) else "share")
        legend(figure, handles, [one["name"] for one in series])
        told = "; ".join(_range(one["name"], one["counts"]) for one in series)
        reach = f"{len(edges) - 1} bins from {tick(edges[0])} to {tick(edges[-1])}"
        return [Sketch(drawing.to_svg(figure, block["title"], details=f"{reach}. {told}."))]


def intervals(block: Mapping[str, Any], salt: str) -> list[Sketch]:
    """Differences with their intervals, one a row; long names get a wide drawing beside the small one."""
    if all(len(row["label"]) + len(_numbers(row)) <= _ROW_LETTERS for row in block["rows"]):
        return [Sketch(_intervals(block, salt, drawing.WIDTH))]
    return [
        Sketch(_intervals(block, f"{salt}-wide", WIDE), "wide"),
        Sketch(_intervals(block, f"{salt}-phone", PHONE), "phone"),
    ]


def _numbers(row: Mapping[str, Any]) -> str:
    return f"{words.change(row['difference'])} ({words.interval(row['low'], row['high'])})"


def _intervals(block: Mapping[str, Any], salt: str, inches: float) -> str:
    """Full where zero lies outside, a ring where it does not."""
    rows, room = block["rows"], int(_ROW_LETTERS * inches / drawing.WIDTH)
    with drawing.styled(salt):
        figure = drawing.new_figure(0.4 * len(rows) + 0.75, inches)
        axes = figure.subplots()
        axes.axvline(0, color=PALETTE["ink"], linewidth=1.0)
        for i, row in enumerate(rows):
            settled = words.verdict(row) != "level"
            colour = PALETTE["head" if settled else "snapshot"]
            drawing.draw_interval(axes, i, row, drawing.interval_look(colour, full=settled))
            numbers = _numbers(row)
            drawing.name_row(axes, i, row["label"], bold=settled, letters=room - len(numbers))
            _number_row(axes, i, numbers)
        axes.set_ylim(len(rows) - 0.6, -0.8)
        axes.grid(visible=False, axis="y")
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.xaxis.set_major_formatter(tick)
        axes.set_xlabel(f"difference in {block['unit']}, with its 95 % interval")
        ahead = sum(words.verdict(row) == "gain" for row in rows)
        behind = sum(words.verdict(row) == "loss" for row in rows)
        told = f"{len(rows)} differences: {ahead} above zero, {behind} below, the others level."
        return drawing.to_svg(figure, block["title"], details=told)


def _number_row(axes: "Axes", row: int, numbers: str) -> None:
    axes.annotate(
        numbers,
        (1, row),
        xycoords=("axes fraction", "data"),
        xytext=(0, 6),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=8,
        color=PALETTE["soft"],
        bbox={"facecolor": PALETTE["paper"], "edgecolor": "none", "pad": 1.0},
    )
