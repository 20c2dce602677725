"""Answer or no answer: the encoder tuned for it, the papers' label heads on its snapshots, tenney-small epoch by epoch.

Scores are accuracy and F1 of "no answer", the positive class, in percent; probability 0.5 decides. Published ones are
each the best of ten epochs on dev, taken by itself; measured ones are of the last epoch.
"""

from statistics import fmean
from typing import Any

from bertvision.report import words
from bertvision.study.blocks import (
    axis,
    column,
    difference_cell,
    lines,
    published_cell,
    row,
    section,
    series,
    table,
    text,
    value_cell,
)
from bertvision.study.published import LABEL_CURVE, LABEL_HEADS
from bertvision.study.resample import paired
from bertvision.study.sections.beside import part_words
from bertvision.study.view import LabelGroup, Study

__all__ = ["answerable"]

_OTHERS = (
    "Published values are of BERT-large, the whole training set and one seed, and one window that votes for no answer "
    "decides for the question: compare differences and orders, not levels."
)


def answerable(study: Study) -> dict[str, Any] | None:
    """None where the task was not run."""
    snapshots = sorted(
        (g for g in study.labels.values() if g.about.kind == "snapshot" and not g.about.variant), key=_epochs
    )
    heads = {g.key: study.labels_below(g.about.snapshot) for g in snapshots}
    if not snapshots:
        return None
    blocks = [*_curve(snapshots), _table(snapshots, heads), *_epochwise(snapshots, heads), text(_OTHERS)]
    return section(
        "answerable",
        "Answer or no answer",
        "An encoder tuned for this question alone (pooled first token and a linear layer), and heads over the first "
        "token's vectors of all its layers. Both classes count alike in training, as the training data has few "
        "questions without an answer.",
        blocks,
    )


def _epochs(group: LabelGroup) -> float:
    text_ = group.about.snapshot.rpartition("@")[2]
    return float(text_) if text_.replace(".", "", 1).isdigit() else 0.0


def _curve(snapshots: list[LabelGroup]) -> list[dict[str, Any]]:
    """Accuracy and F1 by epochs of tuning, over the stretch that was measured."""
    last = max(max(_epochs(g) for g in snapshots), 1.0)
    printed = {at: scores for at, scores in LABEL_CURVE.items() if at <= last}
    drawn = [
        series("accuracy", "snapshot", [(_epochs(g), g.accuracy) for g in snapshots]),
        series("F1 of no answer", "other", [(_epochs(g), g.f1) for g in snapshots]),
        series("accuracy, published", "published", [(at, s.exact) for at, s in printed.items()], dashed=True),
    ]
    return [
        lines(
            "The encoder tuned for it",
            "Measured snapshots beside the published curve.",
            axis("epochs"),
            axis("on dev", unit="%"),
            drawn,
        )
    ]


def _table(snapshots: list[LabelGroup], heads: dict[str, list[LabelGroup]]) -> dict[str, Any]:
    rows = []
    for snapshot in snapshots:
        at = _epochs(snapshot)
        rows.append(_row(snapshot, snapshot, LABEL_CURVE.get(at)))
        for head in heads[snapshot.key]:
            rows.append(_row(head, snapshot, LABEL_HEADS.get(head.about.label, {}).get(at)))
    return table(
        "Snapshots and the heads on each; the difference is of accuracy, with the 95 % interval of the paired "
        "bootstrap over questions. Published numbers of heads are the best of ten epochs on dev.",
        [
            column("system", "text"),
            column("seeds"),
            column("parameters"),
            column("accuracy", group="published"),
            column("F1", group="published"),
            column("accuracy", group="measured"),
            column("F1", group="measured"),
            column("to its snapshot", group="measured"),
            column("time"),
        ],
        rows,
    )


def _row(group: LabelGroup, snapshot: LabelGroup, printed: Any) -> dict[str, Any]:
    own = group is snapshot
    found = None if own else _against(group, snapshot)
    seconds = group.mean("tune_seconds") if own else group.mean("fit_seconds")
    title, part = group.about.snapshot if own else group.about.label, part_words(group.about)
    cells = [
        {"text": title, "sub": part} if part else title,
        value_cell(len(group.seeds), digits=0),
        value_cell(group.about.parameters, digits=0),
        published_cell(printed.exact if printed else None),
        published_cell(printed.f1 if printed else None),
        value_cell(group.accuracy, group.sd),
        value_cell(group.f1, group.sd_f1),
        difference_cell(found),
        words.duration(seconds),
    ]
    return row(cells, strong=own, kind=group.about.kind)


def _against(group: LabelGroup, snapshot: LabelGroup) -> Any:
    """Accuracy over the seeds both have; over all of each where they share none."""
    common = group.common(snapshot)
    means = []
    for one in (group, snapshot):
        kept = [
            right for seed, right in zip(one.seeds, one.each, strict=True) if not common or seed in common
        ]
        means.append(sum(right.astype(float) for right in kept) / len(kept))
    return paired(means[0], means[1])


def _epochwise(snapshots: list[LabelGroup], heads: dict[str, list[LabelGroup]]) -> list[dict[str, Any]]:
    """tenney-small after each pass over the data."""
    drawn, said = [], []
    for snapshot in snapshots:
        head = next((g for g in heads[snapshot.key] if g.about.label == "tenney-small"), None)
        scores = _scores(head) if head else {}
        if head is None or not scores:
            continue
        drawn.append(series(f"on {snapshot.about.snapshot}", "head", list(scores.items())))
        values = list(scores.values())
        printed = LABEL_HEADS["tenney-small"].get(_epochs(snapshot))
        beside = f", {printed.exact:.1f} in the paper" if printed else ""
        said.append(
            f"tenney-small on {snapshot.about.snapshot}: {values[-1]:.1f} % after the last epoch, {max(values):.1f} % "
            f"after the best of {len(values)}, as the papers count{beside}.{_took(head, len(values))}"
        )
    if not drawn:
        return []
    return [
        lines(
            "tenney-small after each epoch",
            "Accuracy on dev, mean over seeds.",
            axis("epochs of the head"),
            axis("accuracy", unit="%"),
            drawn,
        ),
        text(*said),
    ]


def _took(head: LabelGroup, epochs: int) -> str:
    """How long the epochs of a head took together; with others on the device where none ran alone."""
    alone, beside = head.mean("fit_seconds"), ""
    if alone is None:
        found = [s.about.fit_seconds for s in head.systems if s.about.fit_seconds is not None]
        alone, beside = (fmean(found) if found else None), ", beside other work on the device"
    if alone is None:
        return ""
    return f" All {epochs} took {words.duration(alone)}, the one pass of the encoder included{beside}."


def _scores(group: LabelGroup) -> dict[float, float]:
    """Accuracy on dev in percent after each epoch, mean over seeds."""
    found: dict[float, list[float]] = {}
    for system in group.systems:
        for record in system.about.history:
            if (value := words.finite(record.get("score"))) is not None:
                # Shares and percents are told apart by their size: no accuracy after an epoch is below one percent.
                found.setdefault(float(record["epoch"]), []).append(value if value > 1 else 100 * value)
    return {epoch: fmean(values) for epoch, values in sorted(found.items())}
