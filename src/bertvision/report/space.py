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
from typing import Any

import numpy as np

from bertvision import words
from bertvision.report import figures
from bertvision.report.figures import NARROW, PALETTE, Figure
from bertvision.report.results import System, View

_FEW = 8
"""Up to so many different values have a column each."""
_PARTS = 6
"""Parts of a range of which more values were tried."""
_MOST_CURVES = 6
MOST_MAPS = 3


def headline(view: View) -> str:
    unit = "heads" if _grid(view) else "trials"
    best, count = view.head, len(view.systems)
    if best is None or not best["best"]:
        return f"None of {count} {unit} ran to its end."
    score = view.mean_text(best)
    return f"The best of {count} {unit} reaches {view.title()} {score} on {view.split}: {best['label']}."


def sentences(view: View) -> list[str]:
    counts = [system["status"] for system in view.systems]
    ended = ", ".join(f"{counts.count(status)} {status}" for status in dict.fromkeys(counts))
    said = [f"How they ended: {ended}."]
    parts = [f"{name} {share:.0%}" for name, share in shares(view).items() if share and share >= 0.005]
    if parts:
        said.append(f"Share of the spread of scores that each value explains alone: {', '.join(parts)}.")
    return [*said, "Score the winner on data that nothing was chosen on."]


def shares(view: View) -> dict[str, float | None]:
    """How much of the spread of scores each varied value explains alone, most first; None where that is not known."""
    found = {name: _share(view, name) for name in view.varied}
    return dict(sorted(found.items(), key=lambda item: -1.0 if item[1] is None else item[1], reverse=True))


def _share(view: View, name: str) -> float | None:
    places, candidates = _columns(view, name)[1], _scored(view)
    columns = np.array(list(places.values()))
    scores = np.array([candidates[i][0] for i in places])
    different = np.unique(columns)
    if len(scores) <= len(different):
        return None
    within = sum(scores[columns == c].var() * (columns == c).sum() for c in different)
    whole = scores.var() * len(scores)
    unexplained = within / whole if whole > 0 else 1.0
    return max(0.0, float(1 - unexplained * (len(scores) - 1) / (len(scores) - len(different))))


def _scored(view: View) -> list[tuple[float, System]]:
    return [(score, system) for system in view.systems if (score := view.mean(system)) is not None]


def _grid(view: View) -> bool:
    return view.results["sweep"].get("mode") == "grid"


def _columns(view: View, name: str) -> tuple[list[str], dict[int, int]]:
    """The titles of a varied value's columns, and the column of each scored candidate that has the value."""
    sweep = view.results["sweep"]
    values = {i: s["values"][name] for i, (_, s) in enumerate(_scored(view)) if name in s["values"]}
    about = sweep.get("space", {}).get(name, {"choices": sweep.get("heads", [])})
    tried = [value for value in about.get("choices", []) if value in values.values()]
    tried = tried or sorted(set(values.values()))
    if "choices" in about or len(tried) <= _FEW:
        return [words.plain(value) for value in tried], {i: tried.index(value) for i, value in values.items()}
    edges = (np.geomspace if about.get("log") else np.linspace)(about["low"], about["high"], _PARTS + 1)
    shown = [words.plain(float(f"{edge:.2g}")) for edge in edges]
    titles = [f"{first}\u2013{second}" for first, second in itertools.pairwise(shown)]
    return titles, {i: int(np.searchsorted(edges[1:-1], value, "right")) for i, value in values.items()}


def heat_maps(view: View) -> list[Figure]:
    """The best score of every cell, of the pairs of values that explain most first; pairs without a second column have
    no map. Of trials, which may fall anywhere, the number in each cell is below its score."""
    count = "" if _grid(view) else " Below a score: how many trials fell there."
    others = ", whatever the other values" if len(view.varied) > 2 else ""
    caption = f"Best score of each cell{others}; bold: the best.{count}"
    found: list[Figure] = []
    for across, up in itertools.combinations(shares(view), 2):
        (columns, x), (rows, y) = _columns(view, across), _columns(view, up)
        cells: dict[tuple[int, int], list[float]] = {}
        for i, (score, _) in enumerate(_scored(view)):
            if i in x and i in y:
                cells.setdefault((x[i], y[i]), []).append(score)
        if len(columns) > 1 and len(rows) > 1 and cells:
            described = f"Best {view.title()} on dev by {across} and {up}"
            svg = figures.matrix(_squares(view, cells), columns, rows, (across, up), described)
            found.append(Figure(svg, f"{across} and {up}", caption))
    return found


def _squares(view: View, cells: dict[tuple[int, int], list[float]]) -> figures.Cells:
    import matplotlib

    best = [max(scores) for scores in cells.values()]
    low, reach = min(best), (max(best) - min(best)) or 1.0
    squares: dict[tuple[int, int], Any] = {}
    for (place, scores), score in zip(cells.items(), best, strict=True):
        red, green, blue, _ = colour = matplotlib.colormaps["cividis"]((score - low) / reach)
        ink = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
        weight = "bold" if score == max(best) else "normal"
        text = view.number(score) + ("" if _grid(view) else f"\n{len(scores)}")
        square = {"facecolor": colour, "edgecolor": PALETTE["paper"], "linewidth": 1.2}
        squares[place] = (text, square, {"color": ink, "fontsize": 7.5, "fontweight": weight})
    return squares


def curves(view: View) -> list[Figure]:
    return [one for name in shares(view) for one in score_by_value(view, name)][:_MOST_CURVES]


def score_by_value(view: View, name: str) -> list[Figure]:
    """Each candidate's score against one varied number; those that were ended early are rings."""
    points = [
        (value, score, system["status"] == "done")
        for score, system in _scored(view)
        if (value := words.finite(system["values"].get(name))) is not None
    ]
    if len({value for value, _, _ in points}) < 2:
        return []
    with figures.canvas(2.4, NARROW) as (figure, axes):
        if view.results["sweep"]["space"].get(name, {}).get("log"):
            figures.log_scale(axes, words.plain)
        colour = PALETTE["head"]
        for done, fill, label in ((True, colour, "ran to the end"), (False, "none", "ended early")):
            if own := [(value, score) for value, score, ended in points if ended == done]:
                look = {"facecolors": fill, "edgecolors": colour, "label": label, "zorder": 3}
                axes.scatter(*zip(*own, strict=True), s=20, **look)
        axes.set(xlabel=name, ylabel=f"{view.title()} on dev")
        figures.legend_below(figure, axes)
        svg = figures.to_svg(figure, f"Scores of {len(points)} candidates by {name}")
    share = shares(view)[name]
    explained = "" if share is None else f"Explains {share:.0%} of the spread of scores alone."
    return [Figure(svg, name, explained)]
