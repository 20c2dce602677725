"""A part of the data (train, dev or test) with its windows and its task, and what heads answer on it.

The training data decides the task. Dev and test are read like it: with its classes, scale of scores and prompts.
"""

import contextlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertvision.config import to_mapping
from bertvision.data.cutting import default_cache_dir
from bertvision.data.load import load_data
from bertvision.data.texts import Reframe
from bertvision.data.windows import WindowConfig, Windows
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError
from bertvision.heads.base import Geometry, Head
from bertvision.states.base import LiveStates, States
from bertvision.states.store import Origin
from bertvision.tasks.base import PLAIN, DecodeConfig, Task, TextConfig, task_for
from bertvision.tasks.logits import Logits
from bertvision.tasks.span import SPAN
from bertvision.tasks.walk import head_logits


@dataclass(frozen=True)
class Split:
    data: Any
    windows: Windows
    fingerprint: str
    """Of the windows: data, tokenizer and window settings."""
    config: WindowConfig
    """The window settings."""
    task: Task = SPAN
    text: TextConfig = field(default_factory=TextConfig)
    """How its texts were read."""

    @property
    def name(self) -> str:
        return self.data.name

    def ids(self, windows: NDArray[np.int64]) -> list[str]:
        """The examples that windows belong to, each once, as a message names them."""
        names = self.task.ids(self.data)
        numbers = dict.fromkeys(self.windows.example[windows].tolist())
        return [names[i] if i < len(names) else f"number {i}" for i in numbers]

    @property
    def origin(self) -> Origin:
        """What a store of its states is called by."""
        return Origin(self.fingerprint, asdict(self.config), self.data.name)

    @property
    def about(self) -> dict[str, Any]:
        """What a head's config.json keeps of its task: what its outputs mean and how texts are asked about."""
        asked = {} if self.text.reframe == Reframe() else {"reframe": to_mapping(self.text.reframe)}
        return {"task": self.task.config()} | asked

    def describe(self) -> dict[str, Any]:
        """Its row in results.json."""
        size = {"examples": len(self.data), "windows": len(self.windows), "tokens": self.windows.num_tokens}
        return {"name": self.data.name} | size | self.task.describe(self.data)


def window_split(
    data: Any,
    encoder: Encoder,
    config: WindowConfig,
    *,
    keep: bool = True,
    task: Task | None = None,
    text: TextConfig = PLAIN,
) -> Split:
    """Cut `data` into windows, kept on disk for the next run; without `task` the data says what is learned from it."""
    learned = task is None
    if task is None:
        task = task_for(data, text, config)
    else:
        task.check_data(data)
    data = task.prepare(data, text.reframe)
    encoder.check_length(config.max_seq_length)
    cache = default_cache_dir() if keep else None
    windows, fingerprint = task.windows(data, encoder.tokenizer, config, cache=cache)
    if learned and text.balance:
        task = task.balanced(windows)
    return Split(data, windows, fingerprint, config, task=task, text=text)


def geometry_of(encoder: Encoder, task: Task, layers: Collection[int]) -> Geometry:
    """What a head for `task` on these hidden states is built for; the pooler reads the last of all."""
    pooled = task.unit == "window" and encoder.has_pooler and encoder.num_states - 1 in layers
    return Geometry(len(layers), encoder.hidden, task.outputs, task.unit, pooled)


def null_weighted(split: Split, weight: float) -> Split:
    """The same, its windows without an answer counted `weight` times as much as those with one."""
    return split if weight == 1 else replace(split, task=split.task.null_weighted(split.windows, weight))


def load_split(
    source: str,
    encoder: Encoder,
    config: WindowConfig,
    *,
    max_examples: int | None = None,
    text: TextConfig = PLAIN,
    like: Split | None = None,
) -> Split:
    """Load a dataset as the user names it, in windows; it is read like the training set `like`."""
    if like is None:
        data = load_data(source, columns=text.columns, task=text.task, max_examples=max_examples)
        return window_split(data, encoder, config, text=text)
    data = like.task.load(source, columns=like.text.columns, max_examples=max_examples)
    return window_split(data, encoder, config, task=like.task, text=like.text)


# ---- what heads answer


def logits_of(
    heads: Mapping[Path, Head], split: Split, name: str, states: Callable[[], States]
) -> dict[Path, Logits]:
    """Logits of heads (by their folders) on a split, kept as FOLDER/NAME/logits.safetensors.

    States are opened only where some are missing, damaged or of other data; all of those come from one walk.
    """
    kept: dict[Path, Logits] = {}
    for folder in heads:
        with contextlib.suppress(ArtifactError):
            kept[folder] = Logits.load(folder / name / "logits.safetensors", split.fingerprint)
    if missing := [folder for folder in heads if folder not in kept]:
        source = states()
        made = {str(folder): heads[folder].to(source.encoder.device) for folder in missing}
        for folder, logits in head_logits(source, made, split.task, label=f"evaluate {name}").items():
            logits.save(Path(folder) / name / "logits.safetensors", split.fingerprint)
            kept[Path(folder)] = logits
    return {folder: kept[folder] for folder in heads}


def dev_logits(dev: Split, head: Head, encoder: Callable[[], Encoder], folder: Path | None = None) -> Logits:
    """Logits of one head on dev, kept in its folder where there is one; the encoder is loaded where it is needed."""
    if folder is None:
        return head_logits(LiveStates(encoder(), dev.windows), {"": head}, dev.task)[""]
    return logits_of({folder: head}, dev, "dev", lambda: LiveStates(encoder(), dev.windows))[folder]


def score_logits(logits: Logits, dev: Split, decode: DecodeConfig | None = None) -> dict[str, float]:
    """Every metric of the task; a threshold is tuned on this very split."""
    answers = dev.task.answer(dev.windows, logits, dev.data, dev.task.untuned(decode))
    return dev.task.score(answers)
