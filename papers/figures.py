"""Draw a table: lines over a number, dots in rows, or a scatter over a cost; published values are crosses."""

import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


SCORES = {
    "exact": "EM",
    "f1": "F1",
    "tuned_exact": "EM, tuned threshold",
    "tuned_f1": "F1, tuned threshold",
    "wordpiece_exact": "EM on word pieces",
    "wordpiece_f1": "F1 on word pieces",
    "HasAns_exact": "EM, answerable",
    "NoAns_exact": "EM, unanswerable",
    "accuracy": "accuracy",
    "mcc": "Matthews",
    "pearson": "Pearson",
    "spearman": "Spearman",
}
"""Scores as people read them."""
TITLES = SCORES | {
    "parameters": "parameters of the head",
    "percent": "head, % of the encoder",
    "trainable": "trained parameters",
    "efficiency": "efficiency",
    "seconds": "seconds of training",
    "minutes": "minutes of training",
    "inference_seconds": "seconds of inference",
    "of_wrong": "first wrong",
    "right": "second then right",
    "answerable": "of these answerable",
    "right_twice": "right both times",
    "mean_all": "mean length, all it has right",
    "mean_unique": "mean length, right alone",
    "last": "last state, %",
    "last_quarter": "last quarter, %",
    "depth": "mean depth",
}
"""Every metric of the plan."""
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
_PRINTED = "#6b7280"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e5e7eb",
    "legend.frameon": False,
}
Rows = Sequence[Mapping[str, Any]]


def draw(table: Mapping[str, Any]) -> str:
    """The figure of a table as SVG, "" where it has none or nothing to show."""
    import matplotlib
    from matplotlib.figure import Figure

    asked, rows = table["figure"], table["rows"]
    if not asked or not any(row.get("measured") or row.get("published") for row in rows):
        return ""
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": table["title"]}):
        figure = Figure(figsize=(7.2, 3.4), layout="constrained")
        {"lines": _lines, "dots": _dots, "scatter": _scatter}[asked["kind"]](
            figure, table["metrics"], rows, asked
        )
        return _svg(figure, table["title"])


def _svg(figure: "Figure", title: str) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Title": title})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    # Ids of several figures on one page must differ.
    salt = re.sub(r"\W+", "-", title)
    svg = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{salt}-", svg)
    return re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)


def _lines(figure: "Figure", metrics: Sequence[str], rows: Rows, asked: Mapping[str, Any]) -> None:
    axes = figure.subplots()
    axes.set_xlabel(asked["x"])
    drawn = [row for row in rows if row.get("line")]
    for row, colour in zip(drawn, _COLOURS * len(drawn), strict=False):
        style: dict[str, Any] = (
            {"color": colour} if row.get("measured") else {"color": _PRINTED, "linestyle": "--"}
        )
        x, y = zip(*row["line"], strict=True)
        axes.plot(x, y, label=row["name"], **style)
    if drawn:
        axes.set_ylabel(asked["y"])
    else:
        for metric, colour in zip(metrics, _COLOURS, strict=False):
            _line(axes, rows, metric, colour)
    _legend(figure)


def _line(axes: "Axes", rows: Rows, metric: str, colour: str) -> None:
    points = [(float(r["key"]), r["measured"][metric]) for r in rows if metric in r.get("measured", {})]
    if points:
        x = tuple(place for place, _ in points)
        axes.plot(x, [one["mean"] for _, one in points], "o-", color=colour, label=TITLES[metric])
        if all(one["interval"] for _, one in points):
            low, high = zip(*(one["interval"] for _, one in points), strict=True)
            axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    printed = [(float(row["key"]), row["published"][metric]) for row in rows if metric in row["published"]]
    if printed:
        label = f"{TITLES[metric]}, published"
        x, y = zip(*printed, strict=True)
        axes.plot(x, y, "x--", color=colour, alpha=0.6, label=label)


def _dots(figure: "Figure", metrics: Sequence[str], rows: Rows, asked: Mapping[str, Any]) -> None:
    shown = metrics[:2]
    rows = [row for row in rows if any(m in {**row["published"], **row.get("measured", {})} for m in shown)]
    figure.set_figheight(1.2 + 0.28 * len(rows))
    panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for axes, metric in zip(panels, shown, strict=True):
        axes.set_xlabel(TITLES[metric])
        for place, row in enumerate(rows):
            if one := row.get("measured", {}).get(metric):
                low, high = one["interval"] or (one["mean"], one["mean"])
                axes.plot([low, high], [place, place], color=_COLOURS[0])
                axes.plot(one["mean"], place, "o", color=_COLOURS[0], label="measured")
            if metric in row["published"]:
                axes.plot(row["published"][metric], place, "x", color=_PRINTED, label="published")
    panels[0].set_yticks(range(len(rows)), [row["name"] for row in rows])
    panels[0].invert_yaxis()
    _legend(figure)


def _scatter(figure: "Figure", metrics: Sequence[str], rows: Rows, asked: Mapping[str, Any]) -> None:
    axes = figure.subplots()
    x, y = asked["x"], asked.get("y", "f1")
    axes.set_xscale("log")
    axes.set_xlabel(TITLES[x])
    axes.set_ylabel(TITLES[y])
    for row in rows:
        printed, values = row["published"], row.get("measured", {})
        points = []
        if x in printed and y in printed:
            points.append(("x", _PRINTED, "published", (printed[x], printed[y])))
        if x in values and y in values:
            points.append(("o", _COLOURS[0], "measured", (values[x]["mean"], values[y]["mean"])))
        for marker, colour, label, at in points:
            axes.plot(*at, marker, color=colour, label=label)
        if points:  # a row that was measured is named there
            *_, (_, colour, _, at) = points
            axes.annotate(
                row["name"], at, xytext=(5, 3), textcoords="offset points", fontsize=7, color=colour
            )
    _legend(figure)


def _legend(figure: "Figure") -> None:
    """Every label once, above the panels."""
    once = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        once |= dict(zip(labels, handles, strict=True))
    if once:
        figure.legend(list(once.values()), list(once), loc="outside upper center", ncols=3)
