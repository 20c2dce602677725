"""Where words go in a crowded figure: beside their point, covering neither a point nor other words.

Places are tried one after the other, and the first free one is taken: the eight next to the point, then, where that
is wanted, rings around it, from which a thin line leads back. Boxes are measured in the wide font of the figures;
the fonts of a page are narrower, so what is apart here stays apart there.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.transforms import Bbox

__all__ = ["NEAR", "Place", "Placer", "place_labels", "rings"]

Place = tuple[float, float, str, str]
"""Points to the right and up of the mark, and how the words stand to that spot: across and along."""

NEAR: tuple[Place, ...] = (
    (7, 0, "left", "center"),
    (-7, 0, "right", "center"),
    (0, 8, "center", "bottom"),
    (0, -8, "center", "top"),
    (6, 8, "left", "bottom"),
    (-6, 8, "right", "bottom"),
    (6, -8, "left", "top"),
    (-6, -8, "right", "top"),
)
_ANGLES = 20
_ACROSS = {"left": 0.0, "center": -0.5, "right": -1.0}
_ALONG = {"bottom": 0.0, "center": -0.5, "top": -1.0}


def rings(*radii: float) -> list[Place]:
    """Places all around a mark, at these distances in points."""
    found: list[Place] = []
    for radius in radii:
        for i in range(_ANGLES):
            dx, dy = math.cos(math.tau * i / _ANGLES), math.sin(math.tau * i / _ANGLES)
            across = "left" if dx > 0.35 else "right" if dx < -0.35 else "center"
            along = "bottom" if dy > 0.35 else "top" if dy < -0.35 else "center"
            found.append((radius * dx, radius * dy, across, along))
    return found


@dataclass
class Placer:
    """The boxes of one panel that are taken; in pixels of the figure."""

    axes: "Axes"
    marks: "Sequence[tuple[float, float]]"
    """Points of the data: no words on them."""
    taken: "list[Bbox]" = field(default_factory=list)
    lines: "list[Bbox]" = field(default_factory=list)
    """Thin things (lines, bars of error): words go elsewhere where they can."""

    def __post_init__(self) -> None:
        from matplotlib.transforms import Bbox

        figure = self.axes.get_figure(root=True)
        if figure is not None:
            figure.draw_without_rendering()  # settles the layout, so that extents are final
        for mark in self.marks:
            x, y = self.axes.transData.transform(mark)
            self.taken.append(Bbox.from_bounds(x - 5, y - 5, 10, 10))
        self.frame = self.axes.get_window_extent()

    def avoid_line(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Keep words off a level or upright line of the data."""
        from matplotlib.transforms import Bbox

        (x0, y0), (x1, y1) = self.axes.transData.transform([start, end])
        self.lines.append(Bbox([[min(x0, x1) - 1, min(y0, y1) - 1], [max(x0, x1) + 1, max(y0, y1) + 1]]))

    def place(
        self,
        mark: tuple[float, float],
        words: str,
        places: Iterable[Place] = NEAR,
        *,
        across_lines: bool = False,
        **look: Any,
    ) -> bool:
        """Write `words` at the first free place; False, and nothing written, where there is none."""
        from matplotlib.text import Text
        from matplotlib.transforms import Bbox

        look = {"fontsize": 8} | look
        text = self.axes.annotate(words, mark, xytext=(0, 0), textcoords="offset points", **look)
        size = Text.get_window_extent(text)
        text.remove()
        x, y = self.axes.transData.transform(mark)
        figure = self.axes.get_figure(root=True)
        pixels = (figure.dpi if figure is not None else 72) / 72  # of a point
        others = self.taken if across_lines else [*self.taken, *self.lines]
        for dx, dy, across, along in places:
            left = x + dx * pixels + _ACROSS[across] * size.width
            low = y + dy * pixels + _ALONG[along] * size.height
            box = Bbox.from_bounds(left, low, size.width, size.height)
            if not self._inside(box) or any(box.overlaps(other) for other in others):
                continue
            leader = self._leader((x, y), (x + dx * pixels, y + dy * pixels))
            if any(step.overlaps(other) for step in leader for other in self.taken):
                continue
            self.axes.annotate(
                words, mark, xytext=(dx, dy), textcoords="offset points", ha=across, va=along, **look
            )
            if leader:
                line = {"arrowstyle": "-", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 3}
                line["color"] = self.axes.xaxis.label.get_color()
                self.axes.annotate(
                    "", mark, xytext=(dx, dy), textcoords="offset points", arrowprops=line, zorder=1.5
                )
            self.taken += [box, *leader]
            return True
        return False

    def _inside(self, box: "Bbox") -> bool:
        frame = self.frame
        return frame.x0 <= box.x0 and box.x1 <= frame.x1 + 2 and frame.y0 <= box.y0 and box.y1 <= frame.y1

    def _leader(self, start: tuple[float, float], end: tuple[float, float]) -> "list[Bbox]":
        """The line from a mark to words far from it as small boxes; none where they stand next to it."""
        from matplotlib.transforms import Bbox

        length = math.dist(start, end)
        if length < 15:
            return []
        steps = [8.0 + i for i in range(0, int(length - 9), 2)]
        spots = [
            (start[0] + (end[0] - start[0]) * s / length, start[1] + (end[1] - start[1]) * s / length)
            for s in steps
        ]
        return [Bbox.from_bounds(px - 0.5, py - 0.5, 1, 1) for px, py in spots]


def place_labels(axes: "Axes", points: Sequence[tuple[float, float, str]]) -> None:
    """Write each label beside its point where it covers nothing, or leave it out."""
    placer = Placer(axes, [(x, y) for x, y, _ in points])
    for x, y, label in points:
        placer.place((x, y), label)
