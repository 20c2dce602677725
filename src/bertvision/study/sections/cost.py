"""Cost beside quality: F1 against device time of every system, the cheapest way to full quality, and other costs."""

from typing import Any

from bertvision.report import words
from bertvision.study.blocks import (
    axis,
    column,
    difference_cell,
    row,
    scatter,
    score_cell,
    section,
    table,
    text,
    value_cell,
)
from bertvision.study.picks import (
    WITHIN,
    Cheapest,
    best_full,
    cheapest,
    family,
    has_seeds_of,
    is_full,
    name,
    priced,
    seed_list,
    within_reach,
)
from bertvision.study.sections.cost_points import AT, FAR, kind_of, other_costs, points_of
from bertvision.study.view import At, Group, Study

__all__ = ["cost"]

_WHERE: dict[At, str] = {"tuned": "At the threshold tuned on held-out train", "zero": "At threshold 0"}


def cost(study: Study) -> dict[str, Any] | None:
    """None where no system has seconds."""
    known = priced(study)
    if not known:
        return None
    blocks = [_figure(study, known, "tuned"), *_answer(study)]
    blocks += [_ways(study, known), _figure(study, known, "zero"), *other_costs(study)]
    return section(
        "cost",
        "F1 against GPU-seconds",
        "Every way to a system, by the device time it takes from the raw encoder: the tuning of its snapshot up to the "
        "point where it was taken, and for a head its pass over the frozen encoder and its own steps. Scoring and "
        "files are not counted, nor is the search for settings.",
        blocks,
    )


def way(group: Group) -> str:
    """How a system is made, in words that several share."""
    about, own = group.about, family(group)
    if about.kind == "ensemble":
        return "ensemble"
    rate = "constant rate" if own == "constant" else "decayed rate" if own.startswith("decayed-") else own
    if about.kind != "snapshot":
        head = "control head" if about.kind == "control" else "head"
        part = ", part of the data" if about.data_fraction < 1 else ""
        return f"{head} on the raw encoder{part}" if own == "untuned" else f"{head}, {rate}{part}"
    if is_full(group):
        return f"full fine-tuning, {rate}"
    if own.startswith("cut-"):
        return (
            "top layers with a cross-layer head" if own.endswith("+head") else "top layers on stored states"
        )
    for start, words_ in (
        ("houlsby-", "Houlsby adapters"),
        ("lora-", "LoRA"),
        ("hulburd-", "Hulburd's variants"),
    ):
        if own.startswith(start):
            return words_
    return "context-aware CNN" if own.startswith("cacnn-") else own


def _figure(study: Study, known: list[tuple[Group, float]], at: At) -> dict[str, Any]:
    cost_of = {group.key: cost for group, cost in known}
    points = points_of(study, at, lambda group: cost_of.get(group.key))
    best = best_full(study, at)
    marks = []
    if best is not None:
        bar = best.scores(at).f1 - WITHIN
        marks = [{"y": bar, "label": f"best full fine-tuning − {WITHIN:g}"}]
        for point in points:
            if point["name"] == best.key:
                point["label"] = best.key
    hidden = len(known) - len(points)
    caption = (
        f"Each point is a system ({AT[at]}, mean over its seeds); the line joins those none beats in both. "
    )
    if hidden:
        caption += f"{hidden} systems more than {FAR:g} F1 below the best are not shown. "
    return scatter(
        f"F1 against GPU-seconds, {AT[at]}",
        caption.strip(),
        axis("GPU-seconds from the raw encoder", log=True, unit="s"),
        axis("F1 on dev", unit="%"),
        points,
        front=True,
        lines_at=marks,
    )


def _answer(study: Study) -> list[dict[str, Any]]:
    """The finding in words, at both thresholds that claims use."""
    said = [
        f"{where}: {_told(found)}"
        for at, where in _WHERE.items()
        if (found := cheapest(study, at)) is not None
    ]
    if not said:
        return []
    said.append(
        f"The bar is the best full fine-tuning at the same threshold, taken on dev, minus {WITHIN:g} F1. The cheapest "
        "system that reaches it is found on dev as well, among all that were run with the same seeds: of many systems "
        "with fewer seeds some come near by luck. The interval of its difference says how far that can be trusted."
    )
    return [text(*said)]


def _told(found: Cheapest) -> str:
    if found.group is found.best:
        took = words.duration(found.best_seconds)
        return (
            f"nothing cheaper that has its seeds comes within {WITHIN:g} F1 of {name(found.best)} ({took})."
        )
    difference = found.versus.f1
    return (
        f"{name(found.group)} takes {words.duration(found.seconds)}, {100 * found.share:.0f} % of the "
        f"{words.duration(found.best_seconds)} of {name(found.best)}, and differs from it by "
        f"{words.change(difference.difference)} F1 ({words.interval(difference.low, difference.high)})."
    )


def _ways(study: Study, known: list[tuple[Group, float]]) -> dict[str, Any]:
    """Of every way its cheapest system within reach of the best, or else its best one."""
    best = best_full(study)
    total = next((cost for group, cost in known if best is not None and group is best), None)
    by_way: dict[str, list[tuple[Group, float]]] = {}
    for group, cost in known:
        by_way.setdefault(way(group), []).append((group, cost))
    rows = []
    for label, entries in by_way.items():
        within = [
            entry for entry in entries if best and best.common(entry[0]) and within_reach(entry[0], best)
        ]
        sure = [entry for entry in within if best and has_seeds_of(entry[0], best)]
        near = sure or within
        group, cost = near[0] if near else max(entries, key=lambda e: e[0].scores("tuned").f1)
        reach = "yes" if sure else f"with {seed_list(best.common(group))} alone" if best and within else "no"
        cells = [
            label,
            group.key,
            value_cell(len(group.seeds), digits=0),
            words.duration(cost),
            f"{100 * cost / total:.0f} %" if total else words.UNKNOWN,
            score_cell(group.scores("tuned")),
            score_cell(group.scores("zero")),
            difference_cell(study.versus(group, best, "tuned").f1 if best and group is not best else None),
            {"text": reach, "tone": "gain" if sure else "muted"},
        ]
        rows.append((not sure, cost, row(cells, strong=group is best, kind=kind_of(group))))
    rows.sort(key=lambda entry: entry[:2])
    return table(
        f"The cheapest system of every way that comes within {WITHIN:g} F1 of the best full fine-tuning (threshold "
        "tuned on held-out train), by the difference over the seeds both have, first of those with all its seeds; of "
        "ways that do not, their best system.",
        [
            column("way", "text"),
            column("system", "text"),
            column("seeds"),
            column("GPU time"),
            column("of the best"),
            column("F1 tuned"),
            column("F1 at 0"),
            column("to the best, tuned"),
            column("within reach", "text"),
        ],
        [entry[2] for entry in rows],
    )
