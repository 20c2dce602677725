"""Collect what a run measured into the dict of results.json, the one source of the report.

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

What is not known is null. Percentages and fractions are told apart by the metric's "percent".
"""

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertvision._version import __version__
from bertvision.heads.base import Head
from bertvision.heads.costs import cost
from bertvision.model.origin import commit, environment
from bertvision.pipeline.systems import System, mark_best, snapshot_of
from bertvision.report.results import SCHEMA
from bertvision.tasks.base import Task
from bertvision.train.run_folder import RunFolder, read_metrics
from bertvision.train.splits import Split

__all__ = ["collect", "frame"]

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
    rows = [_row(system, encoder, splits["dev"], out, systems, final) for system in systems]
    rows += _baselines(task, splits)
    chosen, own = _compared(systems)
    return frame(rows, command, settings, encoder, splits, device, precision) | {
        "finetune": _tuned(settings["finetune"], finetune),
        "fit": settings["fit"] | _fit_facts(fits),
        "curves": {
            "finetune": read_metrics(finetune.metrics) if finetune else [],
            "fit": {s.name: _mean_history(s) for s in systems if s.infos and s.kind != "ensemble"},
        },
        "layer_weights": {s.name: w for s in systems if s.head and (w := _layer_weights(s.head))},
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
        "metrics": _metrics(task, present),
        "data": {name: split.describe() for name, split in splits.items()},
        "systems": systems,
    }


def _metrics(task: Task, present: set[str]) -> dict[str, dict[str, Any]]:
    """The metrics that occur, first what systems are chosen by, then what they are compared by."""
    names = [*task.selecting, *(name for name in task.metrics if name not in task.selecting)]
    return {
        name: {
            "title": task.title(name),
            "percent": task.metrics[name].percent,
            "higher": task.metrics[name].higher,
            "about": task.metrics[name].about,
        }
        for name in names
        if name in present
    }


# ---- systems


def _row(
    system: System, encoder: dict[str, Any], dev: Split, out: Path, systems: Sequence[System], final: str
) -> dict[str, Any]:
    """A system with its size, its cost, its scores and how it compares with its snapshot."""
    length = round(float(dev.windows.lengths.mean()))
    price = cost(system.head, system.head.geometry, tokens=length) if system.head else None
    fitted = system.kind in ("head", "control") and system.infos
    return {
        "name": system.name,
        "kind": system.kind,
        "label": system.label,
        "snapshot": system.snapshot.removeprefix("snapshot-"),
        "head": system.head.name if system.head else None,
        "parameters": price.parameters if price else None,
        "total": price.total if price else None,
        "percent": price.percent_of(encoder["parameters"]) if price else None,
        "flops_per_token": price.flops_per_token if price else None,
        "seconds": float(np.mean([info["seconds"] for info in system.infos])) if fitted else None,
        "seeds": system.seeds,
        "members": system.members,
        "folder": str(system.folder.relative_to(out)) if system.folders else None,
        "best": system.best,
        "scores": {split: _scores(system, split, intervals=split == final) for split in system.splits},
        "versus": _versus(system, systems, final),
    }


def _scores(system: System, split: str, *, intervals: bool) -> dict[str, Any]:
    """Every metric: mean, standard deviation over the members (n - 1), each member, the interval of the mean."""
    task, found = system.task, {}
    members = system.members_on(split)
    for name in system.records[0].scores[split]:
        values = system.values(split, name)
        interval = None
        if intervals and task.metrics[name].selects:
            drawn = task.compare(name, members)
            interval = [drawn.low, drawn.high]
        seeds = system.seeds if system.seeds and len(system.seeds) == len(values) else None
        found[name] = {
            "mean": float(np.mean(values)),
            "sd": float(np.std(values, ddof=1)) if len(values) > 1 else None,
            "per_seed": None if seeds is None else dict(zip(map(str, seeds), values, strict=True)),
            "interval": interval,
        }
    return found


def _versus(system: System, systems: Sequence[System], final: str) -> dict[str, Any] | None:
    """The system against the snapshot it reads, in pairs on the same examples."""
    own = snapshot_of(system, systems)
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
    """What can be had without learning, in the form of systems."""
    parts = {name: splits[name].data for name in ("dev", "test") if name in splits}
    rows = []
    for label, found in task.baselines(splits["train"].data, parts).items():
        scores = {
            split: {
                name: {"mean": value, "sd": None, "per_seed": None, "interval": None}
                for name, value in own.items()
            }
            for split, own in found.items()
        }
        row = {"name": label, "kind": "baseline", "label": label, "best": False, "scores": scores}
        rows.append(dict.fromkeys(_OF_SYSTEMS) | row)
    return rows


def _compared(systems: Sequence[System]) -> tuple[System | None, System | None]:
    """The chosen head and its snapshot; the snapshot alone where no head was fitted."""
    best = max((s for s in systems if s.best), key=lambda s: s.dev_score, default=None)
    snapshots = [s for s in systems if s.kind == "snapshot" and (best is None or s.snapshot == best.snapshot)]
    return best, snapshots[0] if snapshots else None


def _details(system: System, split: str) -> dict[str, Any]:
    """Of the member that is shipped."""
    seed = system.seeds[system.shipped] if system.seeds else None
    answers, tuning = system.records[system.shipped].member(split)
    return {"seed": seed} | system.task.details(answers, tuning)


def _examples(chosen: System | None, own: System | None, split: str) -> list[dict[str, Any]]:
    if chosen is None or own is None:
        return []
    ours, theirs = (system.records[system.shipped].member(split) for system in (chosen, own))
    return chosen.task.disagreements(ours, theirs)


# ---- how it was made


def _fit_facts(fits: Sequence[RunFolder]) -> dict[str, Any]:
    return {
        # A stage's time holds that of its encoder, which is reported by itself.
        "seconds": sum(max(0.0, stage.seconds - stage.results["encode_seconds"]) for stage in fits),
        "encode_seconds": sum(stage.results["encode_seconds"] for stage in fits),
        "states": sorted({stage.results["states"] for stage in fits}),
        "profiles": [stage.results["profile"] for stage in fits],
    }


def _tuned(settings: dict[str, Any], stage: RunFolder | None) -> dict[str, Any] | None:
    if stage is None:
        return None
    names = ("lr", "schedule", "warmup", "batch_size", "epochs", "seed", "weight_decay")
    results = ("policy", "trainable", "parameters", "tokens_per_second")
    return (
        {name: settings[name] for name in names}
        | {name: stage.results[name] for name in results}
        | {"seconds": stage.seconds}
    )


def _mean_history(system: System) -> list[dict[str, float]]:
    """Epoch records averaged over the seeds that reached the epoch."""
    records = []
    for i in range(max(len(info["history"]) for info in system.infos)):
        rows = [info["history"][i] for info in system.infos if i < len(info["history"])]
        record = {"epoch": rows[0]["epoch"], "loss": float(np.mean([row["loss"] for row in rows]))}
        if all("score" in row for row in rows):
            record["score"] = float(np.mean([row["score"] for row in rows]))
        records.append(record)
    return records


def _layer_weights(head: Head) -> list[float] | None:
    """One share a state; the pooled vector's, where a head over channels reads it, always first."""
    weights = head.layer_weights()
    if weights and head.geometry.pooled and getattr(head.config, "order", "first") == "last":
        return [weights[-1], *weights[:-1]]
    return weights
