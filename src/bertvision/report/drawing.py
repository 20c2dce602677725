"""What all figures share: palette, style, and the way from a figure to inline SVG.

Matplotlib draws with the light palette below; in the finished SVG every palette colour becomes a CSS variable with the
light colour as its fallback (`var(--fig-head, #0072b2)`), so that the page can turn dark and the figure still stands
alone. All figures share one width, small enough to be read on a phone without scrolling. Colours are those of Okabe and
Ito, safe for colour-blind readers; marker shapes say the same again for print.
"""

import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from bertvision.words import finite

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


WIDTH = 4.6  # inches; 331 units of the viewBox
NARROW = 3.5  # for figures that stand three abreast
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
MARKERS = {"snapshot": "s", "control": "D", "head": "o", "ensemble": "^", "baseline": "x"}
SERIES = ("#0173b3", "#d65f01", "#029f74", "#cc7aa8", "#57b5e9", "#e5a000", "#6d6d6d")
_VARIABLES = {colour: f"var(--fig-{name}, {colour})" for name, colour in PALETTE.items()}
_VARIABLES |= {colour: f"var(--fig-series-{i}, {colour})" for i, colour in enumerate(SERIES)}
_COLOUR = re.compile("|".join(_VARIABLES))

_SETTINGS: dict[Any, Any] = {
    # Text stays text: it can be searched, read aloud, and takes the page's own font.
    "svg.fonttype": "none",
    # The same bytes for the same results.
    "svg.hashsalt": "bertvision",
    # A head labelled "$x" is a label, not a formula.
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "text.color": PALETTE["ink"],
    "axes.labelcolor": PALETTE["soft"],
    "axes.labelsize": 8.5,
    "axes.edgecolor": PALETTE["baseline"],
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.formatter.useoffset": False,
    "grid.color": PALETTE["grid"],
    "grid.linewidth": 0.8,
    "xtick.color": PALETTE["baseline"],
    "ytick.color": PALETTE["baseline"],
    "xtick.labelcolor": PALETTE["soft"],
    "ytick.labelcolor": PALETTE["soft"],
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.solid_capstyle": "round",
}


@contextmanager
def styled() -> Iterator[None]:
    """The look of all figures."""
    import matplotlib

    with matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        # A label in a script the font lacks is drawn by the browser's fonts; only its width is a guess.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def new_figure(height: float, width: float = WIDTH) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor="none")


def to_svg(figure: "Figure", described: str) -> str:
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
        for key, value in list(element.attrib.items()):
            del element.attrib[key]
            plain = key.rpartition("}")[2]
            if plain != "id" or value in used:
                element.set(plain, _COLOUR.sub(lambda hit: _VARIABLES[hit[0]], value))
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("style", "stroke-linejoin: round; stroke-linecap: butt")
    root.set("role", "img")
    root.set("aria-label", described)
    return ElementTree.tostring(root, encoding="unicode")


def legend_below(figure: "Figure", axes: "Axes", columns: int = 2) -> None:
    """The legend of `axes` below the whole figure."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=columns, handlelength=1.5, columnspacing=1.2
    )


def short(label: Any, limit: int = 34) -> str:
    text = str(label)
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def known_points(
    entries: Sequence[Mapping[str, Any]], across: str, up: str
) -> tuple[list[float], list[float]]:
    """The entries that have both numbers."""
    pairs = [(finite(entry.get(across)), finite(entry.get(up))) for entry in entries]
    kept = [(x, y) for x, y in pairs if x is not None and y is not None]
    return [x for x, _ in kept], [y for _, y in kept]
