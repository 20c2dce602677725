"""A closer look at one set of answers, small enough for results.json: matrices, bins, draws, disagreements."""

import random
from dataclasses import asdict
from typing import Any

import numpy as np

from bertvision.data.texts import TextData
from bertvision.tasks.text import TextAnswers, calibration_curve, confusion, score_errors, truth

__all__ = ["details", "disagreements"]

_POINTS = 1500
_ERROR_BINS = 24
_EXAMPLES = 12
_CHARACTERS = 600


def details(answers: TextAnswers, data: TextData, seed: int | None) -> dict[str, Any]:
    """What the figures of one system are drawn from (text_schema.py)."""
    right = truth(data)
    if answers.probabilities is not None:
        curve = [asdict(part) for part in calibration_curve(answers.probabilities, right)]
        return {"seed": seed, "confusion": confusion(answers, data).tolist(), "calibration": curve}
    errors = score_errors(answers, data)
    reach = float(np.abs(errors).max()) or 1.0
    counts, edges = np.histogram(errors, bins=_ERROR_BINS, range=(-reach, reach))
    chosen = np.random.default_rng(0).permutation(len(right))[:_POINTS]
    points = np.stack([right, answers.values], axis=1)[np.sort(chosen)]
    return {
        "seed": seed,
        "points": np.round(points, 4).tolist(),
        "errors": {"edges": edges.tolist(), "counts": counts.tolist()},
    }


def disagreements(
    ours: TextAnswers, theirs: TextAnswers, data: TextData, draw: random.Random
) -> list[dict[str, Any]]:
    """A fair draw of examples on which head and snapshot differ: another class, or scores far apart.

    Far apart: among the tenth of examples whose two scores differ most. Wins and losses are drawn alike.
    """
    if ours.probabilities is not None:
        differ = np.flatnonzero(ours.values != theirs.values)
    else:
        gap = np.abs(ours.values - theirs.values)
        differ = np.argsort(-gap, kind="stable")[: max(_EXAMPLES, len(gap) // 10)]
        differ = differ[gap[differ] > 0]
    chosen = differ.tolist()
    draw.shuffle(chosen)
    names, right = ours.task.classes, truth(data).tolist()
    said = [ours.values.tolist(), theirs.values.tolist()]
    shown = []
    for i in chosen[:_EXAMPLES]:
        example = data.examples[i]
        words = [names[v] if names else v for v in (right[i], said[0][i], said[1][i])]
        shown.append(
            {
                "id": example.id,
                "first": _cut(example.first),
                "second": None if example.second is None else _cut(example.second),
                "truth": words[0],
                "head": words[1],
                "snapshot": words[2],
            }
        )
    return shown


def _cut(text: str) -> str:
    return text if len(text) <= _CHARACTERS else text[:_CHARACTERS] + " …"
