"""What is kept beside a head: its answers and logits on each split, metrics.json and its card; the one writer of them.

metrics.json   {"metric": NAME, "tuning": {"on": DATA, ...}, "scores": {SPLIT: {METRIC: VALUE}},
                "made": {"commands": [...], "data": {SPLIT: NAME}}}
SPLIT/         logits.safetensors and the task's answers
README.md      the card, as of a package: its metadata block, which the Hub reads, is made by huggingface_hub's own
               classes; what is not known is left out, and files lose their folders
"""

import os
import platform
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal

from bertvision import words
from bertvision.artifacts import read_json, write_json, write_text
from bertvision.config import to_mapping
from bertvision.model import CardConfig
from bertvision.tasks.base import DecodeConfig, Task, task_from_config
from bertvision.tasks.logits import Logits
from bertvision.train.splits import Split

_EMBEDDED = "sentence-transformers/all-MiniLM-L6-v2"
_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")
_SETTINGS = {
    "head": "Head", "states": "Hidden states", "fit": "Fit", "finetune": "Fine-tuning", "windows": "Windows",
    "reframe": "Texts",
}  # fmt: skip
"""Parts of config.json that say how a head was made."""


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
    decode: DecodeConfig | None = None,
) -> Record | None:
    """Write what a head answers and scores into its folder; without any split only how it was made.

    A command that evaluates nothing leaves what an earlier one has written.

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
        kept = evaluated or evaluate(found, decode=decode)
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


# ---- the card


def describe(
    name: str,
    task: Task,
    config: Mapping[str, Any],
    metrics: Mapping[str, Any],
    *,
    parameters: int | None,
    flops_per_token: float | None = None,
    members: int = 1,
) -> dict[str, Any]:
    """What the card says of one head, and what the Hub shows beside the model: the metrics it knows, as `EvalResult`.

    Args:
        name: Of its task.
        config: config.json; of an ensemble, that joins so many `members`, that of its first member.
        metrics: metrics.json, where "made" has commands and names of data.
    """
    from huggingface_hub import EvalResult

    made, scores = metrics.get("made") or {}, metrics.get("scores") or {}
    data = {split: file_name(one) for split, one in (made.get("data") or {}).items()}
    label = str(config.get("label") or config["head"]["name"])
    splits = sorted(scores, key=lambda split: split != "test")  # test first
    rows: dict[str, list[str]] = {}
    for metric, about in task.metrics.items():
        values = [words.finite(scores[split].get(metric)) for split in splits]
        if any(value is not None for value in values):
            title = task.title(metric) + (", %" if about.percent else "")
            rows[title] = [words.number(value, percent=about.percent) for value in values]
    results = [
        EvalResult(
            task_type=task.card.hub_task,
            # Heads of several tasks may have splits of equal names: the Hub separates them by the type.
            dataset_type=f"{name}-{data.get(split) or split}",
            dataset_name=data.get(split) or split,
            dataset_split=split,
            metric_type=about.hub,
            metric_name=f"{about.title} of {name}",
            metric_value=round(value, 4),
        )
        for split in splits
        for metric, about in task.metrics.items()
        if about.hub is not None and (value := words.finite(scores[split].get(metric))) is not None
    ]
    return {
        "name": name,
        "task": task,
        "label": f"{members} heads joined, the first of them {label}" if members > 1 else label,
        "head": config["head"]["name"],
        "parameters": parameters,
        "flops_per_token": flops_per_token,
        "made": made,
        "data": data,
        "splits": splits,
        "rows": rows,
        "results": results,
        "settings": _settings(config, metrics),
    }


def _settings(config: Mapping[str, Any], metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    groups = {title: config.get(key) or {} for key, title in _SETTINGS.items()}
    groups["Head"] = groups["Head"].get("config") or {}
    tuning = dict(metrics.get("tuning") or {})
    groups[f"Tuned on {file_name(str(tuning.pop('on', '')) or 'dev')}"] = tuning
    said = [
        (title, ", ".join(f"{name} {value}" for name, value in words.lines(facts)))
        for title, facts in groups.items()
    ]
    return [(title, text) for title, text in said if text]


@dataclass(frozen=True)
class CardEncoder:
    name: str
    public: bool
    """Whether the name is one that others know: `embedded`, or one of the Hub."""
    fingerprint: str
    parameters: int | None = None
    flops_per_token: float | None = None
    place: Literal["here", "known", "elsewhere"] = "elsewhere"
    """Whether it lies in the folder of the card, is found by its name, or must be looked for."""
    tuned: str = ""
    """How it was tuned from the encoder of that name, where it was."""

    @property
    def base_model(self) -> str | None:
        return (_EMBEDDED if self.name == "embedded" else self.name) if self.public else None


def head_card(config: Mapping[str, Any], metrics: Mapping[str, Any]) -> str:
    encoder = config.get("encoder") or {}
    name = str(encoder.get("name") or "an encoder")
    public = _HUB_NAME.fullmatch(name) is not None and not Path(name).exists()
    task = task_from_config(config.get("task"), "config.json")
    head = describe(task.kind, task, config, metrics, parameters=config.get("parameters"))
    known = CardEncoder(
        name=name if public else Path(name).name,
        public=public,
        fingerprint=str(encoder.get("fingerprint", "")),
        place="known" if public and not encoder.get("path") else "elsewhere",
        tuned="fine-tuned" if public and encoder.get("path") else "",
    )
    return card_text(head["label"], [head], known, CardConfig())


def card_text(
    title: str,
    heads: Sequence[Mapping[str, Any]],
    encoder: CardEncoder,
    card: CardConfig,
    *,
    command: str = "",
    layers: Sequence[str] = (),
    onnx: str = "",
) -> str:
    """The text of README.md; `heads` as `describe` made them.

    Args:
        command: What put them together.
        layers: The tasks whose hidden states have readers.
        onnx: What the check of the exported graph found; empty without one.
    """
    from huggingface_hub import ModelCardData

    results = [result for head in heads for result in head["results"]]
    tags = list(dict.fromkeys(head["task"].card.hub_task for head in heads))
    commands = [one for head in heads for one in head["made"].get("commands", ())]
    commands += [plain_command(command)] if command else []
    metadata = ModelCardData(
        library_name="bertvision",
        pipeline_tag=tags[0],
        tags=["bertvision", *tags, "frozen-encoder", "hidden-states"],
        base_model=encoder.base_model,
        license=card.license or None,
        datasets=list(card.datasets) or None,
        metrics=list(dict.fromkeys(result.metric_type for result in results)) or None,
        model_name=title if results else None,
        eval_results=results or None,
    )
    text = words.template(Path(__file__).with_name("card.md.j2"), escape=False).render(
        title=title,
        heads=heads,
        encoder=encoder,
        card=card,
        commands=list(dict.fromkeys(commands)),
        layers=layers,
        onnx=onnx,
        limits=list(dict.fromkeys(head["task"].card.limits for head in heads)),
        words=words,
    )
    return f"---\n{metadata}\n---\n\n{text}"


# ---- names without folders

_HUB_FLAGS = ("--push", "--datasets")
"""What follows them are names on the Hub."""
_NO_PLACES = ("hub:", "demo:")
_BEFORE = re.compile(r"(?:[\w.-]+=)?(?:[\w.-]+:)*")
"""What stands before a path: --flag=, a name of a task, a scheme."""


def file_name(name: str) -> str:
    """What a data set is called without where it lay: the last part of a path, names of the Hub as they are."""
    scheme, _, rest = name.partition(":")
    if scheme in ("glue", "cs224n", "answerable"):
        kind, _, place = rest.rpartition(":")
        return ":".join(part for part in (scheme, kind, PurePath(place).name) if part)
    return name if name.startswith(_NO_PLACES) else PurePath(name).name


def plain_command(command: str) -> str:
    """A command line without folders, whether its files were named from the root or from the working folder.

    org/name may be a folder as well as a name on the Hub, so it stays only where it cannot be one.
    """
    try:
        parts = shlex.split(command)
    except ValueError:
        return ""
    plain, flag = [], ""
    for word in parts:
        flag = word.partition("=")[0] if word.startswith("--") else flag
        before = _BEFORE.findall(word)[0]  # it matches nothing as well
        path = word[len(before) :]
        is_path = "/" in path or path.startswith("~")
        if is_path and flag not in _HUB_FLAGS and not before.endswith(_NO_PLACES):
            word = before + (PurePath(path).name or ".")
        plain.append(word)
    return shlex.join(plain)


def environment(device: str, precision: str) -> dict[str, Any]:
    import torch
    import transformers

    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "platform": platform.platform(),
        "cpu": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else device,
        "precision": precision,
    }


def commit() -> str | None:
    """The checkout's commit, where this is a checkout of bertvision; a copy has it from BERTVISION_COMMIT."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return os.environ.get("BERTVISION_COMMIT") or None
    command = ["git", "-C", str(root), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None
