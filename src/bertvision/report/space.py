"""What a sweep adds to the report: where in its space the good candidates are.

A list of choices, and a range of which few values were tried, has a column for each value; any other range is cut into
even parts (even in the logarithm where it was searched so). Which values are shown first follows from how much of the
scores' spread each explains alone, adjusted for its number of columns, since columns of one candidate each would
explain all of it:

    eta2  = 1 - (spread of scores within the columns) / (spread of all scores)
    share = 1 - (1 - eta2) (n - 1) / (n - k), at least 0        n candidates in k columns; not known where n <= k

Scores of trials that were ended early are those they had reached.
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np

from bertvision import words
from bertvision.report import drawing
from bertvision.report.page import Figures, Section, drawn
from bertvision.report.results import System, View

_FEW = 8
"""Up to so many different values have a column each."""
_PARTS = 6
"""Parts of a range of which more values were tried."""
_MOST_CURVES = 6
_ENDED = {
    "pruned": "ended early",
    "diverged": "diverged",
    "out of memory": "did not fit the memory",
    "killed": "were killed again and again",
    "running": "have not ended yet",
}


def names(view: View) -> list[str]:
    """What is varied; the head itself first, where there are several."""
    sweep = view.results["sweep"]
    return [*(["head"] if len(sweep.get("heads", [])) > 1 else []), *sweep.get("space", {})]


def headline(view: View) -> str:
    unit = "heads" if _grid(view) else "trials"
    best, count = view.head, len(view.systems)
    if best is None or not best["best"]:
        return f"None of {count} {unit} ran to its end."
    score = view.mean_text(best)
    return f"The best of {count} {unit} reaches {view.title()} {score} on {view.split}: {best['label']}."


def sentences(view: View) -> list[str]:
    said = []
    counts = [system["status"] for system in view.systems]
    ended = [f"{counts.count(status)} {how}" for status, how in _ENDED.items() if status in counts]
    if ended:
        said.append(f"Of all {'heads' if _grid(view) else 'trials'} {', '.join(ended)}.")
    parts = [f"{name} {share:.0%}" for name, share in shares(view).items() if share and share >= 0.005]
    if len(_scored(view)) > 2 and parts:
        said.append(f"Share of the spread of scores that each value explains alone: {', '.join(parts)}.")
    return [*said, "Score the winner on data that nothing was chosen on."]


def sections(view: View) -> list[Section]:
    """Heat maps of pairs of values, and scores against each value."""
    others = ", whatever the other values" if len(names(view)) > 2 else ""
    count = "" if _grid(view) else " Below a score: how many trials fell there."
    caption = f"Best score of each cell{others}; bold: the best.{count}"
    maps = drawn(*((svg, f"{across} and {up}", caption) for across, up, svg in heat_maps(view)))
    texts = {
        name: "" if share is None else f"Explains {share:.0%} of the spread of scores alone."
        for name, share in shares(view).items()
    }
    curves = drawn(*((score_by_value(view, name), name, text) for name, text in texts.items())).figures
    return [
        Section("maps", "Where the good ones are", [maps]),
        Section("values", "Scores by value", [Figures(curves[:_MOST_CURVES], small=True)]),
    ]


def shares(view: View) -> dict[str, float | None]:
    """How much of the spread of scores each varied value explains alone, most first; None where that is not known."""
    found = {name: _share(view, _axis(view, name)) for name in names(view)}
    return dict(sorted(found.items(), key=lambda item: -1.0 if item[1] is None else item[1], reverse=True))


def _share(view: View, axis: "_Axis") -> float | None:
    kept = [(score, axis.places[name]) for name, (score, _) in _scored(view).items() if name in axis.places]
    scores, columns = np.array([score for score, _ in kept]), np.array([place for _, place in kept])
    different = np.unique(columns)
    if len(scores) <= len(different):
        return None
    within = sum(((own := scores[columns == c]) - own.mean()) @ (own - own.mean()) for c in different)
    whole = ((scores - scores.mean()) ** 2).sum()
    unexplained = within / whole if whole > 0 else 1.0
    return max(0.0, float(1 - unexplained * (len(scores) - 1) / (len(scores) - len(different))))


def _scored(view: View) -> dict[str, tuple[float, System]]:
    """Score and system of each candidate that has a score, by name."""
    found = {system["name"]: (view.mean(system), system) for system in view.systems}
    return {name: (score, system) for name, (score, system) in found.items() if score is not None}


def _grid(view: View) -> bool:
    return view.results["sweep"].get("mode") == "grid"


# ---- heat maps


def heat_maps(view: View, most: int = 3) -> list[tuple[str, str, str]]:
    """(across, up, svg) of the pairs of values that explain most."""
    pairs = itertools.combinations(shares(view), 2)
    return [(across, up, svg) for across, up in pairs if (svg := heat_map(view, across, up))][:most]


def heat_map(view: View, across: str, up: str) -> str | None:
    """The best score of every cell, and below it how many trials fell there; None where there is no second column."""
    x, y = _axis(view, across), _axis(view, up)
    cells: dict[tuple[int, int], list[float]] = {}
    for name, (score, _) in _scored(view).items():
        if name in x.places and name in y.places:
            cells.setdefault((x.places[name], y.places[name]), []).append(score)
    if len(x.labels) < 2 or len(y.labels) < 2 or not cells:
        return None
    import matplotlib
    from matplotlib.colors import Normalize
    from matplotlib.patches import Rectangle

    best = {place: max(scores) for place, scores in cells.items()}
    low, high = min(best.values()), max(best.values())
    scale = Normalize(low, high if high > low else low + 1e-9)
    with drawing.styled():
        figure = drawing.new_figure(0.42 * len(y.labels) + 1.1)
        axes = figure.subplots()
        for (column, row), score in best.items():
            colour = matplotlib.colormaps["cividis"](scale(score))
            look = {"facecolor": colour, "edgecolor": drawing.PALETTE["paper"], "linewidth": 1.2}
            axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, **look))
            bright = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2] > 0.5
            text = view.number(score)
            if not _grid(view):  # of a grid every cell has as many
                text += f"\n{len(cells[column, row])}"
            axes.text(
                column, row, text, ha="center", va="center", fontsize=7.5, linespacing=1.15,
                color="#000000" if bright else "#ffffff", fontweight="bold" if score == high else "normal",
            )  # fmt: skip
        axes.set_xlim(-0.5, len(x.labels) - 0.5)
        axes.set_ylim(-0.5, len(y.labels) - 0.5)
        turned = len(x.labels) * max(map(len, x.labels)) > 50
        look = {"rotation": 30, "ha": "right"} if turned else {}
        axes.set_xticks(range(len(x.labels)), x.labels, **look)
        axes.set_yticks(range(len(y.labels)), y.labels)
        axes.tick_params(length=0)
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        axes.set_xlabel(across)
        axes.set_ylabel(up)
        return drawing.to_svg(figure, f"Best {view.title()} on dev by {across} and {up}")


@dataclass(frozen=True)
class _Axis:
    """One varied value, cut into columns."""

    labels: list[str]
    places: dict[str, int]
    """Name of a candidate -> column."""


def _axis(view: View, name: str) -> _Axis:
    """A varied value's columns, in its order."""
    sweep = view.results["sweep"]
    tried = {own: s["values"][name] for own, (_, s) in _scored(view).items() if name in s["values"]}
    about = sweep.get("space", {}).get(name, {"choices": sweep.get("heads", [])})
    different = [value for value in about.get("choices", []) if value in tried.values()]
    different = different or sorted(set(tried.values()))
    if "choices" in about or len(different) <= _FEW:
        return _Axis([words.plain(v) for v in different], {n: different.index(v) for n, v in tried.items()})
    log = bool(about.get("log"))
    low, high = (math.log(about[end]) if log else about[end] for end in ("low", "high"))
    edges = np.linspace(low, high, _PARTS + 1)
    shown = [words.plain(float(f"{math.exp(edge) if log else edge:.2g}")) for edge in edges]
    labels = [f"{first}\u2013{second}" for first, second in itertools.pairwise(shown)]

    def column(value: float) -> int:
        part = ((math.log(value) if log else value) - low) / (high - low)
        return min(max(int(part * _PARTS), 0), _PARTS - 1)

    return _Axis(labels, {number: column(value) for number, value in tried.items()})


# ---- scores by value


def score_by_value(view: View, name: str) -> str | None:
    """Each candidate's score against one varied number; those that were ended early are rings."""
    points = [
        (value, score, system["status"] == "done")
        for score, system in _scored(view).values()
        if (value := words.finite(system["values"].get(name))) is not None
    ]
    if len({value for value, _, _ in points}) < 2:
        return None
    with drawing.styled():
        figure = drawing.new_figure(2.4, drawing.NARROW)
        axes = figure.subplots()
        if view.results["sweep"]["space"].get(name, {}).get("log"):
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(lambda value, _: words.plain(value))
            axes.xaxis.set_minor_formatter(lambda _value, _: "")
        colour = drawing.PALETTE["head"]
        for done, fill, label in ((True, colour, "ran to the end"), (False, "none", "ended early")):
            own = [(value, score) for value, score, ended in points if ended == done]
            if own:
                look = {"facecolors": fill, "edgecolors": colour, "label": label, "zorder": 3}
                axes.scatter(*zip(*own, strict=True), s=20, **look)
        axes.set_xlabel(name)
        axes.set_ylabel(f"{view.title()} on dev")
        drawing.legend_below(figure, axes)
        return drawing.to_svg(figure, f"Scores of {len(points)} candidates by {name}")
