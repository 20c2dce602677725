"""Section: BERTVision's twenty span models, published and measured, each beside the snapshot it was fitted on."""

from typing import Any

import numpy as np

from bertvision.report.words import signed
from bertvision.study.blocks import (
    Block,
    Cell,
    axis,
    column,
    interval_row,
    intervals,
    listing,
    row,
    scatter,
    section,
    table,
    text,
)
from bertvision.study.picks import with_seeds
from bertvision.study.published import BRIEF, MEASURE, REFERENCE, REPOSITORY, ROWS, SPAN_CURVE, PaperRow
from bertvision.study.sections.beside import (
    MEASURED,
    PUBLISHED,
    VERSUS,
    change_cell,
    head_cell,
    measured_cells,
    pair_cell,
    parameters_cell,
    seeds_words,
    versus_cells,
)
from bertvision.study.view import Group, Study

__all__ = ["papers", "rank_correlation"]

_SNAPSHOTS = {0.3: "constant@0.3", 1.0: "constant@1", 2.0: "constant@2"}
_BESIDE = ("average-pooling", "last-state", "last-state-mlp")
"""Measured with the rows, reported nowhere: plain average pooling, and heads that read the last layer alone."""
_COLUMNS = [
    column("Row and head", "text"),
    column("Parameters"),
    *PUBLISHED,
    *MEASURED,
    column("EM / F1", "number", "published difference"),
    *VERSUS,
]


def papers(study: Study) -> dict[str, Any] | None:
    """A table for every snapshot of the papers that has heads; None where no such head was fitted."""
    blocks: list[Block] = []
    for epochs, key in _SNAPSHOTS.items():
        snapshot = study.get(key)
        heads = {group.about.label: group for group in study.below(key)}
        if snapshot is None or not any(known.label in heads for known in ROWS.values()):
            continue
        blocks.append(_table(study, epochs, snapshot, _partly(study, key, heads) | heads))
        seeds = _common([snapshot, *heads.values()])
        if all(group.seeds == seeds for group in (snapshot, *heads.values())):
            seeds = []  # nothing to leave out
        if seeds:  # else some would be held against another tuning's snapshot than others
            snapshot = with_seeds(snapshot, seeds)
            heads = {label: with_seeds(group, seeds) for label, group in heads.items()}
        blocks += [
            text(f"{_words(study, epochs, snapshot, heads)}{_told(seeds)}"),
            *_figures(study, epochs, snapshot, heads, _told(seeds)),
        ]
    if not blocks:
        return None
    about = (
        "The span models of BERTVision on the encoders it used: after 3/10 of an epoch, after one and after two, at a "
        "constant rate. Differences are to the snapshot whose states the head reads; the measured ones have 95 % "
        "intervals of a paired bootstrap over questions, and p is McNemar's test on the first seed's exact matches. "
        "The threshold for no answer, which the papers do without, is 0 or tuned on held-out training questions. "
        + MEASURE
    )
    return section("papers", "The papers' twenty heads", about, [*blocks, _notes(), _elsewhere()])


def _common(groups: list[Group]) -> list[int]:
    """Seeds that all of them have."""
    return [seed for seed in groups[0].seeds if all(seed in group.seeds for group in groups)]


def _told(seeds: list[int]) -> str:
    return (
        f" With seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}, which all have." if seeds else ""
    )


def _partly(study: Study, key: str, heads: dict[str, Group]) -> dict[str, Group]:
    """Rows that were fitted on a part of the data alone, by label; of several parts the largest."""
    labels = {known.label for known in ROWS.values()} - set(heads)
    found: dict[str, Group] = {}
    for group in sorted(study.groups.values(), key=lambda g: g.about.data_fraction):
        about = group.about
        plain = about.kind == "head" and not about.variant and not about.fitted_on
        if plain and about.snapshot == key and about.label in labels:
            found[about.label] = group
    return found


def _title(known: PaperRow, group: Group | None, snapshot: Group) -> Cell:
    name = f"{known.number} {known.name}"
    return {"text": name, "sub": known.label} if group is None else head_cell(group, name, snapshot)


def _table(study: Study, epochs: float, snapshot: Group, heads: dict[str, Group]) -> Block:
    base = SPAN_CURVE[epochs]
    blank = change_cell(None, None)
    rows = [
        row(
            [
                f"{snapshot.key} itself",
                parameters_cell(snapshot),
                pair_cell(base),
                *measured_cells(snapshot),
                blank,
                *versus_cells(study, None, None),
            ],
            strong=True,
            kind="snapshot",
        )
    ]
    for known in ROWS.values():
        group, printed = heads.get(known.label), known.at.get(epochs)
        if group is None and printed is None:
            continue
        rows.append(
            row(
                [
                    _title(known, group, snapshot),
                    parameters_cell(group),
                    pair_cell(printed),
                    *measured_cells(group),
                    change_cell(printed, base),
                    *versus_cells(study, group, snapshot),
                ],
                kind="head",
            )
        )
    for label in _BESIDE:
        if group := heads.get(label):
            cells: list[Cell] = [
                head_cell(group, snapshot=snapshot),
                parameters_cell(group),
                pair_cell(None),
                *measured_cells(group),
                blank,
            ]
            rows.append(row([*cells, *versus_cells(study, group, snapshot)], kind=group.about.kind))
    absent = [str(known.number) for known in ROWS.values() if known.label not in heads]
    missing = f" Not fitted here: row{'s' * (len(absent) > 1)} {', '.join(absent)}." if absent else ""
    caption = (
        f"Heads on the encoder of {_epochs(epochs)}; measured with {seeds_words([snapshot, *heads.values()])}, and "
        "differences over the seeds that head and snapshot share. "
        f"{BRIEF}{_some(heads)}{missing}"
    )
    return table(caption, _COLUMNS, rows)


def _some(heads: dict[str, Group]) -> str:
    shares = sorted({group.about.data_fraction for group in heads.values()} - {1.0})
    if not shares:
        return ""
    told = " or ".join(f"{100 * share:g} %" for share in shares)
    return f" Rows that say so were fitted on {told} of the data, and their differences are to a snapshot of all of it."


def _both(epochs: float, heads: dict[str, Group]) -> list[tuple[PaperRow, Group]]:
    """Rows that have a published and a measured score."""
    return [
        (known, heads[known.label]) for known in ROWS.values() if known.label in heads and epochs in known.at
    ]


def _words(study: Study, epochs: float, snapshot: Group, heads: dict[str, Group]) -> str:
    """How many rows gain, here and there, and whether their order is the same."""
    pairs, base = _both(epochs, heads), SPAN_CURVE[epochs]
    measured = [heads[known.label] for known in ROWS.values() if known.label in heads]
    found = [study.versus(group, snapshot, "zero").f1 for group in measured]
    gains, losses = sum(d.low > 0 for d in found), sum(d.high < 0 for d in found)
    said = (
        f"On the encoder of {_epochs(epochs)}, {gains} of {len(found)} of the papers' heads gain F1 at threshold 0 "
        f"with an interval above zero, and {losses} lose with one below."
    )
    if pairs:
        above = sum(known.at[epochs].f1 > base.f1 for known, _ in pairs)
        said += f" Of the {len(pairs)} that also have a published score, {above} were printed above BERT."
    if len(pairs) >= 4:
        order = rank_correlation(
            [known.at[epochs].f1 for known, _ in pairs], [group.scores("zero").f1 for _, group in pairs]
        )
        said += f" Published and measured F1 put them in orders with a rank correlation of {signed(order, digits=2)}."
    if all(group.tuned for group in (snapshot, *measured)):
        tuned = [study.versus(group, snapshot, "tuned").f1 for group in measured]
        gains, losses = sum(d.low > 0 for d in tuned), sum(d.high < 0 for d in tuned)
        said += f" At tuned thresholds {gains} gain and {losses} lose."
    return said


def rank_correlation(first: list[float], second: list[float]) -> float:
    """Spearman's: Pearson's of the ranks, ties sharing the mean of theirs; 0 where all of one side are alike."""
    ranks = [_ranks(np.array(values)) for values in (first, second)]
    if min(float(np.std(r)) for r in ranks) == 0:
        return 0.0
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    below = (values[:, None] > values).sum(axis=1)
    alike = (values[:, None] == values).sum(axis=1)
    return below + (alike - 1) / 2


def _figures(
    study: Study, epochs: float, snapshot: Group, heads: dict[str, Group], seeds: str
) -> list[Block]:
    """Differences below one another, and against the published ones."""
    known_heads = [(known, heads[known.label]) for known in ROWS.values() if known.label in heads]
    drawn: list[Block] = [
        intervals(
            f"F1 minus that of the snapshot, {_epochs(epochs)}",
            f"Measured at threshold 0, 95 % intervals; the papers' rows, then heads they do not report.{seeds}",
            [
                interval_row(f"{known.number} {known.label}", study.versus(group, snapshot, "zero").f1)
                for known, group in known_heads
            ]
            + [
                interval_row(label, study.versus(heads[label], snapshot, "zero").f1)
                for label in _BESIDE
                if label in heads
            ],
        )
    ]
    pairs, base = _both(epochs, heads), SPAN_CURVE[epochs]
    if len(pairs) > 1:
        points = []
        for known, group in pairs:
            found = study.versus(group, snapshot, "zero").f1
            points.append(
                {"x": round(known.at[epochs].f1 - base.f1, 1), "y": found.difference, "low": found.low}
                | {"high": found.high, "label": f"{known.number} {known.label}", "kind": "head"}
            )
        drawn.append(
            scatter(
                f"Published and measured gains, {_epochs(epochs)}",
                "F1 of a head minus that of its snapshot: as printed (one seed) across, as measured "
                f"upwards.{seeds} {BRIEF}",
                axis("published difference", unit="F1"),
                axis("measured difference at threshold 0", unit="F1"),
                points,
                lines_at=[{"y": 0.0, "label": "the snapshot itself"}],
            )
        )
    return drawn


def _notes() -> Block:
    """What is wrong with published rows, and which structures are not certain."""
    guessed = ", ".join(str(known.number) for known in ROWS.values() if not known.exact)
    items = [f"Row {known.number}, {known.name}: {known.wrong}." for known in ROWS.values() if known.wrong]
    return listing(
        [
            *items,
            f"Rows {guessed}: only the size is published; the structures built here meet it, as others would.",
        ]
    )


def _elsewhere() -> Block:
    """Other published scores of full fine-tuning and of a head."""
    base, large = REPOSITORY["BERT-base"], REPOSITORY["BERT-large"]
    told = [
        f"{encoder} {pair['BERT'].exact} / {pair['BERT'].f1} and with its head {pair['BERTVision'].exact} / "
        f"{pair['BERTVision'].f1}"
        for encoder, pair in (("BERT-base", base), ("BERT-large", large))
    ]
    return text(
        "Elsewhere, by the official measure and with the whole training set: the repository's README gives EM / F1 "
        f"after one epoch for {told[0]}; {told[1]}. The head gains with the smaller encoder and loses with the larger. "
        f"Full fine-tuning of BERT-large is cited with {REFERENCE.exact} / {REFERENCE.f1}."
    )


def _epochs(epochs: float) -> str:
    return {0.3: "3/10 of an epoch", 1.0: "one epoch", 2.0: "two epochs"}[epochs]
