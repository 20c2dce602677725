"""Questions on which a head and its snapshot disagree: as many that the one has right as the other, drawn blindly."""

import random
from typing import Any

import numpy as np

from bertvision.report.words import count
from bertvision.study import blocks
from bertvision.study.groups import Group
from bertvision.study.sections.pairs import Pairing, pairings
from bertvision.study.view import Study

__all__ = ["examples"]

_EACH = 4
"""Questions shown of either side."""


def examples(study: Study) -> dict[str, Any] | None:
    """Of the strongest pairing that was measured: how often who is right, and some questions of each side."""
    pairs = pairings(study)
    if not pairs:
        return None
    rows = [_counts(pair) for pair in pairs]
    items = _items(study, pairs[-1])
    made = [
        blocks.table(
            "Questions of dev by who is exactly right, at tuned thresholds, the first seed both have.",
            [blocks.column("head and snapshot", "text")]
            + [blocks.column(name) for name in ("both", "only the head", "only the snapshot", "neither")],
            rows,
        )
    ]
    if items:
        made.append(blocks.examples(items))
    return blocks.section(
        "examples",
        "Where head and snapshot disagree",
        f"Shows what the disagreements of {pairs[-1].label} look like: as many questions that only the head has right "
        "as such that only the snapshot has, drawn with a fixed seed. A handful of questions shows no trend; the table "
        "counts all of them.",
        made,
    )


def _right(group: Group, seed: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return group.questions("tuned", [seed])[0] > 0.5


def _counts(pair: Pairing) -> dict[str, Any]:
    ours, theirs = (_right(group, pair.seeds[0]) for group in (pair.head, pair.snapshot))
    parts = (ours & theirs, ours & ~theirs, theirs & ~ours, ~ours & ~theirs)
    return blocks.row([pair.label, *(count(int(part.sum())) for part in parts)], kind="head")


def _items(study: Study, pair: Pairing) -> list[dict[str, Any]]:
    seed = pair.seeds[0]
    systems = [(group, group.systems[group.seeds.index(seed)]) for group in (pair.head, pair.snapshot)]
    texts = [system.dev.texts(study.dev, system.threshold) for _, system in systems]
    right = [_right(group, seed) for group, _ in systems]
    drawn: list[int] = []
    for one, other in (right, right[::-1]):
        places = np.flatnonzero(one & ~other).tolist()
        random.Random(0).shuffle(places)
        drawn += places[:_EACH]
    items = []
    for q in drawn:
        example = study.dev.examples[q]
        items.append(
            {
                "question": example.question,
                "context": study.dev.context(example),
                "gold": list(dict.fromkeys(answer.text for answer in example.answers)),
                "answers": [
                    {"name": group.key, "text": said[q], "right": bool(good[q])}
                    for (group, _), said, good in zip(systems, texts, right, strict=True)
                ],
            }
        )
    return items
