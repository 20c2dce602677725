"""What the report of a label or score task shows, worked out from the results and free of markup."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bertvision.report import text_words, words
from bertvision.report.rows import KIND_NAMES, Cell, Overview, Row, System
from bertvision.report.schema import KINDS
from bertvision.report.text_schema import metrics_of

__all__ = ["Disagreement", "columns", "data_rows", "examples", "mean", "overview", "seed_rows", "table"]


def mean(system: System, split: str, metric: str) -> float | None:
    """A system's metric, averaged over its seeds; None where it is not known."""
    return words.finite((system["scores"].get(split, {}).get("mean") or {}).get(metric))


def overview(results: Mapping[str, Any]) -> Overview:
    """Who is compared with whom, and on what; the head is the one chosen on dev, never on test."""
    systems, metric = results["systems"], results["task"]["metric"]
    split = "test" if any("test" in system["scores"] for system in systems) else "dev"

    def place(system: System) -> tuple[int, float]:
        known = mean(system, split, metric)
        return KINDS.index(system["kind"]), -known if known is not None else float("inf")

    ordered = sorted(systems, key=place)
    heads = [system for system in ordered if system["kind"] in ("head", "control")]
    marked = [system for system in heads if system["best"]]
    fitted = marked or [system for system in heads if system["kind"] == "head"]
    head = max(fitted, key=lambda s: mean(s, "dev", metric) or -1.0, default=None)
    return Overview(split, ordered, head, _snapshot_of(head, ordered))


def _snapshot_of(head: System | None, systems: list[System]) -> System | None:
    snapshots = [system for system in systems if system["kind"] == "snapshot"]
    if head is not None:
        named = (head["versus"] or {}).get("baseline")
        own = [s for s in snapshots if s["name"] == named]
        snapshots = own or [s for s in snapshots if s["snapshot"] == head["snapshot"]]
    return snapshots[0] if snapshots else None


def _row(system: System, view: Overview, cells: Iterable[Cell], *, more: str = "") -> Row:
    best = system is view.head
    more = "chosen on dev" if best else "best of its snapshot on dev" if system["best"] else more
    under = KIND_NAMES[system["kind"]] + (f", {more}" if more else "")
    return Row(system["name"], system["kind"], view.title(system), under, best, tuple(cells))


def columns(results: Mapping[str, Any]) -> list[str]:
    """Titles of the metrics' columns."""
    return [text_words.TITLES[name] for name in metrics_of(results)]


def table(results: Mapping[str, Any], view: Overview) -> list[Row]:
    """One row a system: metrics with their spread over seeds, difference to the snapshot, p, cost."""
    names, labels = metrics_of(results), results["task"]["kind"] == "label"
    tell = results["finetune"] or {}
    rows = []
    for system in view.systems:
        said = []
        if system["kind"] == "snapshot":
            said += [f"lr {words.plain(tell['lr'])}"] if tell.get("lr") is not None else []
            said += [str(tell["schedule"])] if tell.get("schedule") else []
        elif len(system["seeds"] or []) > 1:
            said.append(f"{len(system['seeds'])} seeds")
        cells = [_metric(system, view.split, name) for name in names]
        cells.append(_difference(system, view.split))
        if labels:
            p = words.finite((system["versus"] or {}).get("mcnemar_p"))
            cells.append(Cell("" if system["versus"] is None else words.p_value(p), p))
        rows.append(_row(system, view, [*cells, *_cost(system)], more=" ".join(said)))
    return rows


def _metric(system: System, split: str, name: str) -> Cell:
    value = mean(system, split, name)
    spread = words.finite((system["scores"].get(split, {}).get("spread") or {}).get(name))
    return Cell(text_words.number(value), value, "" if spread is None else f"± {text_words.number(spread)}")


def _difference(system: System, split: str) -> Cell:
    found = text_words.paired(system["versus"], split)
    if found is None:
        return Cell("" if system["versus"] is None else words.UNKNOWN)
    size = found["difference"]
    ends = text_words.interval(found["low"], found["high"])
    return Cell(text_words.change(size), size, ends, words.verdict(found))


def _cost(system: System) -> list[Cell]:
    own, total = words.finite(system["parameters"]), words.finite(system["total"])
    more = f"{words.count(total)} in all" if own is not None and total is not None and total > own else ""
    return [
        Cell(words.count(own), own, more),
        Cell(words.percent(system["percent"]), words.finite(system["percent"])),
        Cell(words.compact(system["flops_per_token"]), words.finite(system["flops_per_token"])),
        Cell(words.duration(system["seconds"]), words.finite(system["seconds"])),
    ]


def seed_rows(results: Mapping[str, Any], view: Overview) -> tuple[list[str], list[Row]]:
    """The seeds, and the task's metric by seed of every system that has several."""
    metric = results["task"]["metric"]
    seeds: list[Any] = []
    found = []
    for system in view.systems:
        entries = system["scores"].get(view.split, {}).get("per_seed") or []
        if len(entries) > 1:
            by_seed = {entry.get("seed"): entry.get(metric) for entry in entries}
            seeds += [seed for seed in by_seed if seed not in seeds]
            found.append((system, by_seed))
    rows = [
        _row(
            system,
            view,
            [Cell(text_words.number(own.get(seed)), words.finite(own.get(seed))) for seed in seeds],
        )
        for system, own in found
    ]
    return [str(seed) for seed in seeds], rows


_MOST_CLASSES = 8


def data_rows(results: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Part, name, examples, windows, tokens, tokens a window, and what the labels are."""
    rows = []
    for part, facts in results["data"].items():
        windows, tokens = words.finite(facts.get("windows")), words.finite(facts.get("tokens"))
        length = f"{tokens / windows:.0f}" if tokens is not None and windows else words.UNKNOWN
        numbers = [words.count(facts.get(key)) for key in ("examples", "windows", "tokens")]
        rows.append((part, str(facts.get("name", "")), *numbers, length, _labels(facts)))
    return rows


def _labels(facts: Mapping[str, Any]) -> str:
    counts, scores = facts.get("classes"), facts.get("scores")
    if isinstance(counts, Mapping) and counts:
        total = sum(counts.values()) or 1
        said = [f"{name} {100 * count / total:.0f} %" for name, count in list(counts.items())[:_MOST_CLASSES]]
        more = len(counts) - _MOST_CLASSES
        return ", ".join(said) + (f" and {more} more classes" if more > 0 else "")
    if isinstance(scores, Mapping):
        low, high, middle = (text_words.number(scores.get(key)) for key in ("low", "high", "mean"))
        return f"{low} to {high}, mean {middle} ± {text_words.number(scores.get('spread'))}"
    return words.UNKNOWN


# -------------------------------------------------------------------------------------------- examples


@dataclass(frozen=True)
class Disagreement:
    """An example on which head and snapshot differ; for scores the nearer one counts as right."""

    texts: list[str]
    truth: str
    head: str
    snapshot: str
    head_right: bool
    snapshot_right: bool


def examples(results: Mapping[str, Any]) -> list[Disagreement]:
    return [_shown(raw, scores=results["task"]["kind"] == "score") for raw in results["examples"]]


def _shown(raw: Mapping[str, Any], *, scores: bool) -> Disagreement:
    texts = [str(text) for text in (raw.get("first"), raw.get("second")) if text is not None]
    said = [raw.get(key) for key in ("truth", "head", "snapshot")]
    if not scores:
        right, head, snapshot = (str(value) for value in said)
        return Disagreement(texts, right, head, snapshot, head == right, snapshot == right)
    right, head, snapshot = (words.finite(value) or 0.0 for value in said)
    near = abs(head - right), abs(snapshot - right)
    told = [text_words.number(value) for value in (right, head, snapshot)]
    return Disagreement(texts, told[0], told[1], told[2], near[0] < near[1], near[1] < near[0])
