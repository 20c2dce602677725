"""What all figures share: palette, style, and the way from a figure to inline SVG.

Matplotlib draws with the light palette below; in the finished SVG every palette colour becomes a CSS variable with the
light colour as its fallback (`var(--fig-head, #0072b2)`), so that the page can turn dark and the figure still stands
alone. All figures share one width, small enough to be read on a phone without scrolling. Colours are those of Okabe and
Ito, safe for colour-blind readers; marker shapes say the same again for print.
"""

import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

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


@dataclass(frozen=True)
class Figure:
    svg: str
    title: str
    caption: str = ""


@contextmanager
def canvas(height: float, width: float = 4.6, **panels: Any) -> "Iterator[tuple[Canvas, Any]]":
    """An empty figure of so many inches in the look of all figures, and its axes."""
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
    look = {"fontsize": 8, **look}
    return axes.annotate(text, at, xytext=shift, textcoords="offset points", **look)


def paper(pad: float) -> dict[str, Any]:
    """The ground of a text that lines run behind."""
    return {"facecolor": PALETTE["paper"], "edgecolor": "none", "pad": pad}


def legend_below(figure: "Canvas", axes: "Axes", columns: int = 2) -> None:
    """The legend of `axes` below the whole figure."""
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
    """A logarithmic x axis with a text at each power of ten."""
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: write(value))
    axes.xaxis.set_minor_formatter(lambda _value, _: "")
