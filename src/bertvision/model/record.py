"""What is kept beside a head: its answers and logits on each split, metrics.json and its card; the one writer of them.

metrics.json   {"metric": NAME, "tuning": {"on": DATA, ...}, "scores": {SPLIT: {METRIC: VALUE}},
                "made": {"commands": [...], "data": {SPLIT: NAME}}}
SPLIT/         logits.safetensors and the task's answers
README.md      the card
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertvision.artifacts import read_json, write_json, write_text
from bertvision.config import to_mapping
from bertvision.model.card import head_card
from bertvision.model.origin import plain_command
from bertvision.tasks.base import Task
from bertvision.tasks.logits import Logits
from bertvision.tasks.settings import DecodeConfig
from bertvision.train.splits import Split


@dataclass(frozen=True)
class Made:
    """How a head was made."""

    command: str = ""
    data: Mapping[str, str] = field(default_factory=dict)
    """The data of each split, as it was named; a package loses the folders (export.py)."""

    def config(self) -> dict[str, Any]:
        commands = [plain_command(self.command)] if self.command else []
        return {"commands": commands, "data": {split: name for split, name in self.data.items() if name}}


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
    made: Made,
    *,
    evaluated: Record | None = None,
    config: Mapping[str, Any] | None = None,
    **how: Any,
) -> Record | None:
    """Write what a head answers and scores into its folder; without any split only how it was made.

    A command that evaluates nothing leaves what an earlier one has written. `config` is what the card is made of, by
    default the folder's config.json; `how` goes to `evaluate`.
    """
    path, kept = folder / "metrics.json", None
    if found:
        kept = evaluated or evaluate(found, **how)
        for name, (split, logits) in found.items():
            file = folder / name / "logits.safetensors"
            if not file.exists():
                logits.save(file, split.fingerprint)
            kept.task.write_answers(folder / name, kept.answers[name], kept.tuning)
        tuning = {"on": kept.tuned_on} | to_mapping(kept.tuning)
        metrics = {"metric": kept.task.metric, "tuning": tuning, "scores": kept.scores, "made": made.config()}
        write_json(path, metrics)
    elif not path.exists():
        write_json(path, {"scores": {}, "made": made.config()})
    if config is None and (folder / "config.json").exists():
        config = read_json(folder / "config.json")
    if config is not None:
        write_text(folder / "README.md", head_card(config, read_json(path)))
    return kept
