"""Collect what a run measured into results.json, the one source of every figure and table of the report."""

import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bertvision.artifacts import read_json, write_json
from bertvision.config import to_mapping
from bertvision.data.examples import SpanData
from bertvision.report.entry import SystemEntry, mark_best, snapshot_of
from bertvision.report.run_facts import baseline_row, curves, fit_facts, how_made, layer_weights, system_row
from bertvision.tasks.span.calibration import no_answer_of
from bertvision.tasks.span.decode import DecodeConfig
from bertvision.tasks.span.files import write_answers
from bertvision.tasks.span.score import score
from bertvision.train.run_folder import RunFolder
from bertvision.train.scoring import SystemScores, compare
from bertvision.train.splits import Split

__all__ = [
    "Entry",
    "card_inputs",
    "collect",
    "write_head_results",
]

_EXAMPLES = 12


class Entry(SystemEntry[SystemScores]):
    """A system of the report, with what it scored."""

    @property
    def dev_score(self) -> float:
        """F1 on dev at the threshold tuned there."""
        return float(self.scores["dev"].tuned[1].mean())

    @property
    def shipped(self) -> int:
        return int(np.argmax([member["tuned_f1"] for member in self.scores["dev"].members]))


def write_head_results(
    folder: Path, scores: dict[str, tuple[SystemScores, int]], *, dev: str, decode: DecodeConfig
) -> None:
    """metrics.json of one head and its predictions on each split, at the tuned threshold.

    The probability of no answer is calibrated on the split that the threshold is tuned on, where that holds questions
    with and without an answer.
    """
    tuned, member = scores["dev"]
    metrics: dict[str, Any] = {"threshold": {"value": tuned.thresholds[member], "tuned_on": dev}}
    calibration = no_answer_of(tuned.answers[member])
    if calibration is not None:
        metrics["no_answer"] = asdict(calibration) | {"tuned_on": dev}
    metrics["decode"] = to_mapping(decode)
    for split, (system, i) in scores.items():
        metrics[split] = system.members[i]
        write_answers(folder / split, system.answers[i], threshold=system.thresholds[i])
    write_json(folder / "metrics.json", metrics)


def card_inputs(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a head's card is made of: its config, and its metrics where it was scored."""
    metrics = folder / "metrics.json"
    return read_json(folder / "config.json"), read_json(metrics) if metrics.exists() else {}


def collect(
    entries: list[Entry],
    *,
    command: str,
    settings: dict[str, Any],
    encoder: dict[str, Any],
    splits: dict[str, Split],
    finetune: RunFolder | None,
    fits: list[RunFolder],
    out: Path,
    device: str,
    precision: str,
) -> dict[str, Any]:
    """The dict that results.json holds."""
    final = "test" if "test" in splits else "dev"
    mark_best(entries)
    made = how_made(command=command, settings=settings, encoder=encoder, device=device, precision=precision)
    return (
        made
        | fit_facts(settings, finetune, fits)
        | {
            "data": {name: split.describe() for name, split in splits.items()},
            "systems": [
                system_row(e, encoder, splits["dev"], out, versus=_versus(e, entries, final)) for e in entries
            ]
            + _baselines(splits, settings),
            "curves": curves(entries, finetune, "dev_f1"),
            "layer_weights": {e.name: w for e in entries if e.head and (w := layer_weights(e.head))},
            "examples": _disagreements(entries, splits[final], final),
        }
    )


def _versus(entry: Entry, entries: list[Entry], final: str) -> dict[str, Any] | None:
    """The system against the snapshot it reads."""
    own = snapshot_of(entry, entries)
    if own is None or own is entry:
        return None
    return {"baseline": own.name, "split": final, **compare(entry.scores[final], own.scores[final])}


def _baselines(splits: dict[str, Split], settings: dict[str, Any]) -> list[dict[str, Any]]:
    """What can be had without learning: always no answer, and on the demo set the best-overlapping sentence."""
    shown = {name: splits[name].spans for name in ("dev", "test") if name in splits}
    nothing = {name: [""] * len(data) for name, data in shown.items()}
    rows = [_baseline("always no answer", shown, nothing, nothing)]
    if settings["dev"].startswith("demo:"):
        from bertvision.data.demo.baselines import abstain, overlap_answers

        found = {name: overlap_answers(data) for name, data in shown.items()}
        # Its threshold is tuned on dev like everybody else's.
        cuts = sorted({overlap for _, overlap in found["dev"]})
        best = max(cuts, key=lambda cut: _score_texts(shown["dev"], abstain(found["dev"], cut))["f1"])
        given = {name: [text for text, _ in answers] for name, answers in found.items()}
        kept = {name: abstain(answers, best) for name, answers in found.items()}
        rows.append(_baseline("best-overlapping sentence", shown, given, kept))
    return rows


def _score_texts(data: SpanData, texts: list[str]) -> dict[str, float]:
    return dict(score(data, {e.id: text for e, text in zip(data.examples, texts, strict=True)}))


def _baseline(
    label: str, shown: dict[str, SpanData], given: dict[str, list[str]], kept: dict[str, list[str]]
) -> dict[str, Any]:
    """A row without parameters: all its answers, and those it keeps at its tuned threshold."""
    scores = {
        name: {
            "zero": _score_texts(data, given[name]),
            "tuned": _score_texts(data, kept[name]) | {"threshold": 0.0},
            "per_seed": None,
        }
        for name, data in shown.items()
    }
    return baseline_row(label, scores)


def _disagreements(entries: list[Entry], split: Split, name: str) -> list[dict[str, Any]]:
    """A fair draw of questions on which the best head and its snapshot give different answers."""
    best = max((e for e in entries if e.best), key=lambda e: e.dev_score, default=None)
    own = snapshot_of(best, entries) if best else None
    if own is None or best is None:
        return []
    ours = best.scores[name].answers[0].predictions(best.scores[name].thresholds[0])
    theirs = own.scores[name].answers[0].predictions(own.scores[name].thresholds[0])
    differ = [e for e in split.spans.examples if ours[e.id] != theirs[e.id]]
    random.Random(0).shuffle(differ)
    return [
        {
            "id": e.id,
            "question": e.question,
            "context": split.spans.context(e),
            "gold": [answer.text for answer in e.answers],
            "snapshot": theirs[e.id],
            "head": ours[e.id],
        }
        for e in differ[:_EXAMPLES]
    ]
