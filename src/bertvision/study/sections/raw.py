"""Section: heads on the states of the encoder as it came, without fine-tuning."""

from typing import Any

import numpy as np

from bertvision.report.words import score
from bertvision.study.blocks import (
    Block,
    Cell,
    column,
    difference_cell,
    row,
    section,
    table,
    text,
    value_cell,
)
from bertvision.study.picks import holdout_f1, shared_seeds
from bertvision.study.published import MEASURE, SPAN_CURVE
from bertvision.study.resample import paired
from bertvision.study.sections.beside import (
    MEASURED,
    head_cell,
    measured_cells,
    pair_words,
    parameters_cell,
    seeds_words,
)
from bertvision.study.view import Group, Study
from bertvision.tasks.span.compare import Difference

__all__ = ["raw"]

_TUNED = ("constant@0.3", "constant@1")
"""Snapshots on which the same heads are shown beside."""


def raw(study: Study) -> dict[str, Any] | None:
    """Heads on the untuned encoder beside the answer that needs no model; None where there are none."""
    heads = [
        group
        for group in study.groups.values()
        if group.about.snapshot == "untuned"
        and group.about.kind in ("head", "control")
        and not group.about.variant
        and not group.about.fitted_on
    ]
    if not heads:
        return None
    return section(
        "raw",
        "Heads on an encoder that was not fine-tuned",
        "How far a head gets with states that know nothing of the task, beside always saying that there is no answer, "
        f"and beside the same head on fine-tuned states.{_part(heads)} " + MEASURE,
        [_table(study, heads), text(_words(study, heads))],
    )


def _part(heads: list[Group]) -> str:
    """How much of the data they were fitted on, where it is not all."""
    shares = sorted({group.about.data_fraction for group in heads})
    if shares == [1.0]:
        return ""
    told = " or ".join(f"{100 * share:g} %" for share in shares)
    return f" Heads on raw states were fitted on {told} of the training data, those on fine-tuned states on all of it."


def _over_nothing(study: Study, group: Group) -> Difference:
    """F1 at the best threshold known without dev, minus that of always saying no answer."""
    _, f1 = group.questions("tuned" if group.tuned else "zero")
    return paired(f1, (~study.answerable).astype(np.float64))


def _table(study: Study, heads: list[Group]) -> Block:
    nothing = study.silence
    beside = [key for key in _TUNED if study.get(key)]
    constant: list[Cell] = ["always no answer", value_cell(None), *[score(nothing)] * len(MEASURED)]
    rows = [row([*constant, value_cell(None), *[value_cell(None)] * len(beside)], strong=True, kind="other")]
    seeds = shared_seeds(heads)
    ordered = sorted(heads, key=lambda group: -(holdout_f1(group, seeds) or group.scores("zero").f1))
    for group in ordered:
        same = [study.get(f"{key}/{group.about.label}") for key in beside]
        rows.append(
            row(
                [
                    head_cell(group),
                    parameters_cell(group),
                    *measured_cells(group),
                    difference_cell(_over_nothing(study, group)),
                    *(measured_cells(other)[1] for other in same),
                ],
                kind=group.about.kind,
            )
        )
    return table(
        "Heads on the untuned encoder, best on held-out training questions first; measured with "
        f"{seeds_words(heads)}. The difference is in F1 at the tuned threshold, to always saying no answer.",
        [
            column("Head", "text"),
            column("Parameters"),
            *MEASURED,
            column("over no answer"),
            *(column(f"on {key}", "number", "F1 at 0 of the same head") for key in beside),
        ],
        rows,
    )


def _words(study: Study, heads: list[Group]) -> str:
    above = sum(_over_nothing(study, group).low > 0 for group in heads)
    return (
        f"{above} of {len(heads)} heads on raw states are above always saying no answer, with an interval above zero. "
        "The papers tell that heads on raw BERT fail and print no number; BERT itself with an output layer that was "
        f"never trained is given with {pair_words(SPAN_CURVE[0.0])} (EM / F1, by their measure), far below saying no "
        "answer to everything, as it answers at random."
    )
