"""Section: answers decoded as the papers' code did it, beside the official way of the same scores."""

from typing import Any

from bertvision.study.blocks import Cell, column, row, section, table
from bertvision.study.picks import seed_list
from bertvision.study.sections.beside import MEASURED, VERSUS, measured_cells, versus_cells
from bertvision.study.view import Study

__all__ = ["decoding"]


def decoding(study: Study) -> dict[str, Any] | None:
    """Every system that was decoded so; None where none was."""
    rows = []
    for theirs in study.groups.values():
        if theirs.about.variant != "bertvision":
            continue
        name = theirs.key.removesuffix("#bertvision")
        official = study.get(name)
        fewer = official is not None and official.seeds != theirs.seeds
        title: Cell = {"text": name, "sub": seed_list(theirs.seeds)} if fewer else name
        cells = [*measured_cells(theirs), *versus_cells(study, theirs, official)]
        rows.append(row([title, *cells], kind=theirs.about.kind))
    if not rows:
        return None
    return section(
        "decoding",
        "The papers' decoding",
        "BERTVision takes the likeliest start and the likeliest end of a window by themselves, the question's tokens "
        "included; an end before its start is a vote for no answer, and the window with the highest product of the two "
        "probabilities answers. Shows what that costs against the best allowed span, as everywhere else here. "
        "Thresholds of the two are not on one scale.",
        [
            table(
                "Systems decoded as in the papers; differences are to the same system decoded officially, over the "
                "seeds both have.",
                [column("system", "text"), *MEASURED, *VERSUS],
                rows,
            )
        ],
    )
