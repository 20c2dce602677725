"""The threshold for no answer: none (0), tuned on held-out training data, and the best on dev itself.

Half of the questions of dev have no answer, a third of those of train. A system that says "no answer" too seldom at
threshold 0 gains from a threshold alone, and a head can seem better than its snapshot for no other reason.
"""

from typing import Any

import numpy as np

from bertvision.report.words import change, interval, score, signed
from bertvision.study import blocks
from bertvision.study.picks import chosen, family, is_full
from bertvision.study.sections.pairs import Pairing, pairings
from bertvision.study.view import At, Group, Study

__all__ = ["thresholds"]

_SHORT: dict[At, str] = {"zero": "at 0", "tuned": "tuned", "oracle": "oracle"}
_NAMES: dict[At, str] = {"zero": "0", "tuned": "tuned on held-out train", "oracle": "best on dev (oracle)"}
_GRID = np.linspace(-8.0, 8.0, 65)
_CAPTION = (
    "F1 and exact match on dev in percent, means over seeds (± their standard deviation). Tuned: the threshold with "
    "the best F1 on articles of train that nothing was trained on, weighted so that half of the questions are "
    "unanswerable. Best on dev: an oracle, which knows the answers and stands here only as the ceiling of "
    "what any threshold gives."
)


def thresholds(study: Study) -> dict[str, Any] | None:
    """What the threshold gives to snapshots and heads, and what is left of a head's gain once both are tuned."""
    pairs = pairings(study)
    shown = _shown(study, pairs)
    if not shown:
        return None
    made = [_table(shown)]
    if pairs:
        made += [_left(study, pairs), _curves(pairs)]
    return blocks.section(
        "thresholds",
        "The no-answer threshold",
        "Shows how much of each score, and of each head's gain over its snapshot, is a matter of when to say "
        "no answer. It does not show that a tuned threshold carries over to other data: train and dev are of one kind.",
        [blocks.text(*_findings(study, shown, pairs)), *made],
    )


def _shown(study: Study, pairs: list[Pairing]) -> list[Group]:
    """Snapshots of the papers, the strongest one, and the head chosen on each; controls beside them."""
    groups = [study.get(f"constant@{epochs}") for epochs in ("0.3", "1", "2")]
    groups.append(chosen(g for g in study.groups.values() if is_full(g) and family(g).startswith("decayed-")))
    for pair in pairs:
        groups += [pair.snapshot, pair.head, study.get(f"{pair.snapshot.key}/last-state")]
    unique = {group.key: group for group in groups if group is not None and group.tuned}
    return sorted(unique.values(), key=lambda g: (g.about.snapshot, g.about.kind != "snapshot"))


def _table(shown: list[Group]) -> dict[str, Any]:
    columns = [blocks.column("system", "text"), blocks.column("seeds")]
    columns += [blocks.column(_NAMES[at], group="F1 at threshold") for at in _NAMES]
    columns += [blocks.column(_NAMES[at], group="EM at threshold") for at in _NAMES]
    columns += [blocks.column("has-answer F1 / no-answer EM at 0"), blocks.column("the same, tuned")]
    columns += [blocks.column("tuned", group="threshold"), blocks.column("oracle", group="threshold")]
    rows = []
    for group in shown:
        found = {at: group.scores(at) for at in _NAMES}
        cells: list[blocks.Cell] = [group.key, str(len(group.seeds))]
        for metric in ("f1", "exact"):
            for at in _NAMES:
                cell = blocks.score_cell(found[at], metric)
                if at == "oracle":
                    cell = {**(cell if isinstance(cell, dict) else {"text": cell}), "tone": "muted"}
                cells.append(cell)
        cells += [f"{score(found[at].has_f1)} / {score(found[at].no_exact)}" for at in ("zero", "tuned")]
        for at in ("tuned", "oracle"):
            cells.append(signed(float(np.mean([one["threshold"] for one in found[at].per_seed])), digits=2))
        rows.append(blocks.row(cells, kind=group.about.kind))
    return blocks.table(_CAPTION, columns, rows)


def _left(study: Study, pairs: list[Pairing]) -> dict[str, Any]:
    rows = [
        blocks.interval_row(f"{pair.label}, {_SHORT[at]}", study.versus(pair.head, pair.snapshot, at).f1)
        for pair in pairs
        for at in _NAMES
    ]
    return blocks.intervals(
        "Head minus its snapshot, by threshold",
        "Paired differences of F1 on dev with 95 % intervals over questions. Where the gain shrinks from the first row "
        "to the second, the rest of it was had by a threshold alone.",
        rows,
    )


def _curves(pairs: list[Pairing]) -> dict[str, Any]:
    drawn = []
    for group in {group.key: group for pair in pairs for group in (pair.snapshot, pair.head)}.values():
        values = [
            100.0 * float(np.mean([s.dev.at(float(t), group.answerable)[1].mean() for s in group.systems]))
            for t in _GRID
        ]
        kind = "snapshot" if group.about.kind == "snapshot" else "head"
        points = list(zip(_GRID.tolist(), values, strict=True))
        drawn.append(blocks.series(group.key, kind, points, dashed=kind == "snapshot"))
    return blocks.lines(
        "F1 on dev at every threshold",
        "Mean over seeds of the F1 that one threshold for all seeds would give; no answer is said where its score "
        "exceeds that of the best span by more than the threshold.",
        blocks.axis("threshold (score of no answer minus best span)"),
        blocks.axis("F1 on dev", unit="%"),
        drawn,
    )


def _findings(study: Study, shown: list[Group], pairs: list[Pairing]) -> list[str]:
    def gains(kind: str, high: At, low: At) -> list[float]:
        return [
            g.scores(high).f1 - g.scores(low).f1
            for g in shown
            if (g.about.kind == "snapshot") == (kind == "snapshot")
        ]

    said = []
    for kind, words in (("snapshot", "the snapshots"), ("head", "the heads and controls on them")):
        if found := gains(kind, "tuned", "zero"):
            rest = gains(kind, "oracle", "tuned")
            said.append(
                f"Tuning the threshold changes F1 of {words} below by {change(float(np.mean(found)))} points in the "
                f"mean ({signed(min(found))} to {signed(max(found))}); the oracle would add "
                f"{change(float(np.mean(rest)))} more."
            )
    for pair in pairs:
        zero, tuned = (study.versus(pair.head, pair.snapshot, at).f1 for at in ("zero", "tuned"))
        said.append(
            f"{pair.label}: {change(zero.difference)} F1 over its snapshot at threshold 0 "
            f"(95 % interval {interval(zero.low, zero.high)}), {change(tuned.difference)} once both thresholds are "
            f"tuned ({interval(tuned.low, tuned.high)})."
        )
    return said
