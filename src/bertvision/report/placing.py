"""Place labels in a crowded figure: beside their point, covering neither a point nor another label.

The eight places next to a point are tried in turn and the first free one is taken. A label that would stand as near
to another point as to its own would be read as that point's: such a place is not free. Boxes are measured in the wide
font of the figures; the fonts of a page are narrower, so labels that are apart here stay apart there.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["place_labels"]

_PLACES = (
    (7, 0, "left", "center"),
    (-7, 0, "right", "center"),
    (0, 8, "center", "bottom"),
    (0, -8, "center", "top"),
    (6, 8, "left", "bottom"),
    (-6, 8, "right", "bottom"),
    (6, -8, "left", "top"),
    (-6, -8, "right", "top"),
)
"""Offset to the right and up in points, then horizontal and vertical alignment."""
_SHIFT = {"left": 0.0, "bottom": 0.0, "center": -0.5, "right": -1.0, "top": -1.0}
_DOT = 5.0
"""Half the width of a point, pixels."""
_APART = 4.0
"""Pixels by which a label must be nearer to its own point than to any other."""
_FAR = 16.0
"""Pixels from which on another point is no neighbour."""
_SIZE = 8.0


def place_labels(axes: "Axes", points: Sequence[tuple[float, float, str]]) -> None:
    """Write each label beside its point where it covers nothing, or leave it out."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # settles the layout, so that extents are final
    if not points:
        return
    dots = np.array([axes.transData.transform((x, y)) for x, y, _ in points])  # (N, 2)
    taken = [(x - _DOT, y - _DOT, x + _DOT, y + _DOT) for x, y in dots]
    for (x, y, label), dot in zip(points, dots, strict=True):
        boxes = _boxes(axes, dot, label, figure.dpi / 72)
        free = _inside(axes, boxes) & ~_overlap(boxes, np.array(taken)) & _is_own(dot, dots, boxes)
        if not free.any():
            continue
        i = int(free.argmax())
        dx, dy, across, along = _PLACES[i]
        axes.annotate(
            label, (x, y), xytext=(dx, dy), textcoords="offset points", ha=across, va=along, fontsize=_SIZE
        )
        taken.append(tuple(boxes[i]))


def _boxes(axes: "Axes", dot: np.ndarray, label: str, pixels: float) -> np.ndarray:
    """(P, 4) left, low, right, high of the label at each place, in pixels."""
    text = axes.annotate(label, (0, 0), xycoords="axes pixels", fontsize=_SIZE)
    size = text.get_window_extent()
    text.remove()
    boxes = []
    for dx, dy, across, along in _PLACES:
        left = dot[0] + dx * pixels + _SHIFT[across] * size.width
        low = dot[1] + dy * pixels + _SHIFT[along] * size.height
        boxes.append((left, low, left + size.width, low + size.height))
    return np.array(boxes)


def _inside(axes: "Axes", boxes: np.ndarray) -> np.ndarray:
    frame = axes.get_window_extent()
    low_ends, high_ends = (frame.x0, frame.y0), (frame.x1 + 2, frame.y1)
    return np.asarray(((boxes[:, :2] >= low_ends) & (boxes[:, 2:] <= high_ends)).all(axis=1))


def _overlap(boxes: np.ndarray, taken: np.ndarray) -> np.ndarray:
    """(P,) whether a box covers any of the taken ones, edges included."""
    a, b = boxes[:, None], taken[None]
    level = (a[..., 0] <= b[..., 2]) & (b[..., 0] <= a[..., 2])
    return np.asarray((level & (a[..., 1] <= b[..., 3]) & (b[..., 1] <= a[..., 3])).any(axis=1))


def _is_own(dot: np.ndarray, dots: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """(P,) whether no other point is about as near to the box as its own."""
    others = dots[np.hypot(*(dots - dot).T) > 2]  # a point on the dot itself cannot be told from it
    if not len(others):
        return np.ones(len(boxes), bool)
    own = _distance(boxes, dot[None])[:, 0]
    nearest = _distance(boxes, others).min(axis=1)
    return nearest > np.minimum(own + _APART, _FAR)


def _distance(boxes: np.ndarray, marks: np.ndarray) -> np.ndarray:
    """(P, N) pixels from each box to each mark, 0 inside."""
    left, low, right, high = (side[:, None] for side in boxes.T)
    x, y = marks[None, :, 0], marks[None, :, 1]
    across = np.maximum(np.maximum(left - x, x - right), 0)
    return np.hypot(across, np.maximum(np.maximum(low - y, y - high), 0))
