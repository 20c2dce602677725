"""What results.json holds of a run whatever its task: how it was made, what systems cost, how they learned."""

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertvision._version import __version__
from bertvision.heads.base import Head
from bertvision.heads.costs import cost
from bertvision.report.entry import SystemEntry
from bertvision.report.origin import commit, environment
from bertvision.report.schema import SCHEMA
from bertvision.train.run_folder import RunFolder, read_metrics
from bertvision.train.splits import Split

__all__ = ["baseline_row", "curves", "fit_facts", "how_made", "layer_weights", "system_row"]

_OF_LEARNING = (
    *("snapshot", "head", "parameters", "total", "percent", "flops_per_token"),
    *("seconds", "seeds", "members", "folder", "versus"),
)


def how_made(
    *, command: str, settings: dict[str, Any], encoder: dict[str, Any], device: str, precision: str
) -> dict[str, Any]:
    """How the run was made."""
    return {
        "schema": SCHEMA,
        "bertvision": __version__,
        "command": command,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "environment": environment(device, precision),
        "encoder": encoder,
        "settings": settings,
    }


def fit_facts(
    settings: dict[str, Any], finetune: RunFolder | None, fits: Sequence[RunFolder]
) -> dict[str, Any]:
    """What the report tells of the fine-tuning and of the fits."""
    fitted = {
        # A stage's time holds that of its encoder, which is told by itself.
        "seconds": sum(max(0.0, stage.seconds - stage.results["encode_seconds"]) for stage in fits),
        "encode_seconds": sum(stage.results["encode_seconds"] for stage in fits),
        "states": sorted({stage.results["states"] for stage in fits}),
        "profiles": [stage.results["profile"] for stage in fits],
    }
    return {"finetune": _tuned(settings["finetune"], finetune), "fit": settings["fit"] | fitted}


def _tuned(settings: dict[str, Any], stage: RunFolder | None) -> dict[str, Any] | None:
    if stage is None:
        return None
    names = ("lr", "schedule", "warmup", "batch_size", "epochs", "seed", "weight_decay")
    told = {
        "policy": stage.results["policy"],
        "trainable": stage.results["trainable"],
        "parameters": stage.results["parameters"],
        "seconds": stage.seconds,
        "tokens_per_second": stage.results["tokens_per_second"],
    }
    return {name: settings[name] for name in names} | told


def system_row(
    entry: SystemEntry[Any], encoder: dict[str, Any], dev: Split, out: Path, *, versus: dict[str, Any] | None
) -> dict[str, Any]:
    """A system with its size, its cost and its scores; `versus` compares it with its snapshot."""
    length = round(float(dev.windows.lengths.mean()))
    price = cost(entry.head, entry.head.geometry, tokens=length) if entry.head else None
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


def baseline_row(label: str, scores: Mapping[str, Any]) -> dict[str, Any]:
    """What can be had without learning, in the form of a system."""
    own = {"name": label, "kind": "baseline", "label": label, "best": False, "scores": scores}
    return own | dict.fromkeys(_OF_LEARNING)


def curves(entries: Sequence[SystemEntry[Any]], finetune: RunFolder | None, score: str) -> dict[str, Any]:
    """What was written down while training; the metric that systems are chosen by is called `score`."""
    fitted = [entry for entry in entries if entry.infos and entry.kind != "ensemble"]
    return {
        "finetune": read_metrics(finetune.metrics) if finetune else [],
        "fit": {entry.name: _mean_history(entry, score) for entry in fitted},
    }


def _mean_history(entry: SystemEntry[Any], score: str) -> list[dict[str, float]]:
    """Epoch records averaged over the seeds that reached the epoch."""
    records = []
    for i in range(max(len(info["history"]) for info in entry.infos)):
        rows = [info["history"][i] for info in entry.infos if i < len(info["history"])]
        record = {"epoch": rows[0]["epoch"], "loss": float(np.mean([row["loss"] for row in rows]))}
        if all("score" in row for row in rows):
            record[score] = float(np.mean([row["score"] for row in rows]))
        records.append(record)
    return records


def layer_weights(head: Head) -> list[float] | None:
    """One share a state; the pooled vector's, where a head over channels reads it, always first."""
    weights = head.layer_weights()
    if weights and head.geometry.pooled and getattr(head.config, "order", "first") == "last":
        return [weights[-1], *weights[:-1]]
    return weights
