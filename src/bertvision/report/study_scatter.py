"""The scatter plot of a study: what quality costs, every system a point.

Labels stand beside their points where there is room, those on the front first. A point without room for its label gets
a number, and the list below the figure says whose it is. Where there are many labels, or lines to compare many points
with, the figure is drawn twice: wide, and narrow for a phone, where more points have numbers.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from bertvision.report import drawing, words
from bertvision.report.drawing import PALETTE
from bertvision.report.placing import NEAR, Placer, rings
from bertvision.report.study_figures import PHONE, WIDE, Numbered, Sketch, axis_label, dress, legend, tick
from bertvision.report.study_schema import STUDY_KINDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["pareto_front", "scatter"]

_MANY = 12
"""Labels beyond which a figure takes the whole width; or points, where there are lines at some heights."""
_DENSE = 60
"""Points beyond which they are drawn smaller."""
_NAME = {"wide": 38, "phone": 26, "": 30}
"""Letters of a name, by the drawing's size."""
_DASHES = (0, (5, 2))


def pareto_front(points: Sequence[Mapping[str, Any]]) -> list[int]:
    """Those that no other point beats (less or as much x for more y), from the cheapest to the best."""
    order = sorted(range(len(points)), key=lambda i: (points[i]["x"], -points[i]["y"]))
    front: list[int] = []
    for i in order:
        if not front or points[i]["y"] > points[front[-1]]["y"]:
            front.append(i)
    return front


def scatter(block: Mapping[str, Any], salt: str) -> list[Sketch]:
    """One drawing of few points; a wide and a narrow one of many."""
    labelled = sum(bool(point["label"]) for point in block["points"])
    if max(labelled, len(block["points"]) if block.get("lines_at") else 0) <= _MANY:
        return [_sketch(block, salt, drawing.WIDTH, 3.5, "")]
    return [
        _sketch(block, f"{salt}-wide", WIDE, 5.2, "wide"),
        _sketch(block, f"{salt}-phone", PHONE, 4.6, "phone"),
    ]


def _sketch(block: Mapping[str, Any], salt: str, width: float, height: float, size: str) -> Sketch:
    from matplotlib.lines import Line2D

    points = block["points"]
    front = pareto_front(points) if block.get("front") else []
    with drawing.styled(salt):
        figure = drawing.new_figure(height, width)
        axes = figure.subplots()
        _settle(axes, block)
        for line in block.get("lines_at") or []:
            axes.axhline(line["y"], color=PALETTE["soft"], linewidth=1.0, linestyle=_DASHES, zorder=1.2)
        steps = _steps(axes, points, front)
        if steps:
            axes.plot(*zip(*steps, strict=True), color=PALETTE["head"], linewidth=1.4, alpha=0.55, zorder=1.4)
        for i, point in enumerate(points):
            _mark(axes, point, f"point-{i}", on_front=i in front, dense=len(points) > _DENSE)
        kinds = [kind for kind in STUDY_KINDS if any(p["kind"] == kind for p in points)]
        handles: list[Any] = [
            Line2D([], [], linestyle="none", marker=drawing.MARKERS[kind], markersize=6, color=PALETTE[kind])
            for kind in kinds
        ]
        if front:
            handles.append(Line2D([], [], color=PALETTE["head"], linewidth=1.4, alpha=0.55))
        legend(figure, handles, [*kinds, *(["Pareto front"] if front else [])])
        numbered = _write(axes, block, front, steps, size)
        told = f"{len(points)} points, {axis_label(block['y'])} against {axis_label(block['x'])}."
        if front:
            told += f" On the front, cheapest first: {', '.join(_name(points[i]) for i in front)}."
        tips = {f"point-{i}": f"{_name(p)}: {_place(block, p)}" for i, p in enumerate(points)}
        return Sketch(drawing.to_svg(figure, block["title"], details=told, tips=tips), size, numbered)


def _settle(axes: "Axes", block: Mapping[str, Any]) -> None:
    """Fix both axes around all that will be drawn, so that words can be fitted in."""
    points = block["points"]
    axes.plot([p["x"] for p in points], [p["y"] for p in points], linestyle="none")
    heights = [p[end] for p in points for end in ("low", "high") if p.get(end) is not None]
    heights += [line["y"] for line in block.get("lines_at") or []]
    axes.plot([points[0]["x"]] * len(heights), heights, linestyle="none")
    axes.margins(x=0.06, y=0.1)
    dress(axes, block)
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())


def _steps(
    axes: "Axes", points: Sequence[Mapping[str, Any]], front: Sequence[int]
) -> list[tuple[float, float]]:
    """The front as a staircase: what can be had for so much, up to the edge of the panel."""
    corners = [(points[i]["x"], points[i]["y"]) for i in front]
    steps: list[tuple[float, float]] = []
    for (x, y), (right, _) in pairwise([*corners, (axes.get_xlim()[1], 0.0)]):
        steps += [(x, y), (right, y)]
    return steps


def _mark(axes: "Axes", point: Mapping[str, Any], gid: str, *, on_front: bool, dense: bool) -> None:
    low, high = point.get("low"), point.get("high")
    colour = PALETTE[point["kind"]]
    if low is not None and high is not None:
        axes.plot([point["x"]] * 2, [low, high], color=colour, linewidth=1.0, alpha=0.6, zorder=2)
    axes.scatter(
        [point["x"]],
        [point["y"]],
        marker=drawing.MARKERS[point["kind"]],
        s=44 if on_front else 17 if dense else 30,
        color=colour,
        edgecolors=PALETTE["ink" if on_front else "paper"],
        linewidths=1.0 if on_front else 0.5,
        zorder=3.5 if on_front else 3,
        gid=gid,
    )


def _write(
    axes: "Axes",
    block: Mapping[str, Any],
    front: Sequence[int],
    steps: Sequence[tuple[float, float]],
    size: str,
) -> list[Numbered]:
    """Names and numbers beside the points; those that got a number, in its order."""
    points = block["points"]
    placer = Placer(axes, [(p["x"], p["y"]) for p in points])
    for corner, following in pairwise(steps):
        placer.avoid_line(corner, following)
    for point in points:
        if point.get("low") is not None and point.get("high") is not None:
            placer.avoid_line((point["x"], point["low"]), (point["x"], point["high"]))
    _name_lines(placer, block)
    for line in block.get("lines_at") or []:
        placer.avoid_line((axes.get_xlim()[0], line["y"]), (axes.get_xlim()[1], line["y"]))
    # Those on the front first, then the best: where space is short, theirs are the names that stay.
    labelled = [i for i, point in enumerate(points) if point["label"]]
    order = sorted(labelled, key=lambda i: (i not in front, -points[i]["y"]))
    # On a phone numbers leave more of the figure to see.
    named = order if size != "phone" or len(order) <= _MANY else [i for i in order if i in front]
    unnamed = [i for i in order if i not in named]
    for i in named:
        point, places = points[i], list(NEAR)
        if size == "wide" or i in front:
            places += rings(13, 19, 26)
        look: dict[str, Any] = {"fontweight": "bold" if i in front else "normal", "fontsize": 7.5}
        name = drawing.short(point["label"], _NAME[size])
        if not placer.place((point["x"], point["y"]), name, places, **look):
            unnamed.append(i)
    return [
        _number(placer, block, i, number)
        for number, i in enumerate(sorted(unnamed, key=lambda i: (points[i]["x"], -points[i]["y"])), 1)
    ]


def _number(placer: Placer, block: Mapping[str, Any], i: int, number: int) -> Numbered:
    point = block["points"][i]
    mark = point["x"], point["y"]
    look = {"fontsize": 7.5, "color": PALETTE["soft"]}
    places = [*NEAR, *rings(9, 13, 18, 25)]
    if not placer.place(mark, str(number), places, **look):
        placer.place(mark, str(number), [*places, *rings(34, 45, 60, 80, 110, 150)], crossing=True, **look)
    return Numbered(number, point["kind"], point["label"], _place(block, point))


def _name_lines(placer: Placer, block: Mapping[str, Any]) -> None:
    """The label of each line at one of its ends, above or below it."""
    axes = placer.axes
    left, right = axes.get_xlim()
    for line in sorted(block.get("lines_at") or [], key=lambda line: -line["y"]):
        ends = [
            (right, [(-2, 2.5, "right", "bottom"), (-2, -2.5, "right", "top")]),
            (left, [(3, 2.5, "left", "bottom"), (3, -2.5, "left", "top")]),
        ]
        name = drawing.short(line["label"], 60)
        for x, places in ends:
            if placer.place((x, line["y"]), name, places, fontsize=7.5, color=PALETTE["soft"]):
                break


def _name(point: Mapping[str, Any]) -> str:
    return point["label"] or point.get("name") or point["kind"]


def _place(block: Mapping[str, Any], point: Mapping[str, Any]) -> str:
    """Both values in words, no finer than a reader can use."""
    told = []
    for axis in ("y", "x"):
        value = point[axis]
        size = words.score(value) if 10 <= abs(value) < 100 else tick(float(f"{value:.3g}"))
        told.append(f"{size} {block[axis].get('unit') or ''}".strip())
    return " at ".join(told)
