"""What a row of a table can be: scores, or one of the papers' further questions.

Every function takes the study, a row of the plan and the metrics asked for, and gives
{"measured": {metric: {...}}, "gain": {metric: {...}}, "line": [[x, y], ...]}, of which any may be missing.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from papers.figures import SCORES
from papers.measure import Study
from papers.plan import Step
from papers.published import published

Row = Mapping[str, Any]


def scores(study: Study, row: Row, metrics: Sequence[str]) -> dict[str, Any]:
    """Metrics, and gains over another system."""
    if not row.get("of"):
        return {}
    found: dict[str, Any] = {"measured": study.measured(row["of"], metrics)}
    if row.get("over") and row["over"] != row["of"]:
        found["gain"] = study.gain(row["of"], row["over"], [name for name in metrics if name in SCORES])
    return found


def second_best(study: Study, row: Row, metrics: Sequence[str]) -> dict[str, Any]:
    """Second answers, and how often they are right where the first ones were wrong."""
    found = scores(study, row, metrics)
    counts = []
    for seed in study.seeds(row["of"]):
        first, second = study.answers(row["first"], seed), study.answers(row["of"], seed)
        if first and second:
            rescued = ~first.right & second.right
            some = study.gold.answerable > 0.5
            counts.append(
                [
                    (~first.right).sum(),
                    rescued.sum(),
                    (rescued & some).sum(),
                    (first.right & second.right).sum(),
                ]
            )
    if counts:
        names = ("of_wrong", "right", "answerable", "right_twice")
        found["measured"] |= _means(
            dict(zip(names, np.mean(counts, axis=0).tolist(), strict=True)), len(counts)
        )
    return found


def lengths(study: Study, row: Row, metrics: Sequence[str]) -> dict[str, Any]:
    """Mean words of the paragraphs of what a system has right, and of what it has right and another has not."""
    every, alone, count = [], [], 0
    for seed in study.seeds(row["of"]):
        ours, theirs = study.answers(row["of"], seed), study.answers(row["other"], seed)
        if ours and theirs:
            every.append(study.gold.lengths[ours.right])
            alone.append(study.gold.lengths[ours.right & ~theirs.right])
            count += 1
    parts = {"mean_all": every, "mean_unique": alone}
    means = {name: float(np.concatenate(part).mean()) for name, part in parts.items() if sum(map(len, part))}
    return {"measured": _means(means, count)}


def layer_weights(study: Study, row: Row, metrics: Sequence[str]) -> dict[str, Any]:
    """How learned pooling shares out its weight; a row without a system is the paper's."""
    from bertvision.heads.base import load_head

    if not row.get("of"):
        printed = [published(f"layer-weights/learned_pooling/{layer}")["weight"].value for layer in range(25)]
        return {"published": _depth(np.array(printed)), "line": _line(np.array(printed))}
    job, _, name = row["of"].partition("/")
    folders = [study.out / Step(job, seed).path / f"{name}.seed{seed}" for seed in study.seeds(row["of"])]
    found = [weights for folder in folders if (weights := load_head(folder)[0].layer_weights())]
    if not found:
        return {}
    mean = np.mean(found, axis=0)
    return {"measured": _means(_depth(mean), len(found)), "line": _line(mean)}


def _depth(weights: NDArray[np.float64]) -> dict[str, float]:
    """Percent of the weight on the last state and on the last quarter of the states, and the mean depth from 0 to 1."""
    weights = weights / weights.sum()  # what is read off a figure does not sum to 1 exactly
    places = np.linspace(0, 1, len(weights))
    quarter = max(1, round(len(weights) / 4))
    parts = (100 * weights[-1], 100 * weights[-quarter:].sum(), (weights * places).sum())
    return dict(zip(("last", "last_quarter", "depth"), map(float, parts), strict=True))


def _line(weights: NDArray[np.float64]) -> list[list[float]]:
    """Weights as multiples of what each state would have were all weighed alike, over relative depth."""
    places = np.linspace(0, 1, len(weights))
    return np.stack([places, weights * len(weights)], axis=1).tolist()


def _means(values: Mapping[str, float], seeds: int) -> dict[str, dict[str, Any]]:
    return {
        name: {"mean": value, "sd": None, "seeds": seeds, "interval": None} for name, value in values.items()
    }


ANALYSES: dict[str, Callable[[Study, Row, Sequence[str]], dict[str, Any]]] = {
    "scores": scores,
    "second_best": second_best,
    "lengths": lengths,
    "layer_weights": layer_weights,
}
