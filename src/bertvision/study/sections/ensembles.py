"""Section: systems joined, beside the best of what they join."""

from typing import Any

from bertvision.study.blocks import Block, column, interval_row, intervals, row, section, table, text
from bertvision.study.picks import best_member
from bertvision.study.published import BRIEF, ENSEMBLES, MEASURE, ROWS, SPAN_CURVE, Printed
from bertvision.study.sections.beside import (
    MEASURED,
    PUBLISHED,
    VERSUS,
    change_cell,
    measured_cells,
    pair_cell,
    pair_words,
    seeds_words,
    versus_cells,
)
from bertvision.study.view import Group, Study

__all__ = ["ensembles"]

_BEST_ROW = {0.3: 12, 1.0: 11, 2.0: 11}
"""The papers' best head by epochs of the encoder, which they joined with BERT as far as they tell."""


def ensembles(study: Study) -> dict[str, Any] | None:
    """Every ensemble; None where there is none."""
    joined = [group for group in study.groups.values() if group.about.kind == "ensemble"]
    if not joined:
        return None
    blocks: list[Block] = [_table(study, joined)]
    known = [(group, best) for group in joined if (best := _best(study, group)) is not None]
    if known:
        at = "tuned" if all(a.tuned and b.tuned for a, b in known) else "zero"
        blocks.append(
            intervals(
                "F1 of an ensemble minus that of its best member",
                f"Measured at {'tuned thresholds' if at == 'tuned' else 'threshold 0'}, 95 % intervals.",
                [interval_row(group.about.label, study.versus(group, best, at).f1) for group, best in known],
            )
        )
    return section(
        "ensembles",
        "Ensembles",
        "Several systems answer together: their probabilities of starts and ends are joined by the maximum, as in the "
        "papers, or in other ways. Each is compared with its best member: the one with the highest F1 on dev, "
        "which can only be harder on the ensemble than a choice made without dev. " + MEASURE,
        [*blocks, text(_published_words())],
    )


def _best(study: Study, group: Group) -> Group | None:
    """At tuned thresholds, where there are any."""
    return best_member(study, group, "tuned" if group.tuned else "zero")


def _joins(group: Group) -> str:
    """What it joins, in few words: seeds of one system are counted."""
    keys = [member.partition(" seed ")[0] for member in group.about.members]
    seeds = [member.partition(" seed ")[2] for member in group.about.members]
    if all(seeds) and len(set(keys)) == 1:
        return f"{group.about.how} of {len(keys)} seeds of {keys[0]}"
    if all(seeds):
        return f"{group.about.how} of {len(set(seeds))} seeds of {', '.join(dict.fromkeys(keys))}"
    return f"{group.about.how} of {', '.join(keys)}"


def _printed(group: Group) -> tuple[float, Printed] | None:
    """The published ensemble this one repeats: a snapshot of the papers' and a head on it, joined by the maximum."""
    about = group.about
    if about.how != "max" or len(about.members) != 2:
        return None
    for epochs, printed in ENSEMBLES.items():
        snapshot = f"constant@{epochs:g}"
        heads = [key for key in about.members if key.startswith(f"{snapshot}/")]
        if snapshot in about.members and heads:
            return epochs, printed
    return None


def _published_best(epochs: float) -> Printed:
    """The better of the two that the papers joined."""
    return max(SPAN_CURVE[epochs], ROWS[_BEST_ROW[epochs]].at[epochs], key=lambda one: one.f1)


def _table(study: Study, joined: list[Group]) -> Block:
    rows = []
    for group in joined:
        best, found = _best(study, group), _printed(group)
        rows.append(
            row(
                [
                    {
                        "text": group.about.label,
                        "sub": f"{_joins(group)}{f'; best: {best.key}' if best else ''}",
                    },
                    pair_cell(found[1] if found else None),
                    *measured_cells(group),
                    change_cell(found[1], _published_best(found[0])) if found else change_cell(None, None),
                    *versus_cells(study, group, best),
                ],
                kind="ensemble",
            )
        )
    return table(
        "Differences are to the best member, which stands below, over the seeds both have; measured with "
        f"{seeds_words(joined)}. {BRIEF}",
        [
            column("Ensemble", "text"),
            *PUBLISHED,
            *MEASURED,
            column("EM / F1", "number", "published difference"),
            *VERSUS,
        ],
        rows,
    )


def _published_words() -> str:
    told = []
    for epochs, printed in ENSEMBLES.items():
        best = _published_best(epochs)
        gap = change_cell(printed, best)
        assert isinstance(gap, dict)
        told.append(f"{pair_words(printed)} against {pair_words(best)} at {epochs:g} ({gap['text']})")
    return (
        "Published ensembles of BERT and a head, EM / F1 against the better of the two, by epochs of the encoder: "
        + "; ".join(told)
        + ". Only the one of one epoch gains."
    )
