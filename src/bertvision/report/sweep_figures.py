"""The figures of a sweep: heat maps of two varied values, scores against each value.

A list of choices, and a range of which few values were tried, has a column for each value; any other range is cut into
even parts (even in the logarithm where it was searched so). Which values are shown first follows from how much of the
scores' spread each explains alone, adjusted for its number of columns, since columns of one trial each would explain
all of it:

    eta2  = 1 - (spread of scores within the columns) / (spread of all scores)
    share = 1 - (1 - eta2) (n - 1) / (n - k), at least 0          n trials in k columns; not known where n <= k

Scores of trials that were ended early are those they had reached. Every function takes the results of a sweep
(train/sweep.py).
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertvision.report import drawing, words

__all__ = ["heat_map", "heat_maps", "names", "score_by_value", "scored", "shares", "title"]

Sweep = Mapping[str, Any]

_FEW = 8
"""So many different values have a column each."""
_PARTS = 6
"""Parts of a range of which more values were tried."""


def title(sweep: Sweep) -> str:
    """The metric's title."""
    return str(sweep.get("title") or sweep["metric"])


def scored(sweep: Sweep) -> list[dict[str, Any]]:
    """The trials that have a score."""
    return [trial for trial in sweep["trials"] if words.finite(trial["score"]) is not None]


def names(sweep: Sweep) -> list[str]:
    """What is varied; the head itself first, where there are several."""
    return [*(["head"] if len(sweep["heads"]) > 1 else []), *sweep["space"]]


def shares(sweep: Sweep) -> dict[str, float | None]:
    """How much of the spread of scores each varied value explains alone, most first; None where that is not known."""
    found = {name: _share(_axis(sweep, name), sweep) for name in names(sweep)}
    return dict(sorted(found.items(), key=lambda item: -1.0 if item[1] is None else item[1], reverse=True))


def _share(axis: "_Axis", sweep: Sweep) -> float | None:
    kept = [trial for trial in scored(sweep) if trial["number"] in axis.places]
    scores = np.array([trial["score"] for trial in kept])
    columns = np.array([axis.places[trial["number"]] for trial in kept])
    different = np.unique(columns)
    if len(scores) <= len(different):
        return None
    within = sum(((own := scores[columns == c]) - own.mean()) @ (own - own.mean()) for c in different)
    whole = ((scores - scores.mean()) ** 2).sum()
    unexplained = within / whole if whole > 0 else 1.0
    return max(0.0, float(1 - unexplained * (len(scores) - 1) / (len(scores) - len(different))))


# ---- heat maps


def heat_maps(sweep: Sweep, most: int = 3) -> list[tuple[str, str, str]]:
    """(across, up, svg) of the pairs of values that explain most."""
    pairs = itertools.combinations(shares(sweep), 2)
    return [(across, up, svg) for across, up in pairs if (svg := heat_map(sweep, across, up))][:most]


def heat_map(sweep: Sweep, across: str, up: str) -> str | None:
    """The best score of every cell, and below it how many trials fell there; None where there is no second column."""
    x, y = _axis(sweep, across), _axis(sweep, up)
    cells: dict[tuple[int, int], list[float]] = {}
    for trial in scored(sweep):
        number = trial["number"]
        if number in x.places and number in y.places:
            cells.setdefault((x.places[number], y.places[number]), []).append(float(trial["score"]))
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
            text = words.number(score, percent=sweep["percent"])
            if sweep["mode"] != "grid":  # of a grid every cell has as many
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
        return drawing.to_svg(figure, f"Best {title(sweep)} on dev by {across} and {up}")


@dataclass(frozen=True)
class _Axis:
    """One varied value, cut into columns."""

    labels: list[str]
    places: dict[int, int]
    """Trial number -> column."""


def _axis(sweep: Sweep, name: str) -> _Axis:
    """A varied value's columns, in its order."""
    tried = {trial["number"]: trial["values"][name] for trial in scored(sweep) if name in trial["values"]}
    about = sweep["space"].get(name, {"choices": sweep["heads"]})
    different = [value for value in about.get("choices", []) if value in tried.values()] or sorted(
        set(tried.values())
    )
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


def score_by_value(sweep: Sweep, name: str) -> str | None:
    """Each trial's score against one varied number; those that were ended early are rings."""
    trials = [trial for trial in scored(sweep) if words.finite(trial["values"].get(name)) is not None]
    if len({trial["values"][name] for trial in trials}) < 2:
        return None
    with drawing.styled():
        figure = drawing.new_figure(2.4, drawing.NARROW)
        axes = figure.subplots()
        if sweep["space"].get(name, {}).get("log"):
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(lambda value, _: words.plain(value))
            axes.xaxis.set_minor_formatter(lambda _value, _: "")
        colour = drawing.PALETTE["head"]
        for fill, label in ((colour, "ran to the end"), ("none", "ended early")):
            own = [t for t in trials if (t["status"] == "done") == (fill == colour)]
            across, up = [t["values"][name] for t in own], [t["score"] for t in own]
            axes.scatter(across, up, s=20, facecolors=fill, edgecolors=colour, label=label, zorder=3)
        axes.set_xlabel(name)
        axes.set_ylabel(f"{title(sweep)} on dev")
        drawing.legend_below(figure, axes)
        return drawing.to_svg(figure, f"Scores of {len(trials)} trials by {name}")
