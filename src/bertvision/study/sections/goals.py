"""The goals of the study, each with what was wanted, what was measured, and whether it was met."""

from collections.abc import Mapping
from typing import Any

from bertvision.study.blocks import column, row, section, table
from bertvision.study.verdicts import goals_of
from bertvision.study.view import Study

__all__ = ["goals"]

_TONES = {"met": "gain", "missed": "loss"}
"""What is not final has none."""


def goals(study: Study, settings: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """None of a study without a single span system; `settings` as verdicts.goals_of takes them."""
    if not study.groups:
        return None
    rows = [
        row(
            [
                goal.name,
                goal.wanted,
                {"text": goal.measured, "sub": goal.note} if goal.note else goal.measured,
                {"text": goal.verdict, "tone": _TONES.get(goal.verdict, "muted")},
            ]
        )
        for goal in goals_of(study, settings)
    ]
    return section(
        "goals",
        "What it should show, and what it shows",
        "Goals were set before the study was run. A goal with a size is met when the mean reaches it; one that asks "
        "for a system to be ahead when its whole 95 % interval (paired bootstrap over questions, on scores averaged "
        "over seeds) lies above zero. A verdict so far rests on fewer parts or seeds than were planned. Heads, the "
        "strongest baseline and the ensemble were chosen by F1 on the held-out part of train; on dev were chosen the "
        "best full fine-tuning and the best member of an ensemble, which makes a goal harder, and the cheapest system "
        "within reach, which makes it easier.",
        [
            table(
                "Each goal and its verdict.",
                [
                    column("goal", "text"),
                    column("wanted", "text"),
                    column("measured", "text"),
                    column("verdict", "text"),
                ],
                rows,
            )
        ],
    )
