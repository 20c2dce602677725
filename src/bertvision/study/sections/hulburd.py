"""Hulburd's table: what is trained, from output layer alone to everything, by freezing and by adapters.

Efficiency is his: (F1 - 50) / log10(trained parameters), at threshold 0, as his scores are.
"""

import math
from typing import Any

from bertvision.report import words
from bertvision.study.blocks import (
    axis,
    column,
    published_cell,
    row,
    scatter,
    score_cell,
    section,
    table,
    text,
    value_cell,
)
from bertvision.study.picks import family
from bertvision.study.published import EFFICIENCY, HULBURD, HulburdModel
from bertvision.study.view import Group, Study

__all__ = ["efficiency", "hulburd"]

_LEARNED = 0.5
"""F1 points over saying no answer to everything that a model must have to count as trained."""


def efficiency(f1: float, trainable: float | None) -> float | None:
    """Hulburd's score; None where it has no meaning."""
    return None if trainable is None or trainable <= 1 else (f1 - 50) / math.log10(trainable)


def hulburd(study: Study) -> dict[str, Any] | None:
    """None where none of his models was run."""
    found = {model.name: group for model in HULBURD if (group := _measured(study, model)) is not None}
    if not found:
        return None
    rows = [_row(model, found.get(model.name)) for model in HULBURD]
    part = sorted({group.about.data_fraction for group in found.values()})
    length = sorted({group.about.epochs for group in found.values()})
    encoder = (
        f"Measured here on {' and '.join(f'{100 * share:g} %' for share in part)} of the training data, "
        f"{' and '.join(f'{value:g}' for value in length)} epoch{'s' * (length != [1])}, "
        f"{', '.join(sorted({_seeds(group) for group in found.values()}))}; he trained three epochs on all of it, "
        "with BERT-base, and his counts say the cased one. Compare orders and ratios, not levels."
    )
    wrong = [f"{model.name}: {model.wrong}" for model in HULBURD if model.wrong]
    slips = f"In his own numbers: {'; '.join(wrong)}."
    blocks = [_table(rows), text(encoder, *_told(study, found), slips), *_figure(found)]
    return section(
        "hulburd",
        "Freezing and adapters",
        "Hulburd trained the top layers of the encoder, Houlsby adapters in all layers, or both, always with the layer "
        "norms and the output layer. His times are of one Titan RTX, minutes although the table's head says seconds.",
        blocks,
    )


def _measured(study: Study, model: HulburdModel) -> Group | None:
    wanted = f"hulburd-{model.policy}"
    return next(
        (g for g in study.groups.values()
         if g.about.kind == "snapshot" and not g.about.variant and family(g) == wanted), None
    )  # fmt: skip


def _seeds(group: Group) -> str:
    return f"{len(group.seeds)} seed{'' if len(group.seeds) == 1 else 's'}"


def _row(model: HulburdModel, group: Group | None) -> dict[str, Any]:
    low, high = model.inference
    printed = [
        published_cell(model.exact),
        published_cell(model.f1),
        published_cell(words.count(model.trainable)),
        published_cell(f"{model.minutes} min"),
        published_cell(f"{low:g} s" if low == high else f"{low:g} to {high:g} s"),
        published_cell(_two(efficiency(model.f1, model.trainable)), _as_printed(model)),
    ]
    title = {"text": model.name, "sub": model.policy}
    if group is None:
        return row([title, *printed, *[value_cell(None)] * 7])
    zero, tuned, trained = group.scores("zero"), group.scores("tuned"), group.mean("trainable")
    measured = [
        score_cell(zero, "exact"),
        score_cell(zero),
        score_cell(tuned),
        value_cell(trained, digits=0),
        words.duration(group.mean("tune_seconds")),
        words.duration(group.mean("inference_seconds")),
        _two(efficiency(zero.f1, trained)),
    ]
    return row([title, *printed, *measured])


def _as_printed(model: HulburdModel) -> str:
    return f"printed {EFFICIENCY[model.name]:.2f}" if model.name in EFFICIENCY else ""


def _two(value: float | None) -> str:
    return words.UNKNOWN if value is None else f"{value:.2f}".replace("-", "−")


def _table(rows: list[dict[str, Any]]) -> dict[str, Any]:
    published, measured = "published", "measured"
    titles = ("trained", "training", "inference", "efficiency")
    return table(
        "His eight models. Published F1 is official, at threshold 0; measured F1 also at the threshold tuned on "
        "held-out train. Efficiency is (F1 − 50) / log10(trained), at threshold 0.",
        [
            column("model", "text"),
            *(column(title, group=published) for title in ("EM", "F1", *titles)),
            *(column(title, group=measured) for title in ("EM", "F1", "F1 tuned", *titles)),
        ],
        rows,
    )


def _told(study: Study, found: dict[str, Group]) -> list[str]:
    """Which model learned nothing, which is the most efficient, and what adapters cost at inference."""
    said = []
    least = study.silence + _LEARNED
    if idle := [name for name, group in found.items() if group.scores("tuned").f1 < least]:
        said.append(
            f"No better at the tuned threshold than saying no answer to everything ({study.silence:.1f}): "
            f"{', '.join(idle)}."
        )
    scored = {
        name: value
        for name, group in found.items()
        if (value := efficiency(group.scores("zero").f1, group.mean("trainable"))) is not None
    }
    if len(scored) > 1:
        theirs = {m.name: efficiency(m.f1, m.trainable) or 0.0 for m in HULBURD}
        said.append(
            f"Most efficient by his measure: here {max(scored, key=lambda n: scored[n])}, "
            f"in his table {max(theirs, key=lambda n: theirs[n])}."
        )
    times = {name: value for name, group in found.items() if (value := group.mean("inference_seconds"))}
    if "L12" in times:
        slower = [
            f"{name} {words.signed(100 * (times[name] / times['L12'] - 1), digits=0)} %"
            for name in ("L0-A64", "L0-A768")
            if name in times
        ]
        if slower:
            said.append(f"Inference against the encoder without adapters: {', '.join(slower)}.")
    return said


def _figure(found: dict[str, Group]) -> list[dict[str, Any]]:
    points = [
        {"x": model.trainable, "y": model.f1, "label": model.name, "kind": "published"} for model in HULBURD
    ]
    for model in HULBURD:
        group = found.get(model.name)
        trained = group.mean("trainable") if group else None
        if group and trained:
            y = group.scores("zero").f1
            points.append({"x": trained, "y": y, "label": model.name, "kind": "snapshot"})
    return [
        scatter(
            "F1 against trained parameters",
            "Published and measured, threshold 0.",
            axis("trained parameters", log=True),
            axis("F1 on dev", unit="%"),
            points,
        )
    ]
