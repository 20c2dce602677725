"""The model card of a head, an ensemble or a package: README.md with the metadata block that the Hub reads.

The metadata is made by huggingface_hub's own classes (ModelCardData, EvalResult), which know its format; the text is
card.md.j2. What is not known is left out: a card with a gap is better than a head without a card. No place on a disk is
named: files lose their folders.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal

from bertvision import words
from bertvision.model import CardConfig
from bertvision.tasks.base import Task, task_from_config

_EMBEDDED = "sentence-transformers/all-MiniLM-L6-v2"
_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")
_SETTINGS = {
    "head": "Head", "states": "Hidden states", "fit": "Fit", "finetune": "Fine-tuning", "windows": "Windows",
    "reframe": "Texts",
}  # fmt: skip
"""Parts of config.json that say how a head was made."""


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
    """How a head was made, as pairs of a title and settings."""
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
    """What the card says of the encoder."""

    name: str
    """Without folders."""
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
    """README.md of one head's folder, from its config.json and metrics.json."""
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
