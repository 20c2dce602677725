"""The systems of a run, and their numbers as the dict of results.json, the one source of the report.

    schema, bertvision, command, created, commit, environment, encoder, settings, seconds
    task           the task's settings, with "title" (of its metric) and "outputs"
    metrics        {NAME: {"title", "percent", "higher", "about"}} in the order of the columns
    data           {SPLIT: {"name", "examples", "windows", "tokens", "counts": {CLASS: n} | "range": {...}}}
    finetune, fit  settings and costs
    systems        [{"name", "kind", "label", "snapshot", "head", "parameters", "total", "percent", "flops_per_token",
                     "seconds", "seeds", "members", "folder", "best", "scores", "versus"}]
      scores       {SPLIT: {METRIC: {"mean", "sd", "per_seed": {SEED: x}, "interval": [low, high]}}}
      versus       {"baseline", "split", "metrics": {METRIC: {"difference", "low", "high"}}, "mcnemar_p"}
    curves         {"finetune": [...], "fit": {NAME: [{"epoch", "loss", "score"}]}}
    layer_weights  {NAME: [one share a state]}
    details        {NAME: figures that only this kind of task has}, of the chosen head and its snapshot
    examples       [{"id", "texts", "context", "truth", "head", "snapshot", "head_right", "snapshot_right"}]

What is not known is null. A metric's "percent" says whether it runs to 100 or to 1.
"""

import datetime
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from bertvision._version import __version__
from bertvision.heads.base import Head, cost
from bertvision.model.record import Record, commit, environment
from bertvision.report.results import SCHEMA, UNKNOWN
from bertvision.train.run_folder import RunFolder, read_metrics
from bertvision.train.splits import Split

_EXAMPLES = 12


@dataclass
class System:
    """One row of the results. Its members are the seeds of a head; a snapshot has one member and no seed."""

    snapshot: str
    label: str
    head: Head | None
    """None for an ensemble."""
    records: list[Record]
    """Answers and scores of each member."""
    folders: list[Path] = field(default_factory=list)
    infos: list[dict[str, Any]] = field(default_factory=list)
    """What the fit reports of each member: label, seed, seconds, history."""
    members: list[str] | None = None
    """Labels of the systems that an ensemble joins."""
    best: bool = False

    def __post_init__(self) -> None:
        self.task, self.seeds = self.records[0].task, [info["seed"] for info in self.infos]
        self.kind = "head"
        if self.head is None:
            self.kind = "ensemble"
        elif not self.infos:
            self.kind = "snapshot"
        elif self.head.last_only:  # as a fine-tuned encoder's own output layer does
            self.kind = "control"
        self.name = self.label if self.kind == "snapshot" else f"{self.snapshot}/{self.label}"
        metric = self.task.metric
        ranked = np.array(self.values("dev", metric)) * (1 if self.task.metrics[metric].higher else -1)
        self.dev_score, self.shipped = float(ranked.mean()), int(ranked.argmax())
        """What systems are chosen by, higher is better; the member that scored best on dev."""

    def values(self, split: str, metric: str) -> list[float]:
        """A metric of each member."""
        return [record.scores[split][metric] for record in self.records]

    def members_on(self, split: str) -> list[tuple[Any, Any]]:
        """The argument of `Task.compare`."""
        return [record.member(split) for record in self.records]


def pairs(
    systems: Sequence[System],
) -> Iterator[tuple[tuple[System, System], list[tuple[Path, Path]], list[dict[str, Any]]]]:
    """The best head on dev with its snapshot, and the two best heads: both systems, their folders seed by seed, and
    what the fit reports of the second's."""
    heads = sorted((s for s in systems if s.kind == "head"), key=lambda s: -s.dev_score)
    own = [s for s in systems if s.kind == "snapshot"]
    for first, second in [*zip(own[:1], heads[:1], strict=False), *pairwise(heads[:2])]:
        of_seed = {info["seed"]: folder for info, folder in zip(first.infos, first.folders, strict=False)}
        both = [
            ((of_seed.get(info["seed"], first.folders[0]), folder), info)
            for info, folder in zip(second.infos, second.folders, strict=True)
            if not of_seed or info["seed"] in of_seed  # a seed that diverged is missing
        ]
        if both:
            yield (first, second), [folders for folders, _ in both], [info for _, info in both]


def collect(
    systems: list[System],
    splits: Mapping[str, Split],
    *,
    finetune: RunFolder | None,
    fits: list[RunFolder],
    out: Path,
    **about: Any,
) -> dict[str, Any]:
    """The dict that results.json holds; claims are made on test where there is one. `about` is for `frame`."""
    final = "test" if "test" in splits else "dev"
    own = {system.snapshot: system for system in systems if system.kind == "snapshot"}
    chosen = _mark_best(systems)
    length = round(float(splits["dev"].windows.lengths.mean()))
    rows = [_about(system, about["encoder"]["parameters"], out, length) for system in systems]
    for row, system in zip(rows, systems, strict=True):
        row["scores"] = {name: _scores(system, name, final) for name in system.records[0].scores}
        row["versus"] = _versus(system, own.get(system.snapshot), final)
    rows += _baselines(splits)
    compared = own.get(chosen.snapshot) if chosen else next(iter(own.values()), None)
    return frame(rows, splits=splits, **about) | {
        "finetune": _tuned(about["settings"]["finetune"], finetune),
        "fit": about["settings"]["fit"] | _fit_facts(fits),
        "curves": {
            "finetune": read_metrics(finetune.metrics) if finetune else [],
            "fit": {s.name: _mean_history(s) for s in systems if s.infos and s.head},
        },
        "layer_weights": {s.name: w for s in systems if s.head and (w := s.head.layer_weights())},
        "details": {s.name: _details(s, final) for s in (chosen, compared) if s is not None},
        "examples": _examples(chosen, compared, final),
    }


def frame(
    systems: Sequence[dict[str, Any]],
    command: str,
    settings: dict[str, Any],
    encoder: dict[str, Any],
    splits: Mapping[str, Split],
    device: str,
    precision: str,
) -> dict[str, Any]:
    """What the results of every verb hold: where they come from, the task, the data, the systems."""
    task = splits["train"].task
    present = {name for row in systems for scores in row["scores"].values() for name in scores}
    return {
        "schema": SCHEMA,
        "bertvision": __version__,
        "command": command,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "environment": environment(device, precision),
        "encoder": encoder,
        "settings": settings,
        "task": task.config() | {"title": task.title(task.metric), "outputs": task.outputs},
        "metrics": {
            name: {"title": task.title(name)}
            | {key: getattr(task.metrics[name], key) for key in ("percent", "higher", "about")}
            for name in dict.fromkeys((*task.selecting, *task.metrics))
            if name in present
        },
        "data": {name: split.describe() for name, split in splits.items()},
        "systems": systems,
    }


# ---- systems


def _mark_best(systems: Sequence[System]) -> System | None:
    """Mark the best head on each snapshot, or the best control where there is none; returns the best of all."""
    marked = []
    for snapshot in dict.fromkeys(system.snapshot for system in systems):
        own = [s for s in systems if s.snapshot == snapshot]
        if heads := [s for s in own if s.kind == "head"] or [s for s in own if s.kind == "control"]:
            marked.append(max(heads, key=lambda s: s.dev_score))
            marked[-1].best = True
    return max(marked, key=lambda s: s.dev_score, default=None)


def _about(system: System, encoder: int, out: Path, length: int) -> dict[str, Any]:
    """What a system is, its size and its cost on windows of `length` tokens."""
    row = UNKNOWN | {key: getattr(system, key) for key in ("name", "kind", "label", "members", "best")}
    row |= {"snapshot": system.snapshot.removeprefix("snapshot-"), "seeds": system.seeds or None}
    if system.folders:
        row["folder"] = str(system.folders[system.shipped].relative_to(out))
    if (head := system.head) is not None:
        price = cost(head, head.geometry, tokens=length)
        row |= {"head": head.name, "parameters": price.parameters, "total": price.total}
        row |= {"percent": 100 * price.parameters / encoder, "flops_per_token": price.flops_per_token}
        if system.infos:
            row["seconds"] = float(np.mean([info["seconds"] for info in system.infos]))
    return row


def _scores(system: System, split: str, final: str) -> dict[str, Any]:
    """Every metric: mean, standard deviation over the members (n - 1), each member, the interval of the mean."""
    task, members, found = system.task, system.members_on(split), {}
    for name in system.records[0].scores[split]:
        values, interval = system.values(split, name), None
        if split == final and task.metrics[name].selects:
            drawn = task.compare(name, members)
            interval = [drawn.low, drawn.high]
        found[name] = {
            "mean": float(np.mean(values)),
            "sd": float(np.std(values, ddof=1)) if len(values) > 1 else None,
            "per_seed": dict(zip(map(str, system.seeds), values, strict=True)) if system.seeds else None,
            "interval": interval,
        }
    return found


def _versus(system: System, own: System | None, final: str) -> dict[str, Any] | None:
    """The system against the snapshot it reads, in pairs on the same examples."""
    if own is None or own is system:
        return None
    task, ours, theirs = system.task, system.members_on(final), own.members_on(final)
    return {
        "baseline": own.name,
        "split": final,
        "metrics": {name: vars(task.compare(name, ours, theirs)) for name in task.selecting},
        "mcnemar_p": task.mcnemar(ours[0], theirs[0]),
    }


def _baselines(splits: Mapping[str, Split]) -> list[dict[str, Any]]:
    """What needs no learning, in the form of systems."""
    train = splits["train"]
    parts = {name: split.data for name, split in splits.items() if name != "train"}
    unknown: dict[str, Any] = {"sd": None, "per_seed": None, "interval": None}
    rows = []
    for label, found in train.task.baselines(train.data, parts).items():
        row = UNKNOWN | {"name": label, "kind": "baseline", "label": label, "best": False}
        row["scores"] = {
            split: {name: {"mean": value} | unknown for name, value in own.items()}
            for split, own in found.items()
        }
        rows.append(row)
    return rows


def _details(system: System, split: str) -> dict[str, Any]:
    """The task's own figures for the member that is shipped."""
    seed = system.seeds[system.shipped] if system.seeds else None
    return {"seed": seed} | system.task.details(*system.members_on(split)[system.shipped])


def _examples(chosen: System | None, own: System | None, split: str) -> list[dict[str, Any]]:
    """A fair draw of examples on which a head and its snapshot differ; wins and losses are drawn alike."""
    if chosen is None or own is None:
        return []
    both = (s.task.examples(s.members_on(split)[s.shipped]) for s in (chosen, own))
    differing = [(ours, theirs) for ours, theirs in zip(*both, strict=True) if ours["said"] != theirs["said"]]
    random.Random(0).shuffle(differing)
    return [
        {key: value for key, value in ours.items() if key not in ("said", "right")}
        | {"head": ours["said"], "snapshot": theirs["said"]}
        | {"head_right": ours["right"], "snapshot_right": theirs["right"]}
        for ours, theirs in differing[:_EXAMPLES]
    ]


# ---- costs and curves


def _fit_facts(fits: Sequence[RunFolder]) -> dict[str, Any]:
    encoding = [stage.results["encode_seconds"] for stage in fits]
    return {
        # The time of a stage includes that of its encoder, which is reported by itself.
        "seconds": sum(max(0.0, stage.seconds - own) for stage, own in zip(fits, encoding, strict=True)),
        "encode_seconds": sum(encoding),
        "states": sorted({stage.results["states"] for stage in fits}),
        "profiles": [stage.results["profile"] for stage in fits],
    }


def _tuned(settings: dict[str, Any], stage: RunFolder | None) -> dict[str, Any] | None:
    if stage is None:
        return None
    chosen = ("lr", "schedule", "warmup", "batch_size", "epochs", "seed", "weight_decay")
    measured = ("policy", "trainable", "parameters", "tokens_per_second")
    found = {name: settings[name] for name in chosen} | {name: stage.results[name] for name in measured}
    return found | {"seconds": stage.seconds}


def _mean_history(system: System) -> list[dict[str, float]]:
    """Records of the epochs, averaged over the seeds that reached them."""
    records = []
    for i in range(max(len(info["history"]) for info in system.infos)):
        rows = [info["history"][i] for info in system.infos if i < len(info["history"])]
        names = [name for name in ("epoch", "loss", "score") if all(name in row for row in rows)]
        records.append({name: float(np.mean([row[name] for row in rows])) for name in names})
    return records
