"""What is kept beside a head: its answers and logits on each split, metrics.json and its card; the one writer of them.

metrics.json   {"metric": NAME, "tuning": {"on": DATA, ...}, "scores": {SPLIT: {METRIC: VALUE}},
                "made": {"commands": [...], "data": {SPLIT: NAME}}}
SPLIT/         logits.safetensors and the task's answers
README.md      the card
"""

import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertvision.artifacts import read_json, write_json, write_text
from bertvision.config import to_mapping
from bertvision.model.card import head_card, plain_command
from bertvision.tasks.base import DecodeConfig, Task
from bertvision.tasks.logits import Logits
from bertvision.train.job import Split


@dataclass(frozen=True)
class Record:
    """What a head answers and scores on each split."""

    task: Task
    answers: dict[str, Any]
    tuning: Any
    tuned_on: str
    scores: dict[str, dict[str, float]]

    def member(self, split: str) -> tuple[Any, Any]:
        """What `Task.compare` takes."""
        return self.answers[split], self.tuning


def evaluate(
    found: Mapping[str, tuple[Split, Logits]],
    *,
    decode: DecodeConfig | None = None,
    tuning: Any = None,
    tuned_on: str = "",
) -> Record:
    """Answers and scores on each split; the tuning is fitted on dev unless one is given."""
    task = next(iter(found.values()))[0].task
    start = task.untuned(decode) if tuning is None else tuning
    answers = {
        name: task.answer(split.windows, logits, split.data, start) for name, (split, logits) in found.items()
    }
    if tuning is None:
        tuning, tuned_on = task.tune(answers["dev"]), found["dev"][0].name
    scores = {name: task.score(own, tuning) for name, own in answers.items()}
    return Record(task, answers, tuning, tuned_on, scores)


def record(
    folder: Path,
    found: Mapping[str, tuple[Split, Logits]],
    command: str,
    data: Mapping[str, str],
    *,
    evaluated: Record | None = None,
    config: Mapping[str, Any] | None = None,
    **how: Any,
) -> Record | None:
    """Write what a head answers and scores into its folder; without any split only how it was made.

    A command that evaluates nothing leaves what an earlier one has written. `how` goes to `evaluate`.

    Args:
        data: The data of each split, as it was named; a package loses the folders (export.py).
        config: What the card is made of, by default the folder's config.json.
    """
    path, kept = folder / "metrics.json", None
    made = {
        "commands": [plain_command(command)] if command else [],
        "data": {split: name for split, name in data.items() if name},
    }
    if found:
        kept = evaluated or evaluate(found, **how)
        for name, (split, logits) in found.items():
            file = folder / name / "logits.safetensors"
            if not file.exists():
                logits.save(file, split.fingerprint)
            kept.task.write_answers(folder / name, kept.answers[name], kept.tuning)
        tuning = {"on": kept.tuned_on} | to_mapping(kept.tuning)
        metrics = {"metric": kept.task.metric, "tuning": tuning, "scores": kept.scores, "made": made}
        write_json(path, metrics)
    elif not path.exists():
        write_json(path, {"scores": {}, "made": made})
    if config is None and (folder / "config.json").exists():
        config = read_json(folder / "config.json")
    if config is not None:
        write_text(folder / "README.md", head_card(config, read_json(path)))
    return kept


# ---- where numbers come from


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
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def commit() -> str | None:
    """The checkout's commit, where this is a checkout of bertvision; a copy has it from BERTVISION_COMMIT."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return os.environ.get("BERTVISION_COMMIT") or None
    command = ["git", "-C", str(root), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None
