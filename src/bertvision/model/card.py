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
from typing import TYPE_CHECKING, Any, Literal

from bertvision import words
from bertvision.model import CardConfig
from bertvision.tasks.base import Task, task_from_config

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

_EMBEDDED = "sentence-transformers/all-MiniLM-L6-v2"
_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")
_SETTINGS = {
    "head": "Head", "states": "Hidden states", "fit": "Fit", "finetune": "Fine-tuning", "windows": "Windows",
    "reframe": "Texts",
}  # fmt: skip
"""Parts of config.json that say how a head was made."""


@dataclass(frozen=True)
class CardHead:
    """What the card says of one head."""

    name: str
    """Of its task."""
    task: Task
    config: Mapping[str, Any]
    """config.json; of an ensemble that of its first member."""
    metrics: Mapping[str, Any]
    """metrics.json, where "made" has commands, names of data, and intervals of scores."""
    parameters: int | None = None
    flops_per_token: float | None = None
    members: int = 1
    """Of an ensemble, how many heads it joins."""

    @property
    def made(self) -> Mapping[str, Any]:
        return self.metrics.get("made") or {}

    @property
    def data(self) -> dict[str, str]:
        """The name of each split's data, as far as it is known."""
        return {split: file_name(name) for split, name in (self.made.get("data") or {}).items()}

    @property
    def intervals(self) -> Mapping[str, Any]:
        """Of each split, of each metric, the two ends of the 95 % interval."""
        return self.made.get("intervals") or {}

    @property
    def label(self) -> str:
        label = str(self.config.get("label") or self.config["head"]["name"])
        return f"{self.members} heads joined, the first of them {label}" if self.members > 1 else label

    @property
    def splits(self) -> dict[str, dict[str, float]]:
        """The known scores of each split, test first."""
        scores = self.metrics.get("scores") or {}
        known = {
            split: {name: number for name in own if (number := words.finite(own[name])) is not None}
            for split, own in scores.items()
        }
        return dict(sorted(known.items(), key=lambda item: item[0] != "test"))

    def score(self, split: str, metric: str) -> str:
        """A score with its interval, where there is one."""
        percent = self.task.metrics[metric].percent
        text = words.number(self.splits[split].get(metric), percent=percent)
        ends = [words.number(end, percent=percent) for end in self.intervals.get(split, {}).get(metric, ())]
        return f"{text} ({' … '.join(ends)})" if ends else text

    @property
    def metric_names(self) -> list[str]:
        return [name for name in self.task.metrics if any(name in scores for scores in self.splits.values())]

    @property
    def settings(self) -> list[tuple[str, str]]:
        """How it was made, as pairs of a title and settings."""
        groups = {title: self.config.get(key) or {} for key, title in _SETTINGS.items()}
        groups["Head"] = groups["Head"].get("config") or {}
        tuning = dict(self.metrics.get("tuning") or {})
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
    head = CardHead(task.kind, task, config, metrics, config.get("parameters"))
    known = CardEncoder(
        name=name if public else Path(name).name,
        public=public,
        fingerprint=str(encoder.get("fingerprint", "")),
        place="known" if public and not encoder.get("path") else "elsewhere",
        tuned="fine-tuned" if public and encoder.get("path") else "",
    )
    return card_text(head.label, [head], known, CardConfig(), commands=head.made.get("commands") or ())


def card_text(
    title: str,
    heads: Sequence[CardHead],
    encoder: CardEncoder,
    card: CardConfig,
    *,
    commands: Sequence[str],
    layers: Sequence[str] = (),
    onnx: str = "",
) -> str:
    """The text of README.md.

    Args:
        commands: What made it.
        layers: The tasks whose hidden states have readers.
        onnx: What the check of the exported graph found; empty without one.
    """
    from huggingface_hub import ModelCardData

    results = [result for head in heads for result in _results(head)]
    tags = list(dict.fromkeys(head.task.card.hub_task for head in heads))
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
        commands=commands,
        layers=layers,
        onnx=onnx,
        splits={split for head in heads for split in head.splits},
        limits=list(dict.fromkeys(head.task.card.limits for head in heads)),
        words=words,
    )
    return f"---\n{metadata}\n---\n\n{text}"


def _results(head: CardHead) -> "list[EvalResult]":
    """What the Hub shows beside the model: the metrics it knows, with intervals among the metric's arguments."""
    from huggingface_hub import EvalResult

    found = []
    for split, scores in head.splits.items():
        data = head.data.get(split) or split
        for name, metric in head.task.metrics.items():
            if name not in scores or metric.hub is None:
                continue
            ends = head.intervals.get(split, {}).get(name)
            result = EvalResult(
                task_type=head.task.card.hub_task,
                # Heads of several tasks may have splits of equal names: the Hub separates them by the type.
                dataset_type=f"{head.name}-{data}",
                dataset_name=data,
                dataset_split=split,
                metric_type=metric.hub,
                metric_name=f"{metric.title} of {head.name}",
                metric_value=round(scores[name], 4),
                metric_args=None if ends is None else {"interval_95": [round(end, 4) for end in ends]},
            )
            found.append(result)
    return found


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
