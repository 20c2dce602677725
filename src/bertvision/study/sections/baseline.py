"""Against the strongest honest baseline: full fine-tuning with decayed rate, and the controls beside the heads.

A head on frozen states has seen the training data once more than its snapshot. What of its gain comes from that alone,
and what from reading all layers, shows beside two controls that read the last state only: a linear layer, and an MLP
about as large as the head.
"""

from typing import Any

from bertvision.study.blocks import (
    Cell,
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
from bertvision.study.contests import against_strongest
from bertvision.study.picks import chosen, holdout_f1, is_full, name, seed_list, shared_seeds, strongest
from bertvision.study.view import At, Group, Study

__all__ = ["baseline"]


def _columns(*differences: str) -> list[dict[str, str]]:
    found = [column("system", "text"), column("seeds"), column("F1 held-out")]
    for at in ("threshold 0", "tuned threshold"):
        found += [column(title, group=at) for title in ("EM", "F1", *differences)]
    return found


def baseline(study: Study) -> dict[str, Any] | None:
    """None where no snapshot with decayed rate has answers to the held-out part."""
    best = strongest(study)
    if best is None:
        return None
    full = [g for g in study.groups.values() if is_full(g) and g.about.snapshot.startswith("decayed-")]
    common = shared_seeds(full)
    full.sort(key=lambda g: holdout_f1(g, common) or 0.0, reverse=True)
    listed: list[tuple[Group, str]] = []
    for snapshot in full:
        listed.append((snapshot, snapshot.key))
        heads = study.below(snapshot.key)
        head = chosen((g for g in heads if g.about.kind == "head"), seeds=5)
        shown = [*([head] if head else []), *(g for g in heads if g.about.kind == "control")]
        listed += [(g, g.about.label) for g in shown]
    same = shared_seeds(group for group, _ in listed)
    rows = [_row(study, group, best, label, same) for group, label in listed]
    blocks = [
        table(
            "Snapshots with decayed rate, the strongest on the held-out part first; below each its best head, chosen "
            "on the held-out part, and the controls. Differences are over the seeds both have, F1 held-out is over "
            f"{seed_list(same)}, which all have, and other scores over all seeds.",
            _columns("F1 to own snapshot", "F1 to the strongest"),
            rows,
        ),
        *_worth(study),
    ]
    own = [g for g in study.below(best.key) if g.about.kind == "head"]
    if len(own) > 1:
        every = [*own, *(g for g in study.below(best.key) if g.about.kind == "control")]
        same = shared_seeds((best, *every))
        every.sort(key=lambda g: (g.about.kind == "control", -(holdout_f1(g, same) or 0.0)))
        rows = [_row(study, g, best, g.about.label, same, alone=True) for g in (best, *every)]
        caption = (
            f"All heads on {best.key}, the best on the held-out part first ({seed_list(same)}, which all have); "
            "differences over the seeds both have."
        )
        blocks.append(table(caption, _columns("F1 to the snapshot"), rows))
    return section(
        "baseline",
        "Against the strongest honest baseline",
        "The papers' snapshots were tuned at constant rate; practitioners let the rate fall to zero. Of such snapshots "
        "the strongest is chosen by F1 on the held-out part of train, and so is the best head on any of them.",
        blocks,
    )


def _row(
    study: Study, group: Group, best: Group, label: str, same: list[int], *, alone: bool = False
) -> dict[str, Any]:
    """A system's scores and what it differs by; `alone`: from the strongest only, which is its own snapshot."""
    own = study.get(group.about.snapshot) if group.about.kind != "snapshot" else None
    thresholds: tuple[At, At] = ("zero", "tuned")
    cells: list[Cell] = [label, value_cell(len(group.seeds), digits=0), value_cell(holdout_f1(group, same))]
    for at in thresholds:
        scores = group.scores(at)
        cells += [
            score_cell(scores, "exact"),
            score_cell(scores),
            *([] if alone else [difference_cell(study.versus(group, own, at).f1 if own else None)]),
            difference_cell(study.versus(group, best, at).f1 if group is not best else None),
        ]
    return row(cells, strong=group is best, kind=group.about.kind)


def _worth(study: Study) -> list[dict[str, Any]]:
    """The best head against the strongest baseline and against the controls on its own snapshot."""
    contest = against_strongest(study)
    if contest is None:
        return []
    head = contest.ours
    controls = [g for g in study.below(head.about.snapshot) if g.about.kind == "control"]
    blocks = []
    told: dict[At, str] = {"zero": "threshold 0", "tuned": "threshold tuned on held-out train"}
    for at, words_ in told.items():
        found = [(f"{head.about.label} over {contest.theirs.key}", study.versus(head, contest.theirs, at))]
        found += [
            (f"{g.about.label} over {contest.theirs.key}", study.versus(g, contest.theirs, at))
            for g in controls
        ]
        found += [(f"{head.about.label} over {g.about.label}", study.versus(head, g, at)) for g in controls]
        blocks.append(
            intervals(
                f"What reading all layers is worth, {words_}",
                f"{name(head)}, its controls on the same states, and {contest.theirs.key}: difference of F1 averaged "
                f"over {_seeds(min(len(v.seeds) for _, v in found))}, 95 % interval of the paired bootstrap.",
                [interval_row(label, versus.f1) for label, versus in found],
            )
        )
    asked = min(len(contest.zero.seeds), len(contest.tuned.seeds))
    if asked < 5:
        blocks.append(text(f"Five seeds were asked for here; the two systems share {asked}."))
    return blocks


def _seeds(count: int) -> str:
    return f"{count} seed{'' if count == 1 else 's'}"
