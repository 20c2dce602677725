"""Collect what a run on labels or scores measured into the dict of results.json (text_schema.py describes it)."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertvision.config import to_mapping
from bertvision.data.texts import TextData
from bertvision.report.entry import SystemEntry, mark_best, snapshot_of
from bertvision.report.run_facts import baseline_row, curves, fit_facts, how_made, layer_weights, system_row
from bertvision.report.text_details import details, disagreements
from bertvision.tasks.text import (
    TextAnswers,
    TextTask,
    mcnemar,
    paired_difference,
    score_texts,
    truth,
)
from bertvision.train.run_folder import RunFolder
from bertvision.train.splits import Split

__all__ = ["TextEntry", "TextScores", "collect_texts", "compare_texts", "score_members"]


@dataclass(frozen=True)
class TextScores:
    """A system on one part of the data: a member each seed."""

    answers: list[TextAnswers]
    members: list[dict[str, float]]

    @property
    def mean(self) -> dict[str, float]:
        return {key: float(np.mean([member[key] for member in self.members])) for key in self.members[0]}

    @property
    def spread(self) -> dict[str, float] | None:
        """Standard deviation over members (n - 1); None with one."""
        if len(self.members) < 2:
            return None
        return {
            key: float(np.std([member[key] for member in self.members], ddof=1)) for key in self.members[0]
        }

    def as_dict(self, seeds: list[int] | None) -> dict[str, Any]:
        rows = None
        if seeds and len(seeds) == len(self.members):
            rows = [{"seed": seed, **member} for seed, member in zip(seeds, self.members, strict=True)]
        return {"mean": self.mean, "spread": self.spread, "per_seed": rows}


def score_members(answers: list[TextAnswers], data: TextData) -> TextScores:
    """Every metric of each member."""
    return TextScores(answers, [score_texts(member, data) for member in answers])


class TextEntry(SystemEntry[TextScores]):
    """A system of the report, with what it scored."""

    @property
    def task(self) -> TextTask:
        return self.scores["dev"].answers[0].task

    @property
    def dev_score(self) -> float:
        """The task's metric on dev."""
        return self.scores["dev"].mean[self.task.metric]

    @property
    def shipped(self) -> int:
        return int(np.argmax([member[self.task.metric] for member in self.scores["dev"].members]))


def compare_texts(ours: TextScores, theirs: TextScores, data: TextData) -> dict[str, float | str | None]:
    """The task's metric of `ours` less that of `theirs`, with its interval; McNemar's p of the first members."""
    task, right = ours.answers[0].task, truth(data)
    first, second = ([answers.values for answers in system.answers] for system in (ours, theirs))
    found = paired_difference(task, right, first, second)
    p = mcnemar(first[0] == right, second[0] == right) if task.kind == "label" else None
    return {
        "metric": task.metric,
        "difference": found.difference,
        "low": found.low,
        "high": found.high,
        "mcnemar_p": p,
    }


def collect_texts(
    entries: list[TextEntry],
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
    """The dict that results.json holds; claims are made on test where there is one, else on dev."""
    final = "test" if "test" in entries[0].scores else "dev"
    mark_best(entries)
    shown = [entry for entry in _compared(entries) if entry is not None]
    data = splits[final].texts
    made = how_made(command=command, settings=settings, encoder=encoder, device=device, precision=precision)
    return (
        made
        | fit_facts(settings, finetune, fits)
        | {
            "task": to_mapping(entries[0].task),
            "data": {name: _describe(split) for name, split in splits.items()},
            "systems": [
                system_row(e, encoder, splits["dev"], out, versus=_versus(e, entries, data, final))
                for e in entries
            ]
            + _baselines(entries[0].task, splits, list(entries[0].scores)),
            "curves": curves(entries, finetune, "dev_score"),
            "layer_weights": {e.name: w for e in entries if e.head and (w := layer_weights(e.head))},
            "details": {e.name: details(e.scores[final].answers[e.shipped], data, _seed(e)) for e in shown},
            "examples": _examples(entries, data, final),
        }
    )


def _seed(entry: TextEntry) -> int | None:
    return entry.seeds[entry.shipped] if entry.seeds else None


def _compared(entries: list[TextEntry]) -> tuple[TextEntry | None, TextEntry | None]:
    """The chosen head and its snapshot; the snapshot alone where no head was fitted."""
    best = max((e for e in entries if e.best), key=lambda e: e.dev_score, default=None)
    snapshots = [e for e in entries if e.kind == "snapshot" and (best is None or e.snapshot == best.snapshot)]
    return best, snapshots[0] if snapshots else None


def _examples(entries: list[TextEntry], data: TextData, final: str) -> list[dict[str, Any]]:
    best, own = _compared(entries)
    if best is None or own is None:
        return []
    ours, theirs = best.scores[final].answers[best.shipped], own.scores[final].answers[own.shipped]
    return disagreements(ours, theirs, data, random.Random(0))


def _describe(split: Split) -> dict[str, Any]:
    told: dict[str, Any] = dict(split.describe())
    known = np.array([e.label for e in split.texts.examples if e.label is not None], np.float64)
    if split.texts.kind == "score" and len(known):
        numbers = {"low": known.min(), "mean": known.mean(), "high": known.max(), "spread": known.std()}
        told["scores"] = {key: float(value) for key, value in numbers.items()}
    return told


def _versus(entry: TextEntry, entries: list[TextEntry], data: TextData, final: str) -> dict[str, Any] | None:
    """The system against the snapshot it reads."""
    own = snapshot_of(entry, entries)
    if own is None or own is entry:
        return None
    found = compare_texts(entry.scores[final], own.scores[final], data)
    return {"baseline": own.name, "split": final, **found}


def _baselines(task: TextTask, splits: dict[str, Split], shown: list[str]) -> list[dict[str, Any]]:
    """What can be had without reading: the most frequent class, or the mean score, of the training set."""
    if "train" not in splits:
        return []
    right = truth(splits["train"].texts)
    label = "always the mean score" if task.kind == "score" else "always the most frequent class"
    scores = {}
    for name in shown:
        data = splits[name].texts
        scores[name] = score_members([_constant(task, right, data)], data).as_dict(None)
    return [baseline_row(label, scores)]


def _constant(task: TextTask, right: NDArray[Any], data: TextData) -> TextAnswers:
    ids = [example.id for example in data.examples]
    if task.kind == "score":
        return TextAnswers(ids, task, None, np.full(len(data), right.mean()))
    shares = np.bincount(right, minlength=len(task.classes)) / len(right)
    return TextAnswers(ids, task, np.tile(shares, (len(data), 1)), np.full(len(data), shares.argmax()))
