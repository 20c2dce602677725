"""Second-best answers: what a system would have said had its top start and its top end been ruled out.

As in the paper, the top start and, separately, the top end of every window are pushed down and the rest is decoded
again (`variant` second). Told at threshold 0, as there.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from bertvision.report.words import count
from bertvision.study import blocks
from bertvision.study.published import MEASURE, SECOND_BEST
from bertvision.study.view import Group, Study

__all__ = ["Second", "second_best", "second_of"]


@dataclass(frozen=True)
class Second:
    """A system's second answers, means over the seeds that have both."""

    exact: float
    """Percent of all questions."""
    f1: float
    wrong: float
    """Questions whose first answer is not exactly right."""
    rescued: float
    """Those of them whose second answer is."""
    answerable: float
    """Those of the rescued that have an answer."""
    both: float
    """Questions right both times."""
    either: float
    """Percent of all questions with at least one right: what a perfect choice between the two would score."""
    first: float
    """Percent of all questions whose first answer is right."""


_PAPER = Second(
    SECOND_BEST["exact"], SECOND_BEST["f1"], SECOND_BEST["of_wrong"], SECOND_BEST["right"], SECOND_BEST["answerable"],
    SECOND_BEST["right_twice"], float("nan"), float("nan"),
)  # fmt: skip
"""Of the paper's model on 3/10 epochs."""


def second_of(first: Group, second: Group) -> Second | None:
    """None where they share no seed."""
    seeds = first.common(second)
    found = []
    for seed in seeds:
        one = first.questions("zero", [seed])[0] > 0.5
        exact, f1 = second.questions("zero", [seed])
        two = exact > 0.5
        rescued = ~one & two
        found.append(
            [100 * exact.mean(), 100 * f1.mean(), (~one).sum(), rescued.sum(), (rescued & first.answerable).sum(),
             (one & two).sum(), 100 * (one | two).mean(), 100 * one.mean()]
        )  # fmt: skip
    return Second(*(float(value) for value in np.mean(found, axis=0))) if found else None


def second_best(study: Study) -> dict[str, Any] | None:
    """Every system that was decoded for its second-best answers, beside the paper's."""
    rows, said = [], []
    for group in study.groups.values():
        first = study.get(group.key.removesuffix("#second"))
        found = second_of(first, group) if group.about.variant == "second" and first else None
        if found is not None and first is not None:
            rows.append(blocks.row(_cells(first.key, found), kind=first.about.kind))
            said.append(
                f"{first.key}: the second answer is right on {_part(found.rescued, found.wrong)} of the questions the "
                f"first got wrong; a perfect choice between the two would lift exact match from {found.first:.1f} to "
                f"{found.either:.1f}."
            )
    if not rows:
        return None
    columns = [
        blocks.column("system", "text"),
        blocks.column("EM", group="second answers"),
        blocks.column("F1", group="second answers"),
        blocks.column("first wrong"),
        blocks.column("second then right"),
        blocks.column("of these with an answer"),
        blocks.column("right both times"),
        blocks.column("EM of the first"),
        blocks.column("EM of the better one (oracle)"),
    ]
    rows.append(blocks.row(_cells("paper: head of 3/10 epochs", _PAPER), kind="published"))
    return blocks.section(
        "second-best",
        "Second-best answers",
        "Shows how often the right answer was a system's second choice. It does not show a better system: nobody knows "
        "beforehand when to take the second answer, and where the first was a span the second is often just no answer.",
        [
            blocks.text(*said),
            blocks.table(
                "Dev at threshold 0, means over seeds. Scores in percent, the rest numbers of questions. "
                f"{MEASURE}",
                columns,
                rows,
            ),
        ],
    )


def _part(some: float, of: float) -> str:
    return f"{100 * some / of:.1f} %" if of else "none"


def _cells(name: str, found: Second) -> list[blocks.Cell]:
    return [
        name,
        blocks.value_cell(found.exact),
        blocks.value_cell(found.f1),
        count(found.wrong),
        {"text": count(found.rescued), "sub": _part(found.rescued, found.wrong)},
        {"text": count(found.answerable), "sub": _part(found.answerable, found.rescued)},
        count(found.both),
        blocks.value_cell(found.first),
        blocks.value_cell(found.either),
    ]
