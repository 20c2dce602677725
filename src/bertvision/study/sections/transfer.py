"""Section: heads fitted on one snapshot and read on another, without fitting them again."""

from typing import Any

from bertvision.study.blocks import Block, column, row, section, table, text
from bertvision.study.published import MEASURE, ROWS, SPAN_CURVE, TRANSFER, Printed
from bertvision.study.sections.beside import (
    MEASURED,
    PUBLISHED,
    VERSUS,
    measured_cells,
    pair_cell,
    pair_words,
    seeds_words,
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
    return section(
        "transfer",
        "Heads moved to a later snapshot",
        "A head fitted on an early snapshot reads the states of a later one as it is: what it has learned may hold "
        "while the encoder goes on. Differences are to the snapshot it is read on, with its own output layer. "
        + MEASURE,
        [*(_table(study, group) for group in moved), text(_words())],
    )


def _table(study: Study, moved: Group) -> Block:
    about = moved.about
    early, late, label = about.fitted_on, about.snapshot, about.label
    paper = (early, late, label) == _PAPER
    base = study.get(late)
    entries: list[tuple[str, Group | None, Printed | None]] = [
        (f"{late} itself", base, SPAN_CURVE[1.0]),
        (f"{label}, fitted on {early} and read there", study.get(f"{early}/{label}"), ROWS[12].at[0.3]),
        (f"{label}, fitted on {early}, read on {late}", moved, TRANSFER),
        (f"{label}, fitted on {late} and read there", study.get(f"{late}/{label}"), ROWS[12].at[1.0]),
    ]
    rows = [
        row(
            [
                name,
                pair_cell(printed if paper else None),
                *measured_cells(group),
                *versus_cells(study, None if group is base else group, base),
            ],
            strong=group is moved,
            kind="snapshot" if group is base else "head",
        )
        for name, group, printed in entries
        if group is not None or paper
    ]
    groups = [group for _, group, _ in entries if group is not None]
    return table(
        f"{label} of {early} on {late}; measured with {seeds_words(groups)}. {MEASURE}",
        [column("System", "text"), *PUBLISHED, *MEASURED, *VERSUS],
        rows,
    )


def _words() -> str:
    there = ROWS[12].at[1.0]
    return (
        f"In a notebook of BERTVision, and in no paper, the head of 3/10 epochs has {pair_words(TRANSFER)} (EM / F1) "
        f"on the encoder of one epoch: more than the head that was fitted there ({pair_words(there)}), and more than "
        f"BERT ({pair_words(SPAN_CURVE[1.0])})."
    )
