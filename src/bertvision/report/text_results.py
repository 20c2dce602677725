"""Collect what a run on labels or scores measured into the dict of results.json (text_schema.py describes it)."""

import datetime
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertvision._version import __version__
from bertvision.config import to_mapping
from bertvision.data.texts import TextData
from bertvision.heads.cost import cost
from bertvision.report.entry import SystemEntry
from bertvision.report.results import commit, environment, finetune_facts, layer_weights
from bertvision.report.schema import SCHEMA
from bertvision.report.text_details import details, disagreements
from bertvision.tasks.text import (
    TextAnswers,
    TextTask,
    mcnemar,
    paired_difference,
    score_texts,
    truth,
)
from bertvision.train.log import read_metrics
from bertvision.train.splits import Split
from bertvision.train.stage import Stage

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
        """What systems are chosen by: the task's metric on dev."""
        return self.scores["dev"].mean[self.task.metric]

    @property
    def shipped(self) -> int:
        """The member to ship and to look at closely: the one that scored highest on dev."""
        return int(np.argmax([member[self.task.metric] for member in self.scores["dev"].members]))

    @property
    def folder(self) -> Path:
        return self.folders[self.shipped]


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
    finetune: Stage | None,
    fits: list[Stage],
    out: Path,
    device: str,
    precision: str,
) -> dict[str, Any]:
    """The dict that results.json holds; claims are made on test where there is one, else on dev."""
    final = "test" if "test" in entries[0].scores else "dev"
    for snapshot in {entry.snapshot for entry in entries}:
        own = [e for e in entries if e.snapshot == snapshot]
        heads = [e for e in own if e.kind == "head"] or [e for e in own if e.kind == "control"]
        if heads:
            max(heads, key=lambda e: e.dev_score).best = True
    shown = [entry for entry in _compared(entries) if entry is not None]
    data = splits[final].texts
    return {
        "schema": SCHEMA,
        "bertvision": __version__,
        "task": to_mapping(entries[0].task),
        "command": command,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "environment": environment(device, precision),
        "encoder": encoder,
        "data": {name: _describe(split) for name, split in splits.items()},
        "settings": settings,
        "finetune": finetune_facts(settings["finetune"], finetune),
        "fit": settings["fit"]
        | {
            "seconds": sum(max(0.0, stage.seconds - stage.results["encode_seconds"]) for stage in fits),
            "encode_seconds": sum(stage.results["encode_seconds"] for stage in fits),
            "states": sorted({stage.results["states"] for stage in fits}),
        },
        "systems": [_system(e, entries, encoder, splits, final, out) for e in entries]
        + _baselines(entries[0].task, splits, list(entries[0].scores)),
        "curves": {
            "finetune": read_metrics(finetune.metrics) if finetune else [],
            "fit": {e.name: _mean_history(e) for e in entries if e.infos and e.kind != "ensemble"},
        },
        "layer_weights": {e.name: w for e in entries if e.head and (w := layer_weights(e.head))},
        "details": {e.name: details(e.scores[final].answers[e.shipped], data, _seed(e)) for e in shown},
        "examples": _examples(entries, data, final),
    }


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


def _system(
    entry: TextEntry,
    entries: list[TextEntry],
    encoder: dict[str, Any],
    splits: dict[str, Split],
    final: str,
    out: Path,
) -> dict[str, Any]:
    length = round(float(splits["dev"].windows.lengths.mean()))
    price = cost(entry.head, entry.head.geometry, tokens=length) if entry.head else None
    own = next((e for e in entries if e.kind == "snapshot" and e.snapshot == entry.snapshot), None)
    versus = None
    if own is not None and own is not entry:
        found = compare_texts(entry.scores[final], own.scores[final], splits[final].texts)
        versus = {"baseline": own.name, "split": final, **found}
    fitted = entry.kind in ("head", "control") and entry.infos
    return {
        "name": entry.name,
        "kind": entry.kind,
        "label": entry.label,
        "snapshot": entry.snapshot.removeprefix("snapshot-"),
        "head": entry.head.name if entry.head else None,
        "parameters": price.parameters if price else None,
        "total": price.total if price else None,
        "percent": price.percent_of(encoder["parameters"]) if price else None,
        "flops_per_token": price.flops_per_token if price else None,
        "seconds": float(np.mean([info["seconds"] for info in entry.infos])) if fitted else None,
        "seeds": entry.seeds,
        "members": entry.members,
        "folder": str(entry.folder.relative_to(out)) if entry.folders else None,
        "best": entry.best,
        "scores": {split: scores.as_dict(entry.seeds) for split, scores in entry.scores.items()},
        "versus": versus,
    }


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
    absent = (
        *("snapshot", "head", "parameters", "total", "percent", "flops_per_token"),
        *("seconds", "seeds", "members", "folder", "versus"),
    )
    nothing = dict.fromkeys(absent)
    return [{"name": label, "kind": "baseline", "label": label, "best": False, "scores": scores, **nothing}]


def _constant(task: TextTask, right: NDArray[Any], data: TextData) -> TextAnswers:
    ids = [example.id for example in data.examples]
    if task.kind == "score":
        return TextAnswers(ids, task, None, np.full(len(data), right.mean()))
    shares = np.bincount(right, minlength=len(task.classes)) / len(right)
    return TextAnswers(ids, task, np.tile(shares, (len(data), 1)), np.full(len(data), shares.argmax()))


def _mean_history(entry: TextEntry) -> list[dict[str, float]]:
    """Epoch records averaged over the seeds that reached the epoch."""
    records = []
    for i in range(max(len(info["history"]) for info in entry.infos)):
        rows = [info["history"][i] for info in entry.infos if i < len(info["history"])]
        record = {"epoch": rows[0]["epoch"], "loss": float(np.mean([row["loss"] for row in rows]))}
        if all("score" in row for row in rows):
            record["dev_score"] = float(np.mean([row["score"] for row in rows]))
        records.append(record)
    return records
