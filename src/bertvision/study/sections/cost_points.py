"""Points of the figures that set quality against a cost, and those figures for all costs but time."""

from collections.abc import Callable
from typing import Any

from bertvision.study.blocks import axis, scatter
from bertvision.study.picks import epochs, holdout_f1, is_full, plain_systems, shared_seeds
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
        """A head needs its snapshot, so the larger of its tuning's and its fit's; None where one is not known."""
        held = [group.mean("peak_bytes")]
        if group.about.kind in ("head", "control") and epochs(group) is not None:
            snapshot = study.get(group.about.snapshot)
            held.append(snapshot.mean("peak_bytes") if snapshot else None)
        known = [size for size in held if size is not None]
        return max(known) / 2**30 if len(known) == len(held) else None

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
            "Most device memory held in training; of a head the larger of its own fit and of the tuning below it.",
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
    keys = dict.fromkeys(g.about.snapshot for g in study.groups.values() if g.about.kind == "head")
    same = shared_seeds(snapshot for key in keys if (snapshot := study.get(key)))
    found = []
    for key in keys:
        heads, snapshot = study.below(key), study.get(key)
        if len(heads) > 2:
            found.append((len(heads), (holdout_f1(snapshot, same) or 0.0) if snapshot else -1.0, heads))
    return max(found, key=lambda entry: entry[:2])[2] if found else None
