"""Section: heads fitted on parts of the training data."""

from typing import Any

from bertvision.study.blocks import Block, axis, column, lines, row, section, series, table, text
from bertvision.study.picks import seed_list, with_seeds
from bertvision.study.published import BRIEF, FRACTIONS, MEASURE, ROWS, SPAN_CURVE
from bertvision.study.sections.beside import (
    MEASURED,
    PUBLISHED,
    VERSUS,
    curve_of,
    measured_cells,
    pair_cell,
    pair_words,
    versus_cells,
)
from bertvision.study.view import Group, Study

__all__ = ["fractions"]

_PAPER = ("constant@1", "adapter-386-skip")
"""The snapshot and the head of the papers' curve."""


def fractions(study: Study) -> dict[str, Any] | None:
    """A figure and a table for every head that was fitted on several parts of the data; None where none was."""
    heads: dict[tuple[str, str], dict[float, Group]] = {}
    for group in study.groups.values():
        about = group.about
        if about.kind in ("head", "control") and not (about.fitted_on or about.variant):
            heads.setdefault((about.snapshot, about.label), {})[about.data_fraction] = group
    blocks: list[Block] = []
    for (snapshot, label), parts in heads.items():
        base = study.get(snapshot)
        if len(parts) > 1 and base is not None:
            paper = (snapshot, label) == _PAPER
            ordered, same = _alike(dict(sorted(parts.items())))
            level = with_seeds(base, same) if set(same) & set(base.seeds) else base
            blocks += [
                _figure(label, base.key, level, ordered, same, paper=paper),
                _table(study, label, base, level, ordered, same, paper=paper),
                text(_words(study, label, base, ordered, paper=paper)),
            ]
    if not blocks:
        return None
    return section(
        "fractions",
        "Parts of the training data",
        "A head fitted on a part of the training data, drawn at random, on the states of an encoder that was "
        "fine-tuned on all of it; differences are to that encoder with its own output layer. " + MEASURE,
        blocks,
    )


def _alike(parts: dict[float, Group]) -> tuple[dict[float, Group], list[int]]:
    """Every point with the seeds that all have, and these; as they are, and none, where they have none in common."""
    same = sorted(set.intersection(*(set(group.seeds) for group in parts.values())))
    return ({part: with_seeds(group, same) for part, group in parts.items()} if same else parts), same


def _told(parts: dict[float, Group], same: list[int]) -> str:
    if same:
        return f"{seed_list(same)}, which all points have"
    each = ", ".join(f"{100 * part:g} % with {seed_list(group.seeds)}" for part, group in parts.items())
    return f"no seed in common ({each}), so that points differ by their seeds as well"


def _figure(
    label: str, key: str, base: Group, parts: dict[float, Group], same: list[int], *, paper: bool
) -> Block:
    ends = (min(*parts, *(FRACTIONS if paper else ())), 1.0)
    level = base.scores("zero").f1
    drawn = [
        curve_of(f"{label}, threshold 0", "head", list(parts.items()), "zero"),
        series(f"{key}, threshold 0", "snapshot", [(x, level) for x in ends], dashed=True),
    ]
    if all(group.tuned for group in parts.values()):
        drawn.append(curve_of(f"{label}, tuned threshold", "other", list(parts.items()), "tuned"))
    if paper:
        printed = [(x, one.f1) for x, one in FRACTIONS.items()]
        drawn.append(series("published head, another measure", "published", printed))
        bert = SPAN_CURVE[1.0].f1
        drawn.append(
            series("published BERT, another measure", "published", [(x, bert) for x in ends], dashed=True)
        )
    return lines(
        f"F1 of {label} on {key} over the part of the data it was fitted on",
        f"With {_told(parts, same)}."
        + (" Bands: one standard deviation over the seeds on either side." if len(same) > 1 else "")
        + (f" {BRIEF}" if paper else ""),
        axis("part of the training data"),
        axis("F1", unit="%"),
        drawn,
    )


def _table(
    study: Study,
    label: str,
    base: Group,
    level: Group,
    parts: dict[float, Group],
    same: list[int],
    *,
    paper: bool,
) -> Block:
    printed = FRACTIONS if paper else {}
    beside = PUBLISHED if paper else []
    rows = [
        row(
            [
                base.key,
                *([pair_cell(SPAN_CURVE[1.0])] if paper else []),
                *measured_cells(level),
                *versus_cells(study, None, None),
            ],
            strong=True,
            kind="snapshot",
        )
    ]
    for part in sorted({*parts, *printed}):
        group = parts.get(part)
        rows.append(
            row(
                [
                    f"{100 * part:g} %",
                    *([pair_cell(printed.get(part))] if paper else []),
                    *measured_cells(group),
                    *versus_cells(study, group, base),
                ],
                kind="head" if group else "published",
            )
        )
    told = f" {BRIEF}" if paper else ""
    return table(
        f"{label} on {base.key}; measured with {_told(parts, same)}.{told}",
        [column("Data", "text"), *beside, *MEASURED, *VERSUS],
        rows,
    )


def _words(study: Study, label: str, base: Group, parts: dict[float, Group], *, paper: bool) -> str:
    """From which part on the head is above its snapshot, and from which on that is certain."""
    found = {part: study.versus(group, base, "zero").f1 for part, group in parts.items()}
    above = _lasting({part: gap.difference > 0 for part, gap in found.items()})
    certain = _lasting({part: gap.low > 0 for part, gap in found.items()})
    said = (
        f"At threshold 0 {label} has a higher F1 than {base.key} {_from(above)}, and an interval above zero "
        f"{_from(certain)}."
    )
    if paper:
        printed = _lasting({part: one.f1 > SPAN_CURVE[1.0].f1 for part, one in FRACTIONS.items()})
        again, whole = ROWS[12].at[1.0], FRACTIONS[1.0]
        said += (
            " The papers speak of about 30 % of the data; the numbers behind their figure, whose legend swaps EM and "
            f"F1, say so {_from(printed)}. They have this head on all data twice, {pair_words(whole)} in that figure "
            f"and {pair_words(again)} among the twenty: as far apart as several of their steps."
        )
    return said


def _from(part: float | None) -> str:
    if part is None:
        return "with none of these parts for good"
    return "with all of the data alone" if part == 1 else f"from {100 * part:g} % of the data on"


def _lasting(holds: dict[float, bool]) -> float | None:
    """The least part from which on it holds for all larger ones, too."""
    least = None
    for part in sorted(holds, reverse=True):
        if not holds[part]:
            break
        least = part
    return least
