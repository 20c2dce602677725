"""Heat maps of a sweep: the best score in every cell of two varied values.

A list of choices, and a range of which few values were tried, has a column for each value; any other range is cut into
even parts (even in the logarithm where it was searched so). Which two values are shown first follows from how much of
the scores' spread each explains alone, adjusted for its number of columns, since columns of one trial each would
explain all of it:

    eta2  = 1 - (spread of scores within the columns) / (spread of all scores)
    share = 1 - (1 - eta2) (n - 1) / (n - k), at least 0          n trials in k columns; not known where n <= k

Scores of trials that were ended early are those they had reached. Every function takes the results of a sweep
(train/sweep.py) and gives an `<svg>` element, or None where there is nothing to draw.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from bertvision.report import drawing, words

__all__ = ["heat_map", "heat_maps", "metric_name", "names", "scored", "shares", "short_score"]

_FEW = 8
"""So many different values have a column each."""
_PARTS = 6
"""Parts of a range of which more values were tried."""
_COLOURS = "cividis"


@dataclass(frozen=True)
class Axis:
    """One varied value, cut into columns."""

    name: str
    labels: list[str]
    places: dict[int, int]
    """Trial number -> column."""


def scored(sweep: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The trials that have a score."""
    return [trial for trial in sweep["trials"] if words.finite(trial["score"]) is not None]


def short_score(sweep: Mapping[str, Any], value: Any) -> str:
    """A score as people read it: percent with one decimal, or three digits between 0 and 1."""
    if sweep["percent"] or words.finite(value) is None:
        return words.score(value)
    return f"{value:.3f}".replace("-", "\u2212")


def metric_name(sweep: Mapping[str, Any]) -> str:
    """The metric in words."""
    name = str(sweep["metric"])
    return {"f1": "F1", "mcc": "MCC"}.get(name, name)


def names(sweep: Mapping[str, Any]) -> list[str]:
    """What is varied; the head itself first, where there are several."""
    return [*(["head"] if len(sweep["heads"]) > 1 else []), *sweep["space"]]


def shares(sweep: Mapping[str, Any]) -> dict[str, float | None]:
    """How much of the spread of scores each varied value explains alone, most first; None where nobody can tell."""
    found: dict[str, float | None] = {}
    for name in names(sweep):
        axis = _axis(sweep, name)
        scores = {t["number"]: float(t["score"]) for t in scored(sweep) if t["number"] in axis.places}
        whole = _spread(list(scores.values()))
        columns = [
            [score for number, score in scores.items() if axis.places[number] == column]
            for column in set(axis.places.values())
        ]
        free = len(scores) - len(columns)
        if free < 1:
            found[name] = None
            continue
        within = sum(_spread(column) for column in columns)
        unexplained = within / whole if whole > 0 else 1.0
        found[name] = max(0.0, 1 - unexplained * (len(scores) - 1) / free)
    return dict(sorted(found.items(), key=lambda item: -1.0 if item[1] is None else item[1], reverse=True))


def _spread(values: Sequence[float]) -> float:
    """Sum of squared distances to the mean."""
    return sum((value - fmean(values)) ** 2 for value in values) if values else 0.0


def heat_maps(sweep: Mapping[str, Any], most: int = 3) -> list[tuple[str, str, str]]:
    """(across, up, svg) of the pairs of values that explain most."""
    found = []
    for across, up in itertools.combinations(shares(sweep), 2):
        svg = heat_map(sweep, across, up)
        if svg is not None:
            found.append((across, up, svg))
    return found[:most]


def heat_map(sweep: Mapping[str, Any], across: str, up: str) -> str | None:
    """The best score of every cell, and below it how many trials fell there."""
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
    colours = matplotlib.colormaps[_COLOURS]
    counted = sweep["mode"] != "grid"  # of a grid every cell has as many
    with drawing.styled():
        figure = drawing.new_figure(0.42 * len(y.labels) + 1.1)
        axes = figure.subplots()
        for (column, row), score in best.items():
            colour = colours(scale(score))
            axes.add_patch(
                Rectangle(
                    (column - 0.5, row - 0.5),
                    1,
                    1,
                    facecolor=colour,
                    edgecolor=drawing.PALETTE["paper"],
                    linewidth=1.2,
                )
            )
            bright = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2] > 0.5
            text = short_score(sweep, score)
            if counted:
                text += f"\n{len(cells[column, row])}"
            axes.text(
                column, row, text, ha="center", va="center", fontsize=7.5, linespacing=1.15,
                color="#000000" if bright else "#ffffff",
                fontweight="bold" if score == high else "normal",
            )  # fmt: skip
        axes.set_xlim(-0.5, len(x.labels) - 0.5)
        axes.set_ylim(-0.5, len(y.labels) - 0.5)
        wide = max(len(label) for label in x.labels) * len(x.labels) > 50
        axes.set_xticks(
            range(len(x.labels)), x.labels, rotation=30 if wide else 0, ha="right" if wide else "center"
        )
        axes.set_yticks(range(len(y.labels)), y.labels)
        axes.tick_params(length=0)
        axes.grid(visible=False)
        for side in axes.spines.values():
            side.set_visible(False)
        axes.set_xlabel(across)
        axes.set_ylabel(up)
        return drawing.to_svg(figure, f"Best {metric_name(sweep)} on dev by {across} and {up}")


# ---- columns


def _axis(sweep: Mapping[str, Any], name: str) -> Axis:
    """A varied value's columns, in its order."""
    tried = {trial["number"]: trial["values"][name] for trial in scored(sweep) if name in trial["values"]}
    about = sweep["space"].get(name, {"choices": sweep["heads"]})
    listed = [value for value in about["choices"] if value in tried.values()] if "choices" in about else []
    different = listed or sorted(set(tried.values()))
    if "choices" in about or len(different) <= _FEW:
        order = {value: column for column, value in enumerate(different)}
        return Axis(name, [_label(value) for value in different], {n: order[v] for n, v in tried.items()})
    log = bool(about.get("log"))
    low, high = (math.log(about["low"]), math.log(about["high"])) if log else (about["low"], about["high"])

    def column(value: float) -> int:
        part = ((math.log(value) if log else value) - low) / (high - low)
        return min(max(int(part * _PARTS), 0), _PARTS - 1)

    edges = [low + (high - low) * i / _PARTS for i in range(_PARTS + 1)]
    told = [_label(float(f"{math.exp(edge) if log else edge:.2g}")) for edge in edges]
    labels = [f"{first}\u2013{second}" for first, second in itertools.pairwise(told)]
    return Axis(name, labels, {number: column(value) for number, value in tried.items()})


def _label(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return words.plain(value)
