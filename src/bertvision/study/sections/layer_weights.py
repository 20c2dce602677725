"""Which layers heads read: the weights of those that weigh states, beside the paper's.

The paper's encoder has 24 layers, so 25 states with the embeddings; another has other weights to share out. Both are
drawn over relative depth, and as multiples of the weight that each state would have were all weighed alike.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertvision.report.words import signed
from bertvision.study import blocks
from bertvision.study.published import LAYER_WEIGHTS
from bertvision.study.view import Group, Study

__all__ = ["depth_parts", "layer_weights"]

_SNAPSHOTS = ("constant@0.3", "constant@1", "constant@2", "decayed-1@1", "decayed-2@2", "untuned")
_PREFERRED = "learned-pooling"


def depth_parts(weights: NDArray[np.float64]) -> tuple[float, float, float]:
    """Percent of the weight on the last state and on the last quarter of the states, and the mean depth from 0 to 1."""
    last = max(1, round(len(weights) / 4))
    # What is read off a figure does not sum to 1 exactly.
    depth = float((weights * np.linspace(0, 1, len(weights))).sum() / weights.sum())
    return 100.0 * float(weights[-1]), 100.0 * float(weights[-last:].sum()), depth


def layer_weights(study: Study) -> dict[str, Any] | None:
    """Learned pooling on several snapshots as curves and bars; every head that weighs states in the table."""
    weighed = [g for g in study.groups.values() if _weights(g) is not None and not _odd(g)]
    pooled = [g for g in weighed if g.about.label.startswith(_PREFERRED)]
    order = {name: place for place, name in enumerate(_SNAPSHOTS)}
    drawn = (
        sorted(
            (g for g in pooled or weighed if g.about.snapshot in order), key=lambda g: order[g.about.snapshot]
        )
        or weighed[:5]
    )
    if not drawn:
        return None
    return blocks.section(
        "layer-weights",
        "Which layers the heads read",
        "Shows how heads that pool layers share out their weight. It does not show that a layer with little weight is "
        "not needed: states of neighbouring layers are alike, and weights also make up for their sizes.",
        [blocks.text(*_findings(drawn)), _curves(drawn), _bars(drawn), _table(weighed)],
    )


def _odd(group: Group) -> bool:
    about = group.about
    part = (
        about.data_fraction != 1 and about.snapshot != "untuned"
    )  # raw states may be read on a part of the data alone
    return bool(about.variant or about.fitted_on or part)


def _weights(group: Group) -> NDArray[np.float64] | None:
    """(seeds, states), those of most states where seeds differ."""
    rows = [s.about.layer_weights for s in group.systems if len(s.about.layer_weights) > 1]
    length = max(map(len, rows), default=0)
    return np.array([row for row in rows if len(row) == length], np.float64) if rows else None


def _mean(group: Group) -> NDArray[np.float64]:
    found = _weights(group)
    assert found is not None, "only groups with weights come here"
    return found.mean(axis=0)


def _curves(drawn: list[Group]) -> dict[str, Any]:
    made = []
    for group in drawn:
        rows = _weights(group)
        assert rows is not None
        depth = np.linspace(0, 1, rows.shape[1]).tolist()
        scaled = rows * rows.shape[1]
        points = list(zip(depth, scaled.mean(axis=0).tolist(), strict=True))
        band = zip(depth, scaled.min(axis=0).tolist(), scaled.max(axis=0).tolist(), strict=True)
        made.append(blocks.series(group.key, "head", points, band=list(band) if len(rows) > 1 else ()))
    depth = np.linspace(0, 1, len(LAYER_WEIGHTS)).tolist()
    scaled = [value * len(LAYER_WEIGHTS) for value in LAYER_WEIGHTS]
    paper = blocks.series(
        "paper (24 layers)", "published", list(zip(depth, scaled, strict=True)), dashed=True
    )
    return blocks.lines(
        "Weight of a state over its depth",
        "1 is the weight of a state were all weighed alike; the band is the range over seeds. Depth 0 is the "
        "embeddings, 1 the last layer.",
        blocks.axis("relative depth"),
        blocks.axis("weight, times the number of states"),
        [*made, paper],
    )


def _bars(drawn: list[Group]) -> dict[str, Any]:
    states = max(len(_mean(group)) for group in drawn)
    shown = [group for group in drawn if len(_mean(group)) == states]
    return blocks.bars(
        "Weight of every state",
        "Mean over seeds; 0 is the embeddings.",
        blocks.axis("weight"),
        [str(place) for place in range(states)],
        [{"name": group.key, "kind": "head", "values": _mean(group).tolist()} for group in shown],
    )


def _table(weighed: list[Group]) -> dict[str, Any]:
    rows = []
    for group in weighed:
        last, quarter, depth = depth_parts(_mean(group))
        cells = [group.key, str(len(_mean(group))), f"{last:.1f}", f"{quarter:.1f}", f"{depth:.2f}"]
        rows.append(blocks.row(cells, kind="head"))
    last, quarter, depth = depth_parts(np.array(LAYER_WEIGHTS))
    paper = [
        "paper, learned pooling",
        str(len(LAYER_WEIGHTS)),
        f"{last:.1f}",
        f"{quarter:.1f}",
        f"{depth:.2f}",
    ]
    rows.append(blocks.row([blocks.published_cell(cell) for cell in paper], kind="published"))
    names = ("states", "last state, %", "last quarter of the states, %", "mean depth (0 to 1)")
    return blocks.table(
        "Where the weight lies, means over seeds. Of weights all alike the mean depth is 0.50.",
        [blocks.column("head", "text"), *(blocks.column(name) for name in names)],
        rows,
    )


def _findings(drawn: list[Group]) -> list[str]:
    paper = depth_parts(np.array(LAYER_WEIGHTS))
    said = [
        f"In the paper the last of 25 states has {paper[0]:.0f} % of the weight and the last quarter {paper[1]:.0f} %; "
        "the lower two thirds are weighed nearly alike."
    ]
    for group in drawn:
        last, quarter, depth = depth_parts(_mean(group))
        said.append(
            f"{group.key}: {last:.0f} % on the last of {len(_mean(group))} states, {quarter:.0f} % on the last "
            f"quarter, mean depth {depth:.2f} ({signed(depth - 0.5, digits=2)} against weights all alike)."
        )
    return said
