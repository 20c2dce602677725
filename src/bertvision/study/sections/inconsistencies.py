"""Section: what does not fit together in the seed documents."""

from typing import Any

from bertvision.study.blocks import column, row, section, table
from bertvision.study.slips import SLIPS
from bertvision.study.view import Study

__all__ = ["inconsistencies"]


def inconsistencies(study: Study) -> dict[str, Any] | None:
    """Always there: it stands on the documents alone."""
    columns = [
        column("", "number"),
        column("Document", "text"),
        column("What does not fit", "text"),
        column("What is gone by here", "text"),
        column("Matters to", "text"),
    ]
    rows = [
        row(
            [
                str(number),
                slip.document,
                slip.what,
                slip.taken,
                {"text": slip.section.replace("-", " ") or "no section here", "tone": "muted"},
            ]
        )
        for number, slip in enumerate(SLIPS, start=1)
    ]
    return section(
        "inconsistencies",
        "What does not fit together in the papers",
        "Contradictions between versions, texts, tables and code of the seed documents, and numbers that cannot be "
        "right. Published values elsewhere in this report are the ones named in the fourth column.",
        [table("Scores are EM / F1 in percent.", columns, rows)],
    )
