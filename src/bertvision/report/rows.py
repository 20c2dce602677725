"""What the report shows, worked out from the results and free of markup.

`overview` decides which part of the data the claims are about, which head was chosen and which snapshot it
is compared with; the rest turns systems, data and examples into rows of text with numbers to sort by.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from bertvision.report import words
from bertvision.report.schema import KINDS
from bertvision.tasks.squad import normalise

__all__ = [
    "Cell",
    "Overview",
    "Row",
    "Shown",
    "best_on_dev",
    "data_rows",
    "examples",
    "marked",
    "overview",
    "seed_rows",
    "table",
]

System = Mapping[str, Any]

KIND_NAMES = {
    "snapshot": "snapshot",
    "control": "control",
    "head": "head",
    "ensemble": "ensemble",
    "baseline": "trivial baseline",
}
_EXAMPLES_EACH = 6
_CONTEXT_CHARS = 640
_CONTEXT_MARGIN = 160


@dataclass(frozen=True)
class Cell:
    text: str
    value: float | None = None
    """What the column sorts by; None sorts last."""
    note: str = ""
    """A second, smaller line."""
    tone: str = ""
    """ "gain", "loss", "level" or nothing."""


@dataclass(frozen=True)
class Row:
    name: str
    kind: str
    label: str
    under: str
    """What kind of system it is, in words under its name."""
    best: bool
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Overview:
    """Who is compared with whom, and on what."""

    split: str
    """The part of the data the claims are about: test where there is one, else dev."""
    systems: list[System]
    """In the order of the tables: by kind, and inside a kind best first."""
    head: System | None
    """The head chosen on dev."""
    snapshot: System | None
    """The snapshot that head was fitted on."""

    def title(self, system: System) -> str:
        """The label, with the snapshot it stands on where the run has several."""
        if (
            system["kind"] in ("snapshot", "baseline")
            or len({s["snapshot"] for s in self.systems} - {None}) < 2
        ):
            return system["label"]
        return f"{system['label']} @ {system['snapshot']}"

    def of_kind(self, kind: str) -> list[System]:
        return [system for system in self.systems if system["kind"] == kind]


def f1(system: System, split: str, threshold: str = "tuned") -> float | None:
    """The F1 of a system, or None where it is not known."""
    return words.finite(system["scores"].get(split, {}).get(threshold, {}).get("f1"))


def best_on_dev(
    systems: list[System], split: str, score: Callable[[System, str], float | None]
) -> System | None:
    """Of the systems with a score on `split` the one that is best on dev: the best on test would flatter it."""
    known = [system for system in systems if score(system, split) is not None]
    if len(known) > 1:
        known = [system for system in known if score(system, "dev") is not None]
    return max(known, key=lambda system: score(system, "dev") or 0.0, default=None)


def overview(results: Mapping[str, Any]) -> Overview:
    systems = results["systems"]
    split = "test" if any("test" in system["scores"] for system in systems) else "dev"

    def place(system: System) -> tuple[int, float]:
        known = f1(system, split)
        return KINDS.index(system["kind"]), -known if known is not None else float("inf")

    ordered = sorted(systems, key=place)
    head = _chosen(ordered)
    return Overview(split, ordered, head, _snapshot_of(head, ordered))


def _chosen(systems: list[System]) -> System | None:
    heads = [system for system in systems if system["kind"] == "head"]
    marked = [system for system in heads if system["best"]]
    # Without a mark the choice is made here as the run would make it: on dev, never on test.
    return max(marked or heads, key=lambda system: f1(system, "dev") or -1.0, default=None)


def _snapshot_of(head: System | None, systems: list[System]) -> System | None:
    snapshots = [system for system in systems if system["kind"] == "snapshot"]
    if head is None:
        return snapshots[0] if snapshots else None
    named = (head["versus"] or {}).get("baseline")
    for system in systems:
        if system["name"] == named:
            return system
    same = [system for system in snapshots if system["snapshot"] == head["snapshot"]]
    return (same or snapshots or [None])[0]


# ---------------------------------------------------------------------------------------------- tables


def _row(system: System, view: Overview, cells: Iterable[Cell], *, more: str = "") -> Row:
    best = system is view.head
    # A run with several snapshots chooses a head on each; only the best of them is the chosen one here.
    more = "chosen on dev" if best else "best of its snapshot on dev" if system["best"] else more
    under = KIND_NAMES[system["kind"]] + (f", {more}" if more else "")
    return Row(system["name"], system["kind"], view.title(system), under, best, tuple(cells))


def table(view: Overview, finetune: Mapping[str, Any] | None = None) -> list[Row]:
    """The headline table: one row a system, cells in the order of the columns of the template.

    A snapshot's row tells its learning rate and schedule, because they decide how much a head can gain.
    """
    found = []
    for system in view.systems:
        tell = finetune if system["kind"] == "snapshot" else None
        said = [f"lr {words.plain(tell['lr'])}"] if tell and tell.get("lr") is not None else []
        said += [str(tell["schedule"])] if tell and tell.get("schedule") else []
        found.append(_row(system, view, _cells(system, view.split), more=" ".join(said)))
    return found


def _cells(system: System, split: str) -> list[Cell]:
    parts = system["scores"].get(split, {})
    zero, tuned = parts.get("zero", {}), parts.get("tuned", {})
    versus = system["versus"] if (system["versus"] or {}).get("split", split) == split else None

    def scored(part: Mapping[str, Any], key: str) -> Cell:
        return Cell(words.score(part.get(key)), words.finite(part.get(key)))

    return [
        scored(zero, "exact"),
        scored(zero, "f1"),
        scored(tuned, "exact"),
        scored(tuned, "f1"),
        scored(tuned, "HasAns_f1"),
        scored(tuned, "NoAns_exact"),
        paired(versus, "zero"),
        paired(versus, "tuned"),
        _size(system),
        Cell(words.percent(system["percent"]), words.finite(system["percent"])),
        Cell(words.compact(system["flops_per_token"]), words.finite(system["flops_per_token"])),
        Cell(words.duration(system["seconds"]), words.finite(system["seconds"])),
    ]


def _size(system: System) -> Cell:
    """Trained parameters; below them all numbers a head keeps, where batch norms add running statistics."""
    own, total = words.finite(system["parameters"]), words.finite(system["total"])
    note = f"{words.count(total)} in all" if own is not None and total is not None and total > own else ""
    return Cell(words.count(own), own, note)


def paired(versus: Any, threshold: str, metric: str = "f1") -> Cell:
    """A difference to the snapshot with its interval underneath."""
    found = words.difference(versus, threshold, metric)
    if found is None:
        return Cell("" if versus is None else words.UNKNOWN)
    size = found["difference"]
    return Cell(words.change(size), size, words.interval(found["low"], found["high"]), words.verdict(found))


def difference_rows(view: Overview) -> list[Row]:
    """Exact match less the snapshot's at both thresholds, each with McNemar's p (F1 is in the main table)."""
    rows = []
    for system in view.systems:
        versus = system["versus"]
        if not versus or versus.get("split", view.split) != view.split:
            continue
        cells = []
        for threshold in ("zero", "tuned"):
            p = (versus.get(threshold) or {}).get("mcnemar_p")
            cells += [paired(versus, threshold, "exact"), Cell(words.p_value(p), words.finite(p))]
        rows.append(_row(system, view, cells))
    return rows


def seed_rows(view: Overview) -> tuple[list[str], list[Row]]:
    """The seeds, and F1 by seed at threshold 0 and at the tuned one."""
    seeds: list[Any] = []
    rows = []
    for system in view.systems:
        entries = system["scores"].get(view.split, {}).get("per_seed") or []
        if len(entries) < 2:
            continue
        seeds += [entry.get("seed") for entry in entries if entry.get("seed") not in seeds]
        rows.append((system, {entry.get("seed"): entry for entry in entries}))
    found = []
    for system, by_seed in rows:
        cells = []
        for seed in seeds:
            entry = by_seed.get(seed, {})
            zero, tuned = entry.get("f1"), entry.get("tuned_f1")
            text = f"{words.score(zero)} / {words.score(tuned)}" if entry else words.UNKNOWN
            cells.append(Cell(text, words.finite(tuned)))
        found.append(_row(system, view, cells))
    return [str(seed) for seed in seeds], found


def data_rows(results: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Part, name, examples, unanswerable, windows, tokens, tokens a window."""
    rows = []
    for part, facts in results["data"].items():
        examples, without = words.finite(facts.get("examples")), words.finite(facts.get("unanswerable"))
        windows, tokens = words.finite(facts.get("windows")), words.finite(facts.get("tokens"))
        share = f" ({100 * without / examples:.0f} %)" if examples and without is not None else ""
        length = f"{tokens / windows:.0f}" if tokens is not None and windows else words.UNKNOWN
        numbers = (
            words.count(examples),
            words.count(without) + share,
            words.count(windows),
            words.count(tokens),
        )
        rows.append((part, str(facts.get("name", "")), *numbers, length))
    return rows


# -------------------------------------------------------------------------------------------- examples


@dataclass(frozen=True)
class Shown:
    """An example on which head and snapshot disagree."""

    id: str
    question: str
    pieces: list[tuple[str, str]]
    """The context in order: text and the classes it wears ("gold", "head", "snapshot", several or none)."""
    gold: list[str]
    snapshot: str
    head: str
    snapshot_right: bool
    head_right: bool


@dataclass(frozen=True)
class Disagreements:
    total: int
    head_right: int
    snapshot_right: int
    level: int
    """Both right, or both wrong."""
    shown: list[Shown] = field(default_factory=list)


def examples(results: Mapping[str, Any]) -> Disagreements:
    """The recorded disagreements counted, and a few of each outcome: wins alone would flatter the head."""
    wins, losses, others = [], [], []
    for raw in results["examples"]:
        shown = _shown(raw)
        right = shown.head_right, shown.snapshot_right
        (wins if right == (True, False) else losses if right == (False, True) else others).append(shown)
    few = [*wins[:_EXAMPLES_EACH], *losses[:_EXAMPLES_EACH], *others[: _EXAMPLES_EACH // 2]]
    return Disagreements(len(wins) + len(losses) + len(others), len(wins), len(losses), len(others), few)


def _shown(raw: Mapping[str, Any]) -> Shown:
    gold = [str(text) for text in raw.get("gold") or []]
    snapshot, head = str(raw.get("snapshot") or ""), str(raw.get("head") or "")
    context = str(raw.get("context") or "")
    marks = [(text, "gold") for text in gold] + [(snapshot, "snapshot"), (head, "head")]
    return Shown(
        id=str(raw.get("id", "")),
        question=str(raw.get("question") or ""),
        pieces=marked(context, marks),
        gold=list(dict.fromkeys(gold)),
        snapshot=snapshot,
        head=head,
        snapshot_right=_matches(snapshot, gold),
        head_right=_matches(head, gold),
    )


def marked(context: str, marks: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """A context in pieces, each with the names (gold, head, snapshot) of the texts it is part of; cut where long."""
    return _trim(_pieces(context, marks))


def _matches(answer: str, gold: list[str]) -> bool:
    """Exact match as SQuAD counts it: case, punctuation and articles aside."""
    return normalise(answer) in {normalise(text) for text in gold or [""]}


def _pieces(context: str, marks: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Cut the context where a marked text begins or ends; texts may overlap."""
    spans = []
    for text, name in marks:
        found = re.search(rf"(?<!\w){re.escape(text)}(?!\w)", context) if text else None
        if found:
            spans.append((found.start(), found.end(), name))
    cuts = sorted({0, len(context), *(cut for start, end, _ in spans for cut in (start, end))})
    pieces = []
    for start, end in pairwise(cuts):
        worn = {name for a, b, name in spans if a <= start and end <= b}
        pieces.append(
            (context[start:end], " ".join(name for name in ("gold", "head", "snapshot") if name in worn))
        )
    return pieces


def _trim(pieces: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Shorten the unmarked stretches of a long context; marked text always stays."""
    if sum(len(text) for text, _ in pieces) <= _CONTEXT_CHARS:
        return pieces
    trimmed = []
    for i, (text, worn) in enumerate(pieces):
        first, last = i == 0, i == len(pieces) - 1
        room = _CONTEXT_CHARS if first and last else _CONTEXT_MARGIN
        if worn or len(text) <= room + 40 or (not first and not last and len(text) <= 2 * room):
            trimmed.append((text, worn))
        elif first and last:
            trimmed.append((text[:room] + " …", worn))
        elif first:
            trimmed.append(("… " + text[-room:], worn))
        elif last:
            trimmed.append((text[:room] + " …", worn))
        else:
            trimmed.append((f"{text[:room]} … {text[-room:]}", worn))
    return trimmed
