"""Heads beyond the papers against the best seed head on the same states; and where they end level, what lifts all."""

from typing import Any

from bertvision.report import words
from bertvision.study.blocks import (
    column,
    difference_cell,
    interval_row,
    intervals,
    row,
    score_cell,
    section,
    table,
    text,
    value_cell,
)
from bertvision.study.contests import Contest, beyond_contests, ensemble_gains
from bertvision.study.picks import (
    best_full,
    chosen,
    holdout_f1,
    is_beyond,
    is_seed_head,
    plain_systems,
    seed_list,
    shared_seeds,
)
from bertvision.study.verdicts import BEYOND
from bertvision.study.view import Study

__all__ = ["beyond"]

_FAR = 3
"""F1 points behind that would leave the others no room in the figure."""


def beyond(study: Study) -> dict[str, Any] | None:
    """None where no snapshot has heads of both kinds."""
    contests = beyond_contests(study)
    if not contests:
        return None
    first = contests[0]
    blocks = [_heads(study, first), *_lifts(study, first)]
    if len(contests) > 1:
        blocks.append(_snapshots(contests))
    return section(
        "beyond",
        "Heads beyond the papers",
        f"On {first.ours.about.snapshot}, with the same states, data and seeds: heads that the papers do not have "
        f"against {first.theirs.about.label}, the seed head that is best on the held-out part. "
        f"Wanted was a gain of {BEYOND:g} F1 at the tuned threshold.",
        blocks,
    )


def _heads(study: Study, contest: Contest) -> dict[str, Any]:
    """Every head beyond and the best seed head, by their scores on the held-out part."""
    theirs = contest.theirs
    heads = [g for g in study.below(theirs.about.snapshot) if is_beyond(g)]
    same = shared_seeds((theirs, *heads))
    heads.sort(key=lambda g: holdout_f1(g, same) or 0.0, reverse=True)
    rows = []
    for group in (theirs, *heads):
        tuned = study.versus(group, theirs, "tuned") if group is not theirs else None
        zero = study.versus(group, theirs, "zero") if group is not theirs else None
        rows.append(
            row(
                [
                    group.about.label,
                    value_cell(len(tuned.seeds if tuned else group.seeds), digits=0),
                    value_cell(group.about.parameters, digits=0),
                    value_cell(holdout_f1(group, same)),
                    score_cell(group.scores("zero")),
                    difference_cell(zero.f1 if zero else None),
                    score_cell(group.scores("tuned")),
                    difference_cell(tuned.f1 if tuned else None),
                ],
                strong=group is theirs,
                kind="head",
            )
        )
    return table(
        f"Heads on {theirs.about.snapshot}; differences to {theirs.about.label} on the seeds both have, F1 held-out on "
        f"{seed_list(same)}, which all have.",
        [
            column("head", "text"),
            column("seeds"),
            column("parameters"),
            column("F1 held-out"),
            column("F1", group="threshold 0"),
            column("difference", group="threshold 0"),
            column("F1", group="tuned threshold"),
            column("difference", group="tuned threshold"),
        ],
        rows,
    )


def _lifts(study: Study, contest: Contest) -> list[dict[str, Any]]:
    """Heads on the same frozen states beside systems that change more than the head."""
    theirs = contest.theirs
    same = [g for g in study.below(theirs.about.snapshot) if g is not theirs]
    picked = [
        ("best head beyond", contest.ours),
        ("best control", chosen(g for g in same if g.about.kind == "control")),
        ("its snapshot", study.get(theirs.about.snapshot)),
        ("best full fine-tuning", best_full(study)),
        ("best seed head of all snapshots", chosen(g for g in plain_systems(study) if is_seed_head(g))),
        (
            "top layers and head trained together",
            chosen(g for g in plain_systems(study) if "+head@" in g.key),
        ),
        ("best ensemble", next((row[0] for row in ensemble_gains(study)), None)),
    ]
    # What stands for several of these is drawn once.
    called: dict[str, list[str]] = {}
    for what, group in picked:
        if group is not None and group is not theirs:
            called.setdefault(group.key, []).append(what)
    found = {key: study.versus(study.groups[key], theirs, "tuned").f1 for key in called}
    rows = [
        interval_row(f"{' and '.join(called[key])}: {key}", one)
        for key, one in found.items()
        if one.difference > -_FAR
    ]
    far = [f"{key} ({words.change(one.difference)})" for key, one in found.items() if one.difference <= -_FAR]
    left_out = f" Not drawn, as more than {_FAR} F1 behind: {', '.join(far)}." if far else ""
    caption = (
        f"F1 at the tuned threshold minus that of {theirs.key}. The first ones read the same states; the others change "
        "the states or join several systems. Chosen on the held-out part, the best full fine-tuning on dev."
        f"{left_out}"
    )
    if not rows:
        return [text(left_out.strip())] if far else []
    return [intervals("Is the frozen state the ceiling?", caption, rows)]


def _snapshots(contests: list[Contest]) -> dict[str, Any]:
    rows = [
        row(
            [
                c.ours.about.snapshot,
                c.ours.about.label,
                c.theirs.about.label,
                value_cell(len(c.tuned.seeds), digits=0),
                difference_cell(c.zero.f1),
                difference_cell(c.tuned.f1),
            ]
        )
        for c in contests
    ]
    return table(
        "The same on every snapshot: the best head beyond the papers against the best seed head, both chosen on the "
        "held-out part.",
        [
            column("snapshot", "text"),
            column("beyond", "text"),
            column("best seed head", "text"),
            column("seeds"),
            column("F1, threshold 0"),
            column("F1, tuned"),
        ],
        rows,
    )
