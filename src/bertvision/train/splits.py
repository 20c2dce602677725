"""A part of the data with its windows and its task: train, dev or test.

What the data is decides the task: questions with answers are spans, texts have labels or scores (`TextConfig` says how
texts are read). Dev and test are read like train: with its classes, the scale of its scores and its prompts.
"""

import hashlib
import json
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bertvision.config import from_mapping, to_mapping
from bertvision.data.columns import Columns
from bertvision.data.examples import SpanData
from bertvision.data.kept import labels_are_positions
from bertvision.data.load import load_data
from bertvision.data.reframe import Reframe, reframe
from bertvision.data.texts import TextData
from bertvision.data.triplets import TripletData, triplet_windows
from bertvision.data.window_store import default_cache_dir, windows_fingerprint, windows_for
from bertvision.data.windows import WindowConfig, Windows
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.load import tokenizer_fingerprint
from bertvision.errors import ArtifactError, ConfigError
from bertvision.states.catalogue import find_entry
from bertvision.states.config import Selection, StatesConfig
from bertvision.states.identity import Origin
from bertvision.states.store import Store, default_root, open_store
from bertvision.tasks.kinds import SPAN, SpanTask, Task, TripletTask, task_words
from bertvision.tasks.text.task import Merge, TextLoss, TextTask, task_of

__all__ = [
    "PLAIN",
    "Split",
    "TextConfig",
    "load_split",
    "null_weighted",
    "reframed",
    "task_about",
    "triplet_split",
    "window_split",
]


@dataclass(frozen=True)
class TextConfig(Columns, Reframe):
    """How texts with labels or scores are read; data sets that are known by name need none of it."""

    task: Literal["auto", "span", "label", "score"] = "auto"
    """What a table is: auto = spans where it has questions and contexts, else labels; scores must be asked for."""
    loss: Literal["auto", "ce", "bce", "mse"] = "auto"
    """ce: cross-entropy; bce: one logit for two classes; mse: scores. auto: ce or mse."""
    merge: Literal["auto", "mean", "min", "max", "any_null"] = "auto"
    """How the windows of a long text become one answer: the mean of their probabilities, the least or the greatest one
    of the positive class, or any_null, the papers' vote. auto: mean, and min for answer / no answer."""

    metric: Literal["auto", "accuracy", "f1", "mcc", "pearson", "spearman"] = "auto"
    """What heads are chosen and compared by; auto: GLUE's own for GLUE, else accuracy, and Pearson for scores."""
    positive: str = ""
    """Of two classes, the name of the one F1 is about and that --text.merge speaks of; by default the rarer one."""
    balance: bool = False
    """Count all classes alike in the loss, however many windows each has."""

    @property
    def columns(self) -> Columns:
        return Columns(**{f.name: getattr(self, f.name) for f in fields(Columns)})

    @property
    def reframe(self) -> Reframe:
        return Reframe(**{f.name: getattr(self, f.name) for f in fields(Reframe)})


PLAIN = TextConfig()


@dataclass(frozen=True)
class Split:
    data: SpanData | TextData | TripletData
    windows: Windows
    fingerprint: str
    """Of the windows: data, tokenizer and window settings."""
    config: WindowConfig
    """The window settings."""
    store: Store | None = None
    """Where its states are, if it was named by them; its data is then not known."""
    task: Task = SPAN
    text: TextConfig = field(default_factory=TextConfig)
    """How its texts were read."""

    @property
    def spans(self) -> SpanData:
        """Its data, where the task is to find spans."""
        if not isinstance(self.data, SpanData):
            raise ConfigError(
                f"{self.data.name} holds texts with a {self.task.kind}, not questions with answers"
            )
        return self.data

    @property
    def texts(self) -> TextData:
        """Its data, where the task is a label or a score."""
        if not isinstance(self.data, TextData):
            raise ConfigError(
                f"{self.data.name} holds questions with answers, not texts with labels or scores"
            )
        return self.data

    @property
    def text_task(self) -> TextTask:
        assert isinstance(self.task, TextTask)
        return self.task

    @property
    def name(self) -> str:
        return self.data.name

    def ids(self, windows: NDArray[np.int64]) -> list[str]:
        """The examples that windows belong to, each once, as a message names them."""
        numbers = dict.fromkeys(self.windows.example[windows].tolist())
        if isinstance(self.data, TripletData) or not self.data.examples:
            return [f"number {i}" for i in numbers]
        return [self.data.examples[i].id for i in numbers]

    def states(self, config: StatesConfig) -> StatesConfig:
        """`config`, but with what its store holds where it was named by that."""
        if self.store is None:
            return config
        identity = self.store.identity
        return StatesConfig.of(config, Selection(identity.layers, identity.positions))

    @property
    def origin(self) -> Origin:
        """What a store of its states is called by."""
        return Origin(self.fingerprint, self.config.settings, self.data.name)

    def describe(self) -> dict[str, int | str]:
        """Its row in the report."""
        told: dict[str, Any] = {"name": self.data.name, "examples": len(self.data)}
        if isinstance(self.data, SpanData):
            told["unanswerable"] = sum(not example.answerable for example in self.data.examples)
        elif isinstance(self.data, TextData) and self.data.classes:
            labels = [example.label for example in self.data.examples]
            told["classes"] = {name: labels.count(i) for i, name in enumerate(self.data.classes)}
        return told | {"windows": len(self.windows), "tokens": self.windows.num_tokens}


def task_about(split: Split) -> dict[str, Any]:
    """What a head's config.json keeps of its task: how texts are asked about, and what its outputs mean."""
    asked = {} if split.text.reframe == Reframe() else {"reframe": to_mapping(split.text.reframe)}
    return {"task": task_words(split.task)} | asked


def reframed(data: TextData, text: TextConfig) -> TextData:
    """The texts as they are asked about: put into the prompt and the template where there are some."""
    return data if text.reframe == Reframe() else reframe(data, text.reframe)


def window_split(
    data: SpanData | TextData,
    encoder: Encoder,
    config: WindowConfig,
    *,
    keep: bool = True,
    task: Task | None = None,
    text: TextConfig = PLAIN,
) -> Split:
    """Cut `data` into windows for `encoder`; `keep` stores them on disk for the next run.

    Texts are asked about as `text` says. Without `task` the data says what is to be learned from it.
    """
    learned = task is None
    if isinstance(data, TextData):
        if config.apart and text.reframe != Reframe():
            raise ConfigError(
                "--apart reads two texts by themselves: leave it out, or --text.prompt and --text.context"
            )
        if task is None:
            loss: TextLoss | None = None if text.loss == "auto" else text.loss
            merge: Merge | None = None if text.merge == "auto" else text.merge
            chosen = _judged(data, text)
            task = task_of(chosen, loss=loss, merge=merge, group=2 if config.apart and data.pairs else 1)
        elif isinstance(task, TextTask) and task.pairs != data.pairs:
            ours, theirs = ("pairs of texts", "single texts")[:: 1 if data.pairs else -1]
            raise ConfigError(
                f"{data.name} has {ours}, and the task is about {theirs}: name data of its kind"
            )
        data = reframed(data, text)
    encoder.check_length(config.max_seq_length)
    tokenizer, identity = encoder.tokenizer, tokenizer_fingerprint(encoder.tokenizer)
    windows = windows_for(
        data,
        tokenizer,
        config,
        tokenizer_fingerprint=identity,
        cache_dir=default_cache_dir() if keep else None,
    )
    fingerprint = windows_fingerprint(data, tokenizer, config, tokenizer_fingerprint=identity)
    if learned and text.balance:
        task = _balanced(task, windows, data.name)
    return Split(data, windows, fingerprint, config, task=task or SPAN, text=text)


def _judged(data: TextData, text: TextConfig) -> TextData:
    """The data with the metric and the positive class that were asked for."""
    if text.metric != "auto":
        fitting = ("pearson", "spearman") if data.kind == "score" else ("accuracy", "f1", "mcc")
        if text.metric not in fitting:
            raise ConfigError(
                f"--text.metric {text.metric} does not suit {data.name}: use {', '.join(fitting)}"
            )
        data = replace(data, metric=text.metric)
    if text.positive:
        if len(data.classes) != 2 or text.positive not in data.classes:
            known = ", ".join(data.classes) or "none"
            raise ConfigError(
                f"--text.positive {text.positive} must be one of two classes; {data.name} has {known}"
            )
        data = replace(data, positive=data.classes.index(text.positive))
    return data


def _balanced(task: Task | None, windows: Windows, name: str) -> TextTask:
    """The same with weights of classes: those of all windows of a class add up to the same."""
    if not isinstance(task, TextTask) or task.kind != "label":
        raise ConfigError(f"--text.balance is for classes, and {name} has none: leave it out")
    counts = np.bincount(windows.labels[windows.labels[:, 0] >= 0, 0], minlength=len(task.classes))
    weights = [counts.sum() / (len(counts) * count) if count else 0.0 for count in counts]
    return replace(task, weights=tuple(float(weight) for weight in weights))


def null_weighted(split: Split, weight: float) -> Split:
    """The same to train on, its windows without an answer counted `weight` times as much as those with one.

    The mean over all windows stays 1, so that rates mean what they meant.
    """
    if weight == 1:
        return split
    if not isinstance(split.task, SpanTask):
        way = "use --text.balance" if split.task.kind == "label" else "leave it out"
        raise ConfigError(f"--null-weight is for spans, and {split.name} has a {split.task.kind}: {way}")
    without = int((split.windows.labels[:, 0] == split.windows.null).sum())
    count = len(split.windows)
    unit = count / (count - without + weight * without) if count else 1.0
    return replace(split, task=replace(split.task, weights=(unit, weight * unit)))


def triplet_split(data: TripletData, encoder: Encoder, config: WindowConfig, task: TripletTask) -> Split:
    """Triplets in windows, those of a triplet side by side."""
    encoder.check_length(config.max_seq_length)
    windows = triplet_windows(data, encoder.tokenizer, config)
    parts = [data.fingerprint, tokenizer_fingerprint(encoder.tokenizer), to_mapping(config), to_mapping(task)]
    fingerprint = hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()
    return Split(data, windows, fingerprint, config, task=task)


def load_split(
    source: str,
    encoder: Encoder,
    config: WindowConfig,
    *,
    max_examples: int | None = None,
    stores: str = "",
    text: TextConfig = PLAIN,
    like: Split | None = None,
) -> Split:
    """Load a data set as the user names it and cut it into windows; store:KEY is one of `stores`.

    `like` is the training set whose classes, scale and prompts this one shares.
    """
    if source.startswith("store:"):
        if max_examples is not None:
            raise ConfigError(f"--train {source} is read as a whole: leave out --max-train-examples")
        return _stored_split(source.removeprefix("store:"), encoder, stores or default_root())
    text = text if like is None else like.text
    known = like.task if like is not None else None
    wanted = known.kind if known is not None and known.kind != "triplet" else text.task
    data = load_data(
        source,
        columns=text.columns,
        task=wanted,
        classes=known.classes if isinstance(known, TextTask) else None,
        max_examples=max_examples,
    )
    if known is not None and isinstance(known, SpanTask) != isinstance(data, SpanData):
        raise ConfigError(
            f"{source} is not of the task of {like.name if like else ''}, {known.kind}: name other data"
        )
    return window_split(data, encoder, config, task=known, text=text)


def _stored_split(name: str, encoder: Encoder, root: str | Path) -> Split:
    """The windows of a store. Their states are there, so neither texts nor tokenizer are needed."""
    entry = find_entry(root, name)
    store = open_store(entry.files, entry.key)
    identity = store.identity
    if (identity.encoder, identity.configuration) != (encoder.fingerprint, encoder.configuration):
        raise ArtifactError(
            f"{store.files.address} holds states of {store.encoder} (fingerprint {identity.encoder[:12]}), "
            f"not of {encoder.name} ({encoder.fingerprint[:12]}): name the encoder it was made with"
        )
    if not labels_are_positions(store.windows):
        raise ConfigError(
            f"--train store:{name} has states of texts, but not what their labels mean: name the data instead, its "
            "states are found by it"
        )
    config = from_mapping(WindowConfig, identity.preprocessing, source=store.files.address)
    data = SpanData([], [], store.data)
    return Split(data, store.windows, identity.windows, config, store)
