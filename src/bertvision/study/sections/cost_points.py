"""Points of the figures that set quality against a cost, and those figures for all costs but time."""

from collections.abc import Callable
from typing import Any

from bertvision.study.blocks import axis, scatter
from bertvision.study.picks import is_full, plain_systems
from bertvision.study.view import At, Group, Study

__all__ = ["AT", "FAR", "kind_of", "other_costs", "points_of"]

AT: dict[At, str] = {"tuned": "threshold tuned on held-out train", "zero": "threshold 0"}
FAR = 8.0
"""F1 points below the best that a figure still shows; what is worse would press all others together."""


def kind_of(group: Group) -> str:
    return "other" if group.about.kind == "snapshot" and not is_full(group) else group.about.kind


def _front(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that nothing beats in both: less x, more y."""
    best, found = float("-inf"), []
    for point in sorted(points, key=lambda p: (p["x"], -p["y"])):
        if point["y"] > best:
            best = point["y"]
            found.append(point)
    return found


def points_of(
    study: Study, at: At, x: Callable[[Group], float | None], groups: list[Group] | None = None
) -> list[dict[str, Any]]:
    """One a system, those far below the best left out; names only for those on the front."""
    found = []
    for group in plain_systems(study) if groups is None else groups:
        where = x(group)
        if where is not None and where > 0:
            y = group.scores(at).f1
            found.append({"x": where, "y": y, "label": "", "name": group.key, "kind": kind_of(group)})
    if not found:
        return []
    top = max(point["y"] for point in found)
    shown = [point for point in found if point["y"] >= top - FAR]
    for point in _front(shown):
        point["label"] = point["name"]
    return shown


def other_costs(study: Study) -> list[dict[str, Any]]:
    """The other costs, each a figure where it is known of several systems."""
    y = axis("F1 on dev", unit="%")

    def flops(group: Group) -> float | None:
        own, encoder = group.mean("flops_per_token"), group.mean("encoder_flops_per_token")
        return None if own is None or encoder is None else own + encoder

    def memory(group: Group) -> float | None:
        held = group.mean("peak_bytes")
        return None if held is None else held / 2**30

    drawn = [
        (
            "F1 against everything that was trained",
            "Encoder and head together: a head on a tuned snapshot counts the snapshot's weights too.",
            axis("trained parameters", log=True),
            lambda group: group.mean("trainable"),
            None,
        ),
        (
            "F1 against FLOPs",
            "A token's way forward through encoder and head; attention counted over the mean length of dev's windows.",
            axis("FLOPs per token", log=True),
            flops,
            None,
        ),
        (
            "F1 against inference time",
            "All windows of dev through encoder and head.",
            axis("seconds for dev", log=True, unit="s"),
            lambda group: group.mean("inference_seconds"),
            None,
        ),
        (
            "F1 against memory",
            "Most device memory held in training; of a head that of its own fit, not of the tuning below it.",
            axis("peak memory", log=True, unit="GiB"),
            memory,
            None,
        ),
    ]
    if (heads := _largest(study)) is not None:
        drawn.insert(
            1,
            (
                f"F1 against the head's own parameters, on {heads[0].about.snapshot}",
                "The papers' measure of cost, which leaves out the snapshot: heads on one and the same snapshot.",
                axis("parameters of the head", log=True),
                lambda group: group.mean("parameters"),
                heads,
            ),
        )
    blocks = []
    for title, caption, x, value, groups in drawn:
        points = points_of(study, "tuned", value, groups)
        if len(points) > 1:
            blocks.append(scatter(title, f"{caption} {AT['tuned'].capitalize()}.", x, y, points, front=True))
    return blocks


def _largest(study: Study) -> list[Group] | None:
    """The heads of the snapshot that has the most; of equals the one that is best on the held-out part."""
    found = []
    for key in dict.fromkeys(g.about.snapshot for g in study.groups.values() if g.about.kind == "head"):
        heads, snapshot = study.below(key), study.get(key)
        if len(heads) > 2:
            found.append((len(heads), (snapshot.holdout_f1 or 0.0) if snapshot else -1.0, heads))
    return max(found, key=lambda entry: entry[:2])[2] if found else None
