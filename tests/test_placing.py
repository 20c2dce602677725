"""Labels of a crowded figure, measured again from the finished texts."""

import itertools
import math
import random

import pytest
from matplotlib.text import Annotation

from bertvision.report import drawing
from bertvision.report.placing import place_labels


@pytest.mark.parametrize("seed", [4, 7])
def test_labels_cover_nothing_and_stand_nearest_to_their_own_point(seed: int) -> None:
    draw = random.Random(seed)
    points = [(draw.gauss(0, 1), draw.gauss(0, 1)) for _ in range(60)]
    with drawing.styled():
        figure = drawing.new_figure(4.0, 6.0)
        axes = figure.subplots()
        axes.plot(*zip(*points, strict=True), "o")
        place_labels(axes, [(x, y, str(i)) for i, (x, y) in enumerate(points)])
        figure.draw_without_rendering()
        labels = [text for text in axes.texts if isinstance(text, Annotation)]
        assert len(labels) > 15
        boxes = [text.get_window_extent() for text in labels]
        pixels = [axes.transData.transform(point) for point in points]
        assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
        for text, box in zip(labels, boxes, strict=True):
            away = [
                math.dist((x, y), (min(max(x, box.x0), box.x1), min(max(y, box.y0), box.y1)))
                for x, y in pixels
            ]
            assert min(away) > 0
            assert away.index(min(away)) == int(text.get_text())
            assert axes.get_window_extent().padded(3).containsx(box.x0)
