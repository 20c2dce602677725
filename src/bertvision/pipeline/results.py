"""Collect the numbers of a run into the dict of results.json, the one source of the report.

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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertvision._version import __version__
from bertvision.heads.costs import cost
from bertvision.model.record import commit, environment
from bertvision.pipeline.systems import System, mark_best, snapshot_of
from bertvision.report.results import SCHEMA
from bertvision.tasks.base import Task
from bertvision.train.run_folder import RunFolder, read_metrics
from bertvision.train.splits import Split

_EXAMPLES = 12
_OF_SYSTEMS = (
    *("snapshot", "head", "parameters", "total", "percent", "flops_per_token"),
    *("seconds", "seeds", "members", "folder", "versus"),
)


def collect(
    systems: list[System],
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
    final = "test" if "test" in splits else "dev"
    task = splits["train"].task
    mark_best(systems)
    length = round(float(splits["dev"].windows.lengths.mean()))
    rows = [
        _about(system, encoder["parameters"], out, length)
        | {
            "scores": {
                split: _scores(system, split, intervals=split == final) for split in splits_of(system)
            },
            "versus": _versus(system, snapshot_of(system, systems), final),
        }
        for system in systems
    ]
    rows += _baselines(task, splits)
    chosen, own = _compared(systems)
    return frame(rows, command, settings, encoder, splits, device, precision) | {
        "finetune": _tuned(settings["finetune"], finetune),
        "fit": settings["fit"] | _fit_facts(fits),
        "curves": {
            "finetune": read_metrics(finetune.metrics) if finetune else [],
            "fit": {s.name: _mean_history(s) for s in systems if s.infos and s.head},
        },
        "layer_weights": {s.name: w for s in systems if s.head and (w := s.head.layer_weights())},
        "details": {s.name: _details(s, final) for s in (chosen, own) if s is not None},
        "examples": _examples(chosen, own, final),
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


def splits_of(system: System) -> list[str]:
    return list(system.records[0].scores)


def _about(system: System, encoder: int, out: Path, length: int) -> dict[str, Any]:
    """What a system is, its size and its cost on windows of `length` tokens."""
    head, folder = system.head, system.folder
    price = cost(head, head.geometry, tokens=length) if head else None
    return {
        "name": system.name,
        "kind": system.kind,
        "label": system.label,
        "snapshot": system.snapshot.removeprefix("snapshot-"),
        "head": head.name if head else None,
        "parameters": price.parameters if price else None,
        "total": price.total if price else None,
        "percent": price.percent_of(encoder) if price else None,
        "flops_per_token": price.flops_per_token if price else None,
        "seconds": float(np.mean([info["seconds"] for info in system.infos]))
        if head and system.infos
        else None,
        "seeds": system.seeds,
        "members": system.members,
        "folder": str(folder.relative_to(out)) if folder else None,
        "best": system.best,
    }


def _scores(system: System, split: str, *, intervals: bool) -> dict[str, Any]:
    """Every metric: mean, standard deviation over the members (n - 1), each member, the interval of the mean."""
    task, members, found = system.task, system.members_on(split), {}
    for name in system.records[0].scores[split]:
        values, interval = system.values(split, name), None
        if intervals and task.metrics[name].selects:
            drawn = task.compare(name, members)
            interval = [drawn.low, drawn.high]
        seeds = system.seeds if len(system.seeds or ()) == len(values) else None
        found[name] = {
            "mean": float(np.mean(values)),
            "sd": float(np.std(values, ddof=1)) if len(values) > 1 else None,
            "per_seed": dict(zip(map(str, seeds), values, strict=True)) if seeds else None,
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


def _baselines(task: Task, splits: Mapping[str, Split]) -> list[dict[str, Any]]:
    """What needs no learning, in the form of systems."""
    parts = {name: split.data for name, split in splits.items() if name != "train"}
    unknown: dict[str, Any] = {"sd": None, "per_seed": None, "interval": None}
    return [
        dict.fromkeys(_OF_SYSTEMS)
        | {"name": label, "kind": "baseline", "label": label, "best": False}
        | {
            "scores": {
                split: {name: {"mean": value} | unknown for name, value in scores.items()}
                for split, scores in found.items()
            }
        }
        for label, found in task.baselines(splits["train"].data, parts).items()
    ]


def _compared(systems: Sequence[System]) -> tuple[System | None, System | None]:
    """The chosen head and its snapshot; the snapshot alone where no head was fitted."""
    best = max((s for s in systems if s.best), key=lambda s: s.dev_score, default=None)
    snapshots = [s for s in systems if s.kind == "snapshot" and (best is None or s.snapshot == best.snapshot)]
    return best, snapshots[0] if snapshots else None


def _details(system: System, split: str) -> dict[str, Any]:
    """The task's own figures for the member that is shipped."""
    seed = system.seeds[system.shipped] if system.seeds else None
    return {"seed": seed} | system.task.details(*system.members_on(split)[system.shipped])


def _examples(chosen: System | None, own: System | None, split: str) -> list[dict[str, Any]]:
    """A fair draw of examples on which a head and its snapshot differ; wins and losses are drawn alike."""
    if chosen is None or own is None:
        return []
    both = (s.task.examples(s.members_on(split)[s.shipped]) for s in (chosen, own))
    pairs = [(ours, theirs) for ours, theirs in zip(*both, strict=True) if ours["said"] != theirs["said"]]
    random.Random(0).shuffle(pairs)
    return [
        {key: value for key, value in ours.items() if key not in ("said", "right")}
        | {"head": ours["said"], "snapshot": theirs["said"]}
        | {"head_right": ours["right"], "snapshot_right": theirs["right"]}
        for ours, theirs in pairs[:_EXAMPLES]
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
        names = [name for name in ("loss", "score") if all(name in row for row in rows)]
        means = {name: float(np.mean([row[name] for row in rows])) for name in names}
        records.append({"epoch": rows[0]["epoch"]} | means)
    return records
