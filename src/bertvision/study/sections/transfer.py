"""Section: heads fitted on one snapshot and read on another, without fitting them again."""

from typing import Any

from bertvision.report.words import change, interval
from bertvision.study.blocks import Block, column, row, section, table, text
from bertvision.study.picks import seed_list, with_seeds
from bertvision.study.published import BRIEF, MEASURE, ROWS, SPAN_CURVE, TRANSFER, Printed
from bertvision.study.sections.beside import (
    MEASURED,
    PUBLISHED,
    VERSUS,
    measured_cells,
    pair_cell,
    pair_words,
    versus_cells,
)
from bertvision.study.view import Group, Study

__all__ = ["transfer"]

_PAPER = ("constant@0.3", "constant@1", "adapter-386-skip")
"""Fitted on, read on, and the head of the papers' notebook."""


def transfer(study: Study) -> dict[str, Any] | None:
    """A table for every head that was moved; None where none was."""
    moved = [group for group in study.groups.values() if group.about.fitted_on and not group.about.variant]
    if not moved:
        return None
    places = dict.fromkeys((group.about.fitted_on, group.about.snapshot) for group in moved)
    blocks = [
        _table(study, early, late, [g for g in moved if _place(g) == (early, late)]) for early, late in places
    ]
    return section(
        "transfer",
        "Heads moved to a later snapshot",
        "A head fitted on an early snapshot reads the states of a later one as it is: what it has learned may hold "
        "while the encoder goes on. Differences are to the snapshot it is read on, with its own output layer, or to "
        "the head that was fitted there. " + MEASURE,
        [*blocks, text(*_found(study, moved), _words())],
    )


def _place(moved: Group) -> tuple[str, str]:
    return moved.about.fitted_on, moved.about.snapshot


def _table(study: Study, early: str, late: str, moved: list[Group]) -> Block:
    """The later snapshot, and every head in its three places; all with the seeds that the moved heads have."""
    seeds = sorted({seed for group in moved for seed in group.seeds})

    def of(key: str) -> Group | None:
        group = study.get(key)
        common = [seed for seed in seeds if group and seed in group.seeds]
        return with_seeds(group, common) if group and common else group

    base, published = of(late), (early, late) == _PAPER[:2]
    rows = [
        row(
            [
                f"{late} itself",
                pair_cell(SPAN_CURVE[1.0] if published else None),
                *measured_cells(base),
                *versus_cells(study, None, None),
            ],
            strong=True,
            kind="snapshot",
        )
    ]
    for group in moved:
        label = group.about.label
        paper = published and label == _PAPER[2]
        entries: list[tuple[str, Group | None, Printed, Group | None]] = [
            (f"fitted on {early} and read there", of(f"{early}/{label}"), ROWS[12].at[0.3], of(early)),
            (f"fitted on {early}, read on {late}", group, TRANSFER, base),
            (f"fitted on {late} and read there", of(f"{late}/{label}"), ROWS[12].at[1.0], base),
        ]
        rows += [
            row(
                [
                    {"text": label, "sub": f"{name}{_fewer(one, seeds)}"},
                    pair_cell(printed if paper else None),
                    *measured_cells(one),
                    *versus_cells(study, one, snapshot),
                ],
                strong=one is group,
                kind=group.about.kind,
            )
            for name, one, printed, snapshot in entries
            if one is not None or paper
        ]
    return table(
        f"Heads of {early} on {late}, measured with {seed_list(seeds)}. Differences are to the snapshot that is read. "
        + BRIEF,
        [column("Head", "text"), *PUBLISHED, *MEASURED, *VERSUS],
        rows,
    )


def _fewer(group: Group | None, seeds: list[int]) -> str:
    """The seeds of a head that does not have all of the table's."""
    return f", {seed_list(group.seeds)}" if group and group.seeds != seeds else ""


def _found(study: Study, moved: list[Group]) -> list[str]:
    """Moved heads against those that were fitted where they are read, over common seeds."""
    said = []
    for group in moved:
        there = study.get(f"{group.about.snapshot}/{group.about.label}")
        if there is not None:
            at = "tuned" if group.tuned and there.tuned else "zero"
            gap = study.versus(group, there, at).f1
            said.append(f"{group.about.label} {change(gap.difference)} ({interval(gap.low, gap.high)})")
    return (
        [f"F1 of a moved head minus that of the same head fitted there: {'; '.join(said)}."] if said else []
    )


def _words() -> str:
    there = ROWS[12].at[1.0]
    return (
        f"In a notebook of BERTVision, and in no paper, the head of 3/10 epochs has {pair_words(TRANSFER)} (EM / F1) "
        f"on the encoder of one epoch: more than the head that was fitted there ({pair_words(there)}), and more than "
        f"BERT ({pair_words(SPAN_CURVE[1.0])})."
    )
