"""Where words go in a crowded figure: beside their point, covering neither a point nor other words.

Places are tried one after the other, and the first free one is taken: the eight next to the point, then, where that
is wanted, rings around it, from which a thin line leads back. Words that stand as near to another point as to their own
would be read as that one's: such places are not free. Boxes are measured in the wide font of the figures;
the fonts of a page are narrower, so what is apart here stays apart there.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["NEAR", "Place", "Placer", "place_labels", "rings"]

Place = tuple[float, float, str, str]
"""Points to the right and up of the mark, and how the words stand to that spot: across and along."""

Box = tuple[float, float, float, float]

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
_APART = 4.0
"""Pixels by which words must be nearer to their own mark than to any other."""
_FAR = 16.0
"""Pixels from which on another mark is no neighbour."""
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
    """What of one panel is taken; boxes are (left, low, right, high) in pixels of the figure."""

    axes: "Axes"
    marks: Sequence[tuple[float, float]]
    """Points of the data: no words on them."""
    dots: list[Box] = field(default_factory=list)
    """The marks."""
    words: list[Box] = field(default_factory=list)
    leaders: list[Box] = field(default_factory=list)
    """The thin lines from far words back to their marks, in small steps."""
    lines: list[Box] = field(default_factory=list)
    """Other thin things (lines, bars of error): words go elsewhere where they can."""

    def __post_init__(self) -> None:
        figure = self.axes.get_figure(root=True)
        if figure is not None:
            figure.draw_without_rendering()  # settles the layout, so that extents are final
        for mark in self.marks:
            x, y = self.axes.transData.transform(mark)
            self.dots.append((x - 5, y - 5, x + 5, y + 5))

    def avoid_line(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Keep words off a level or upright line of the data."""
        (x0, y0), (x1, y1) = self.axes.transData.transform([start, end])
        self.lines.append((min(x0, x1) - 1, min(y0, y1) - 1, max(x0, x1) + 1, max(y0, y1) + 1))

    def place(
        self,
        mark: tuple[float, float],
        words: str,
        places: Sequence[Place] = NEAR,
        *,
        crossing: bool = False,
        **look: Any,
    ) -> bool:
        """Write `words` at the first free place; False, and nothing written, where there is none.

        `crossing`: words may stand on a line, and the line that leads to them may run over other marks, over words
        only where no place can be reached without.
        """
        look = {"fontsize": 8} | look
        x, y = (float(one) for one in self.axes.transData.transform(mark))
        taken = [*self.dots, *self.words, *([] if crossing else [*self.lines, *self.leaders])]
        pixels, boxes = self._boxes((x, y), words, places, look)
        good = self._inside(boxes) & ~_overlap(boxes, taken).any(axis=1)
        if not crossing:
            good &= self._is_own((x, y), boxes)
        free = np.flatnonzero(good).tolist()
        ways: list[list[Box]] = [self.words, []] if crossing else [[*self.dots, *self.words]]
        for blocked, i in itertools.product(ways, free):
            dx, dy, across, along = places[i]
            leader = _leader((x, y), (x + dx * pixels, y + dy * pixels))
            if leader and _overlap(np.array(leader), blocked).any():
                continue
            at: dict[str, Any] = {"xytext": (dx, dy), "textcoords": "offset points"}
            self.axes.annotate(words, mark, **at, ha=across, va=along, **look)
            if leader:
                line = {"arrowstyle": "-", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 3}
                line["color"] = self.axes.xaxis.label.get_color()
                self.axes.annotate("", mark, **at, arrowprops=line, zorder=1.5)
            self.words.append(tuple(boxes[i]))
            self.leaders += leader
            return True
        return False

    def _boxes(
        self, at: tuple[float, float], words: str, places: Sequence[Place], look: dict[str, Any]
    ) -> tuple[float, np.ndarray]:
        """Pixels of a point, and the boxes (P, 4) that the words would fill at each place."""
        text = self.axes.annotate(words, (0, 0), xycoords="axes pixels", **look)
        size = text.get_window_extent()
        text.remove()
        figure = self.axes.get_figure(root=True)
        pixels = (figure.dpi if figure is not None else 72) / 72
        boxes = []
        for dx, dy, across, along in places:
            left = at[0] + dx * pixels + _ACROSS[across] * size.width
            low = at[1] + dy * pixels + _ALONG[along] * size.height
            boxes.append((left, low, left + size.width, low + size.height))
        return pixels, np.array(boxes)

    def _is_own(self, at: tuple[float, float], boxes: np.ndarray) -> np.ndarray:
        """(P,) where no other mark is about as near to the words as their own.

        Words with a line that leads back may be far from their mark, but not next to another.
        """
        if not self.dots:
            return np.ones(len(boxes), bool)
        dots = np.array(self.dots)
        marks = (dots[:, :2] + dots[:, 2:]) / 2  # (N, 2)
        others = marks[np.hypot(*(marks - at).T) > 2]  # what lies on the mark itself cannot be told from it
        if not len(others):
            return np.ones(len(boxes), bool)
        own = _distance(boxes, np.array([at]))[:, 0]  # (P,)
        nearest = _distance(boxes, others).min(axis=1)  # (P,)
        return nearest > np.minimum(own + _APART, _FAR)

    def _inside(self, boxes: np.ndarray) -> np.ndarray:
        frame = self.axes.get_window_extent()
        left, low, right, high = boxes.T
        return (frame.x0 <= left) & (right <= frame.x1 + 2) & (frame.y0 <= low) & (high <= frame.y1)


def _distance(boxes: np.ndarray, marks: np.ndarray) -> np.ndarray:
    """(P, N): pixels from each box to each mark, 0 inside."""
    left, low, right, high = (side[:, None] for side in boxes.T)
    x, y = marks[None, :, 0], marks[None, :, 1]
    across = np.maximum(np.maximum(left - x, x - right), 0)
    return np.hypot(across, np.maximum(np.maximum(low - y, y - high), 0))


def _overlap(boxes: np.ndarray, others: Sequence[Box]) -> np.ndarray:
    """(P, N): which of the boxes cover which of the others, edges included."""
    if not others:
        return np.zeros((len(boxes), 0), bool)
    a, b = boxes[:, None], np.array(others)[None]  # (P, 1, 4), (1, N, 4)
    return (
        (a[..., 0] <= b[..., 2])
        & (b[..., 0] <= a[..., 2])
        & (a[..., 1] <= b[..., 3])
        & (b[..., 1] <= a[..., 3])
    )


def _leader(start: tuple[float, float], end: tuple[float, float]) -> list[Box]:
    """The line from a mark to words far from it as small boxes; none where they stand next to it."""
    length = math.dist(start, end)
    if length < 15:
        return []
    found: list[Box] = []
    for step in range(8, int(length) - 1, 2):
        x = start[0] + (end[0] - start[0]) * step / length
        y = start[1] + (end[1] - start[1]) * step / length
        found.append((x - 0.5, y - 0.5, x + 0.5, y + 0.5))
    return found


def place_labels(axes: "Axes", points: Sequence[tuple[float, float, str]]) -> None:
    """Write each label beside its point where it covers nothing, or leave it out."""
    placer = Placer(axes, [(x, y) for x, y, _ in points])
    for x, y, label in points:
        placer.place((x, y), label)
