"""Published values beside measured ones: columns and cells that the sections on the papers share."""

from collections.abc import Sequence
from typing import Any

from bertvision.report.words import UNKNOWN, change, count, score
from bertvision.study.about import About
from bertvision.study.blocks import (
    Cell,
    Kind,
    column,
    difference_cell,
    p_cell,
    published_cell,
    score_cell,
    series,
    value_cell,
)
from bertvision.study.picks import seed_list
from bertvision.study.published import Printed
from bertvision.study.view import At, Group, Study, Versus

__all__ = [
    "MEASURED",
    "PUBLISHED",
    "VERSUS",
    "change_cell",
    "curve_of",
    "head_cell",
    "measured_cells",
    "pair_cell",
    "pair_words",
    "parameters_cell",
    "part_words",
    "seeds_words",
    "versus_cells",
]

PUBLISHED = [column("EM / F1", "number", "published")]
MEASURED = [
    column("EM at 0", "number", "measured"),
    column("F1 at 0", "number", "measured"),
    column("F1 tuned", "number", "measured"),
]
VERSUS = [
    column("EM at 0", "number", "measured difference"),
    column("F1 at 0", "number", "measured difference"),
    column("F1 tuned", "number", "measured difference"),
    column("p", "number", "measured difference"),
]


def pair_words(printed: Printed) -> str:
    """Exact match and F1 as printed."""
    return f"{score(printed.exact)} / {score(printed.f1)}"


def pair_cell(printed: Printed | None) -> Cell:
    return published_cell(UNKNOWN if printed is None else pair_words(printed))


def change_cell(ours: Printed | None, theirs: Printed | None) -> Cell:
    """The difference of two printed scores, of which nobody knows an interval."""
    if ours is None or theirs is None:
        return published_cell(UNKNOWN)
    gaps = (round(ours.exact - theirs.exact, 1), round(ours.f1 - theirs.f1, 1))
    return published_cell(" / ".join(change(gap) for gap in gaps))


def measured_cells(group: Group | None) -> list[Cell]:
    """EM and F1 at threshold 0 and F1 at the tuned one, with deviations over seeds."""
    if group is None:
        return [value_cell(None)] * len(MEASURED)
    plain = group.scores("zero")
    tuned = score_cell(group.scores("tuned")) if group.tuned else value_cell(None)
    return [score_cell(plain, "exact"), score_cell(plain), tuned]


def versus_cells(study: Study, ours: Group | None, theirs: Group | None) -> list[Cell]:
    """Paired differences at threshold 0 and at the tuned one, and McNemar's p at threshold 0."""
    if ours is None or theirs is None:
        return [value_cell(None)] * len(VERSUS)
    plain = study.versus(ours, theirs, "zero")
    tuned: Versus | None = study.versus(ours, theirs, "tuned") if ours.tuned and theirs.tuned else None
    return [
        difference_cell(plain.exact),
        difference_cell(plain.f1),
        difference_cell(tuned.f1 if tuned else None),
        p_cell(plain.p),
    ]


def parameters_cell(group: Group | None) -> Cell:
    """Of the head."""
    return count(group.about.parameters) if group else value_cell(None)


def part_words(about: About) -> str:
    """On which part of the data a system was made; nothing where that is all of it."""
    made = "tuned" if about.kind == "snapshot" else "fitted"
    return f"{made} on {100 * about.data_fraction:g} % of the data" if about.data_fraction != 1 else ""


def head_cell(group: Group, name: str = "", snapshot: Group | None = None) -> Cell:
    """The head's name (or another); below it what sets it apart: a part of the data, fewer seeds than its snapshot."""
    title, label = name or group.about.label, group.about.label if name else ""
    seeds = seed_list(group.seeds) if snapshot and group.seeds != snapshot.seeds else ""
    below = ", ".join(filter(None, (label, part_words(group.about), seeds)))
    return {"text": title, "sub": below} if below else title


def curve_of(
    name: str, kind: Kind, groups: Sequence[tuple[float, Group]], at: At, *, dashed: bool = False
) -> dict[str, Any]:
    """F1 of groups over x, with a band of a deviation over the seeds on either side."""
    found = [(x, group.scores(at)) for x, group in groups]
    band = [(x, s.f1 - s.sd_f1, s.f1 + s.sd_f1) for x, s in found if s.sd_f1 is not None]
    drawn = band if len(band) == len(found) else ()
    return series(name, kind, [(x, s.f1) for x, s in found], band=drawn, dashed=dashed)


def seeds_words(groups: Sequence[Group]) -> str:
    """How many seeds stand behind a table."""
    sizes = sorted({len(group.seeds) for group in groups})
    if not sizes:
        return ""
    told = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    return f"{told} seed{'s' * (sizes != [1])}"
