"""Collect what a run measured into results.json, the one source of every figure and table of the report."""

import datetime
import os
import platform
import random
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bertvision._version import __version__
from bertvision.artifacts import read_json, write_json
from bertvision.config import to_mapping
from bertvision.data.examples import SpanData
from bertvision.heads.base import Head
from bertvision.heads.cost import cost
from bertvision.report.entry import SystemEntry
from bertvision.report.schema import SCHEMA
from bertvision.tasks.span.calibration import no_answer_of
from bertvision.tasks.span.decode import DecodeConfig
from bertvision.tasks.span.files import write_answers
from bertvision.tasks.span.score import score
from bertvision.train.log import read_metrics
from bertvision.train.scoring import SystemScores, compare
from bertvision.train.splits import Split
from bertvision.train.stage import Stage

__all__ = [
    "Entry",
    "card_inputs",
    "collect",
    "commit",
    "environment",
    "finetune_facts",
    "layer_weights",
    "write_head_results",
]

_EXAMPLES = 12


class Entry(SystemEntry[SystemScores]):
    """A system of the report, with what it scored."""

    @property
    def dev_f1(self) -> float:
        """What systems are chosen by: F1 on dev at the threshold tuned there."""
        return float(self.scores["dev"].tuned[1].mean())

    @property
    def folder(self) -> Path:
        """The member to ship: the seed that scored highest on dev."""
        scores = [member["tuned_f1"] for member in self.scores["dev"].members]
        return self.folders[int(np.argmax(scores))]


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
    finetune: Stage | None,
    fits: list[Stage],
    out: Path,
    device: str,
    precision: str,
) -> dict[str, Any]:
    """The dict that results.json holds."""
    final = "test" if "test" in splits else "dev"
    for snapshot in {entry.snapshot for entry in entries}:
        own = [e for e in entries if e.snapshot == snapshot]
        heads = [e for e in own if e.kind == "head"] or [e for e in own if e.kind == "control"]
        if heads:
            max(heads, key=lambda e: e.dev_f1).best = True
    return {
        "schema": SCHEMA,
        "bertvision": __version__,
        "command": command,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "environment": environment(device, precision),
        "encoder": encoder,
        "data": {name: split.describe() for name, split in splits.items()},
        "settings": settings,
        "finetune": finetune_facts(settings["finetune"], finetune),
        "fit": settings["fit"]
        | {
            # A stage's time holds that of its encoder, which is told by itself.
            "seconds": sum(max(0.0, stage.seconds - stage.results["encode_seconds"]) for stage in fits),
            "encode_seconds": sum(stage.results["encode_seconds"] for stage in fits),
            "states": sorted({stage.results["states"] for stage in fits}),
            "profiles": [stage.results["profile"] for stage in fits],
        },
        "systems": [_system(e, entries, encoder, splits, final, out) for e in entries]
        + _baselines(splits, settings),
        "curves": {
            "finetune": read_metrics(finetune.metrics) if finetune else [],
            "fit": {e.name: _mean_history(e) for e in entries if e.infos and e.kind != "ensemble"},
        },
        "layer_weights": {e.name: w for e in entries if e.head and (w := layer_weights(e.head))},
        "examples": _disagreements(entries, splits[final], final),
    }


def layer_weights(head: Head) -> list[float] | None:
    """One share a state; the pooled vector's, where a head over channels reads it, always first."""
    weights = head.layer_weights()
    if weights and head.geometry.pooled and getattr(head.config, "order", "first") == "last":
        return [weights[-1], *weights[:-1]]
    return weights


def _system(
    entry: Entry,
    entries: list[Entry],
    encoder: dict[str, Any],
    splits: dict[str, Split],
    final: str,
    out: Path,
) -> dict[str, Any]:
    windows = splits["dev"].windows
    price = (
        cost(entry.head, entry.head.geometry, tokens=round(float(windows.lengths.mean())))
        if entry.head
        else None
    )
    own = next((e for e in entries if e.kind == "snapshot" and e.snapshot == entry.snapshot), None)
    versus = None
    if own is not None and own is not entry:
        versus = {"baseline": own.name, "split": final, **compare(entry.scores[final], own.scores[final])}
    fitted = entry.kind in ("head", "control")
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
        "scores": {split: s.as_dict(entry.seeds) for split, s in entry.scores.items()},
        "versus": versus,
    }


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
    absent = (
        "snapshot",
        "head",
        "parameters",
        "total",
        "percent",
        "flops_per_token",
        "seconds",
        "seeds",
        "members",
        "versus",
    )
    nothing = dict.fromkeys((*absent, "folder"))
    return {"name": label, "kind": "baseline", "label": label, "best": False, "scores": scores, **nothing}


def finetune_facts(settings: dict[str, Any], stage: Stage | None) -> dict[str, Any] | None:
    """What the report tells of the fine-tuning."""
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


def _mean_history(entry: Entry) -> list[dict[str, float]]:
    """Epoch records averaged over the seeds that reached the epoch."""
    records = []
    for i in range(max(len(info["history"]) for info in entry.infos)):
        rows = [info["history"][i] for info in entry.infos if i < len(info["history"])]
        record = {"epoch": rows[0]["epoch"], "loss": float(np.mean([row["loss"] for row in rows]))}
        if all("score" in row for row in rows):
            record["dev_f1"] = float(np.mean([row["score"] for row in rows]))
        records.append(record)
    return records


def _disagreements(entries: list[Entry], split: Split, name: str) -> list[dict[str, Any]]:
    """A fair draw of questions on which the best head and its snapshot give different answers."""
    best = max((e for e in entries if e.best), key=lambda e: e.dev_f1, default=None)
    own = next((e for e in entries if best and e.kind == "snapshot" and e.snapshot == best.snapshot), None)
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


def environment(device: str, precision: str) -> dict[str, Any]:
    """Where the numbers were measured."""
    import torch
    import transformers

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else device,
        "precision": precision,
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def commit() -> str | None:
    """The checkout's commit, where this is a checkout of bertvision; a copy is told by BERTVISION_COMMIT."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return os.environ.get("BERTVISION_COMMIT") or None
    command = ["git", "-C", str(root), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None
