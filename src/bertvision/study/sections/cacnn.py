"""The context-aware CNN: with and without a context vector, two filter configurations, 0 to 12 layers unfrozen."""

import re
from typing import Any

from bertvision.report import words
from bertvision.study.blocks import (
    axis,
    column,
    lines,
    row,
    score_cell,
    section,
    series,
    table,
    text,
    value_cell,
)
from bertvision.study.picks import chosen, family
from bertvision.study.view import Group, Study

__all__ = ["cacnn"]

_FAMILY = re.compile(r"cacnn-(simple|ctx)-(.+)-(\d+)")
_VARIANTS = {"simple": "without context vector", "ctx": "with context vector"}


def cacnn(study: Study) -> dict[str, Any] | None:
    """None where none was run."""
    found: dict[tuple[str, str, int], Group] = {}
    for group in study.groups.values():
        match = _FAMILY.fullmatch(family(group))
        if match and group.about.kind == "snapshot" and not group.about.variant:
            found[match[1], match[2], int(match[3])] = group
    if not found:
        return None
    found = dict(sorted(found.items()))
    part = sorted({group.about.data_fraction for group in found.values()})
    blocks = [_table(found), *_figure(found)]
    blocks.append(
        text(
            f"Trained on {' and '.join(f'{100 * share:g} %' for share in part)} of the data.",
            *_told(study, found),
        )
    )
    return section(
        "cacnn",
        "Context-aware CNN",
        "Hulburd's output network draws the filters of a convolution from the paragraph itself, and trains together "
        "with the top layers of the encoder. His table of results exists as an image only, so that no published number "
        "can stand beside these; his text says that the variant with a context vector costs far more, and that the "
        "best of them stays below adapters of the same size.",
        blocks,
    )


def _table(found: dict[tuple[str, str, int], Group]) -> dict[str, Any]:
    rows = []
    for (variant, filters, layers), group in found.items():
        zero = group.scores("zero")
        rows.append(
            row(
                [
                    _VARIANTS[variant],
                    filters,
                    value_cell(layers, digits=0),
                    value_cell(len(group.seeds), digits=0),
                    value_cell(group.mean("parameters"), digits=0),
                    value_cell(group.mean("trainable"), digits=0),
                    score_cell(zero, "exact"),
                    score_cell(zero),
                    score_cell(group.scores("tuned")),
                    words.duration(group.mean("tune_seconds")),
                    words.duration(group.mean("inference_seconds")),
                ]
            )
        )
    return table(
        "EM and F1 at threshold 0, F1 also at the threshold tuned on held-out train.",
        [
            column("variant", "text"),
            column("filters", "text"),
            column("layers unfrozen"),
            column("seeds"),
            column("parameters"),
            column("trained in all"),
            column("EM"),
            column("F1"),
            column("F1 tuned"),
            column("training"),
            column("inference"),
        ],
        rows,
    )


def _figure(found: dict[tuple[str, str, int], Group]) -> list[dict[str, Any]]:
    drawn: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for (variant, filters, layers), group in found.items():
        drawn.setdefault((variant, filters), []).append((layers, group.scores("tuned").f1))
    if all(len(points) < 2 for points in drawn.values()):
        return []
    return [
        lines(
            "F1 by unfrozen layers",
            "Threshold tuned on held-out train.",
            axis("layers trained together with it"),
            axis("F1 on dev", unit="%"),
            [
                series(f"{variant} {filters}", "head", sorted(points), dashed=variant == "ctx")
                for (variant, filters), points in drawn.items()
            ],
        )
    ]


def _told(study: Study, found: dict[tuple[str, str, int], Group]) -> list[str]:
    """The two variants side by side, where both were run with the same layers."""
    said = []
    best = {variant: chosen(g for key, g in found.items() if key[0] == variant) for variant in _VARIANTS}
    simple, ctx = best["simple"], best["ctx"]
    if simple and ctx:
        gap = study.versus(ctx, simple, "tuned").f1
        said.append(
            f"Best of each on the held-out part, F1 at the tuned threshold: {ctx.key} minus {simple.key} is "
            f"{words.change(gap.difference)} ({words.interval(gap.low, gap.high)})."
        )
        slow = (ctx.mean("tune_seconds"), simple.mean("tune_seconds"))
        if slow[0] and slow[1]:
            said.append(f"Its training takes {slow[0] / slow[1]:.2f} times as long.")
    return said
