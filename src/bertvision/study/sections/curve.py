"""Section: scores over the course of fine-tuning, published in their true order and measured."""

import re
from typing import Any

from bertvision.study.blocks import Block, axis, column, lines, row, section, series, table, text
from bertvision.study.published import BRIEF, MEASURE, SECONDS_PER_EPOCH, SPAN_CURVE, printed_under
from bertvision.study.sections.beside import (
    MEASURED,
    PUBLISHED,
    curve_of,
    measured_cells,
    pair_cell,
    seeds_words,
)
from bertvision.study.view import Group, Study

__all__ = ["curve"]

_FAMILY = "constant"
_PLAIN = re.compile(r"(decayed-[\d.]+)@[\d.]+")
"""decayed-2@2, not decayed-1-small@1, whose batches differ too."""


def curve(study: Study) -> dict[str, Any] | None:
    """The snapshots of the tuning at a constant rate; None where there are fewer than two."""
    known = _snapshots(study, _FAMILY)
    if len(known) < 2:
        return None
    decayed = _ends(study)
    return section(
        "curve",
        "The course of fine-tuning",
        "How much of its score an encoder has after tenths of an epoch and after whole ones: at a constant rate, as in "
        "the papers, and at rates that fall to zero at the end of runs of several lengths. " + MEASURE,
        [_figure(known, decayed), _table(known, decayed), text(*_words(known, decayed))],
    )


def _snapshots(study: Study, family: str) -> list[tuple[float, Group]]:
    """(epochs, snapshot) of a family that was tuned on all data."""
    found = [
        (float(group.about.snapshot.rpartition("@")[2]), group)
        for group in study.groups.values()
        if group.about.kind == "snapshot"
        and not group.about.variant
        and group.about.data_fraction == 1
        and group.about.snapshot.rpartition("@")[0] == family
    ]
    return sorted(found, key=lambda entry: entry[0])


def _ends(study: Study) -> list[tuple[float, Group]]:
    """(epochs, snapshot) at the ends of runs whose rate falls to zero and that differ in nothing but their length."""
    families = dict.fromkeys(
        found[1]
        for group in study.groups.values()
        if group.about.kind == "snapshot" and (found := _PLAIN.fullmatch(group.about.snapshot))
    )
    ends = [_snapshots(study, family)[-1:] for family in families]
    return sorted((end for found in ends for end in found), key=lambda entry: entry[0])


def _figure(known: list[tuple[float, Group]], decayed: list[tuple[float, Group]]) -> Block:
    last = max(epochs for epochs, _ in (*known, *decayed))
    printed = [(epochs, one.f1) for epochs, one in SPAN_CURVE.items() if 0 < epochs <= max(last, 1.0)]
    drawn = [
        curve_of("constant rate, threshold 0", "snapshot", known, "zero"),
        series("published, another measure", "published", printed, dashed=True),
    ]
    if all(group.tuned for _, group in known):
        drawn.insert(1, curve_of("constant rate, tuned threshold", "other", known, "tuned"))
    if len(decayed) > 1:
        drawn.insert(1, curve_of("rate falls to zero, threshold 0", "control", decayed, "zero"))
    return lines(
        "F1 over epochs of fine-tuning",
        "Bands: one standard deviation over the seeds on either side. " + BRIEF,
        axis("epochs"),
        axis("F1", unit="%"),
        drawn,
    )


def _table(known: list[tuple[float, Group]], decayed: list[tuple[float, Group]]) -> Block:
    measured, ends = dict(known), dict(decayed)
    rows = []
    for epochs in sorted({*measured, *SPAN_CURVE, *ends}):
        printed = SPAN_CURVE.get(epochs)
        rows.append(
            row(
                [
                    f"{epochs:g}",
                    pair_cell(printed),
                    {"text": printed_under(epochs), "tone": "muted"},
                    *measured_cells(measured.get(epochs)),
                    *measured_cells(ends.get(epochs)),
                ],
                kind="snapshot" if epochs in measured else "published",
            )
        )
    falling = [{**one, "group": "rate falls to zero there"} for one in MEASURED]
    constant = [{**one, "group": "constant rate"} for one in MEASURED]
    under = column("printed under", "text", PUBLISHED[0]["group"])
    groups = [group for _, group in (*known, *decayed)]
    return table(
        f"Fine-tuning of the whole encoder; measured with {seeds_words(groups)}. {BRIEF}",
        [column("Epochs"), *PUBLISHED, under, *constant, *falling],
        rows,
    )


def _words(known: list[tuple[float, Group]], decayed: list[tuple[float, Group]]) -> list[str]:
    said = [
        "Both papers print this table rotated by six rows: what stands under 1/10 to 6/10 belongs to epochs 1 to 6, "
        "and what stands under 7/10 to 6 to tenths 1 to 9. Published values are in the true order here, with the name "
        f"they are printed under beside them. An epoch took {SECONDS_PER_EPOCH:,.0f} seconds there, on one V100."
    ]
    shares = _shares({epochs: group.scores("zero").f1 for epochs, group in known})
    theirs = _shares({epochs: one.f1 for epochs, one in SPAN_CURVE.items()})
    if shares and theirs:
        said.append(
            f"After 3/10 of an epoch the encoder has {shares:.0f} % of the F1 it has after a whole one at threshold 0; "
            f"in the papers it was {theirs:.0f} %."
        )
    ends = dict(decayed)
    both = [(epochs, group, ends[epochs]) for epochs, group in known if epochs in ends]
    if both:
        gaps = ", ".join(
            f"{other.scores('zero').f1 - group.scores('zero').f1:+.1f} at {epochs:g}"
            for epochs, group, other in both
        )
        said.append(
            f"A rate that falls to zero changes F1 at threshold 0 by {gaps.replace('-', '−')} (epochs), "
            "for the same number of steps."
        )
    return said


def _shares(f1: dict[float, float]) -> float | None:
    """Percent of an epoch's F1 that 3/10 of it gives."""
    if not f1.get(1.0) or 0.3 not in f1:
        return None
    return 100 * f1[0.3] / f1[1.0]
