"""A part of the data with its task (a split), a job (one task of a fine-tuning), and the plan of a run.

The training data decides the task. Dev and test are read like it: with its classes, scale of scores and prompts.

A job is a split, its head and how examples are drawn. Usually there is one. Several train the same encoder in turn:
each has a head of its own, and a batch is of one job alone. Which windows a step reads is a pure function of data,
settings and step. A job's units (examples: one window, or as many as belong together) are drawn and put into batches of
similar length:

    natural     every unit once
    balanced    every class equally often, a rare class going round (states/plan.py)
    weighted    with replacement, each unit with weight 1 / count(its class)

With `subset` an epoch has so many units of the job, drawn anew every epoch. Batches of several jobs come in one of
three orders:

    sequential    job after job, as they are given
    mixed         all batches of all jobs, shuffled
    temperature   as many batches as mixed; each one's job is drawn with p_i ~ n_i ** (1 / temperature), n_i the units
                  of job i in an epoch: 1 is in proportion, infinity treats all jobs alike. A job that runs out starts
                  again, a large one does not come to its end.

A single natural or balanced job has the batches of `epoch_batches`. With batches by tokens the number of steps differs
a little from epoch to epoch, and fractions of an epoch are fractions of its own steps.
"""

import contextlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertvision.config import part_of, to_mapping
from bertvision.data.cutting import default_cache_dir
from bertvision.data.load import load_data
from bertvision.data.texts import Reframe
from bertvision.data.windows import WindowConfig, Windows
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError, ConfigError
from bertvision.heads.base import Geometry, Head, head_class
from bertvision.heads.spec import HeadSpec, parse_head
from bertvision.states.base import LiveStates, States
from bertvision.states.plan import balanced_order, epoch_batches, group_rows
from bertvision.states.store import Origin
from bertvision.tasks.base import PLAIN, DecodeConfig, Task, TextConfig, task_for
from bertvision.tasks.logits import Logits
from bertvision.tasks.span import SPAN
from bertvision.tasks.walk import head_logits
from bertvision.train.config import FinetuneConfig, JobConfig, MixOrder, MultitaskConfig, Sampling, TuneConfig


@dataclass(frozen=True)
class Split:
    data: Any
    windows: Windows
    fingerprint: str  # of the windows: data, tokenizer and window settings
    config: WindowConfig  # the window settings
    task: Task = SPAN
    text: TextConfig = field(default_factory=TextConfig)  # how its texts were read

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


Batch = tuple[int, NDArray[np.int64]]  # number of the job, and its windows (of `mix_epoch`: its units)

_DRAW = 1 << 32
"""A stream of random numbers beside [seed, epoch], that of `epoch_batches`. numpy ignores trailing zeros, so
[seed, epoch, 0] would be the same stream: a draw and the order of its batches would follow from the same numbers."""


@dataclass(frozen=True, eq=False)
class TaskPlan:
    """How one job is drawn from. Padded tokens of several windows are their number times the longest."""

    lengths: NDArray[np.int64]  # (U,) padded tokens of each unit
    batch_size: int  # units in a batch
    tokens: int = 0  # padded tokens of a batch instead
    classes: NDArray[np.int64] | None = None  # (U,) class of each unit; None with natural sampling
    sampling: Sampling = "natural"
    subset: int = 0
    group: int = 1  # windows of a unit, which are neighbours

    def __post_init__(self) -> None:
        if len(self.lengths) == 0:
            raise ConfigError("a task has no examples to train on: check its training set")

    @property
    def units(self) -> int:
        """Units of one epoch."""
        return min(self.subset or len(self.lengths), len(self.lengths))


@dataclass(frozen=True)
class Job(JobConfig):
    """What one task brings to a fine-tuning."""

    train: Split
    dev: Split | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        head_class(self.spec.name, self.task.unit)

    @classmethod
    def only(cls, train: Split, dev: Split | None, config: FinetuneConfig) -> "Job":
        """The job of a fine-tuning for one task."""
        train = null_weighted(train, config.null_weight)
        return cls(train, dev, head=config.head, sampling=config.sampling)

    @property
    def task(self) -> Task:
        return self.train.task

    @property
    def spec(self) -> HeadSpec:
        return parse_head(self.head or self.task.head)

    @property
    def identity(self) -> dict[str, Any]:
        """What decides its part in a result."""
        settings = vars(part_of(JobConfig, self))
        return settings | {"train": self.train.fingerprint, "head": self.spec.label} | self.train.about

    def build(self, encoder: Encoder, *, seed: int) -> Head:
        """Its head; one that reads another number of windows at once than its data has side by side is refused."""
        made = self.spec.build(geometry_of(encoder, self.task, range(encoder.num_states)), seed=seed)
        if made.windows != self.task.group:
            way = "give it --apart" if made.windows == 2 else "name one that does, such as minbert:vectors=2"
            raise ConfigError(
                f"--head {self.spec.label} reads {made.windows} window{'s' * (made.windows > 1)} of an example, and "
                f"{self.train.name} has {self.task.group} side by side: {way}"
            )
        return made

    def folder(self, snapshot: Path) -> Path:
        """Where its head is kept in a snapshot."""
        return snapshot / "heads" / self.name if self.name else snapshot / "head"

    def plan(self, batch_size: int, tokens: int) -> TaskPlan:
        """How its examples are drawn; refuses a task that has no classes to draw by."""
        group, classes = self.task.group, None
        lengths = self.train.windows.lengths.reshape(-1, group).max(axis=1) * group
        if self.sampling != "natural":
            classes = self.task.sampling_classes(self.train.windows, self.bins)
        size = self.batch_size or batch_size
        return TaskPlan(lengths, size, tokens, classes, self.sampling, self.subset, group)


class Batching:
    """The steps of a run over one job or several."""

    def __init__(self, jobs: Sequence[Job], config: TuneConfig) -> None:
        plans = [job.plan(config.batch_size, config.batch_tokens) for job in jobs]
        several = isinstance(config, MultitaskConfig)
        order, temperature = (config.order, config.temperature) if several else ("sequential", 1.0)

        def batches(epoch: int) -> list[Batch]:
            mixed = mix_epoch(plans, order=order, temperature=temperature, seed=config.seed, epoch=epoch)
            return [(number, group_rows(units, plans[number].group)) for number, units in mixed]

        self.batches = lru_cache(maxsize=2)(batches)  # of the present epoch, and the next
        steady = sum(math.ceil(plan.units / plan.batch_size) for plan in plans)
        varies = any(plan.tokens for plan in plans)
        counts = [len(batches(epoch)) if varies else steady for epoch in range(math.ceil(config.epochs))]
        self._begins = np.cumsum([0, *counts]).tolist()  # the step at which each epoch begins

    def step_of(self, fraction: float) -> int:
        """Steps done when so many epochs are; at least one."""
        return max(1, round(np.interp(fraction, range(len(self._begins)), self._begins)))

    def place(self, step: int) -> tuple[int, int]:
        """The epoch a step belongs to and its number in it."""
        epoch = int(np.searchsorted(self._begins, step, side="right")) - 1
        return epoch, step - self._begins[epoch]

    def epochs_done(self, step: int) -> float:
        """The opposite of `step_of`."""
        epoch, number = self.place(step)
        return epoch + number / len(self.batches(epoch))

    def steps(self, begin: int, end: int) -> Iterator[Batch]:
        """The batches of the steps from `begin` to before `end`."""
        while begin < end:
            epoch, number = self.place(begin)
            own = self.batches(epoch)[number : number + end - begin]
            yield from own
            begin += len(own)


def mix_epoch(
    plans: Sequence[TaskPlan], *, order: MixOrder, temperature: float = 1.0, seed: int, epoch: int
) -> list[Batch]:
    """(number of the job, its units) batch after batch, for one epoch."""
    batches = [_batches(plan, seed, number, epoch) for number, plan in enumerate(plans)]
    listed = [(number, batch) for number, own in enumerate(batches) for batch in own]
    if order == "sequential":
        return listed
    rng = np.random.default_rng([seed, epoch, len(plans)])
    if order == "mixed":
        return [listed[i] for i in rng.permutation(len(listed))]
    sizes = np.log([plan.units for plan in plans]) / temperature  # as logarithms: no power runs over
    shares = np.exp(sizes - sizes.max())
    tasks = rng.choice(len(plans), size=len(listed), p=shares / shares.sum()).tolist()
    endless = [_endless(plan, seed, number, epoch) for number, plan in enumerate(plans)]
    return [(task, next(endless[task])) for task in tasks]


def _endless(plan: TaskPlan, seed: int, number: int, epoch: int) -> Iterator[NDArray[np.int64]]:
    """The batches of one job, drawn anew each time they are used up."""
    for turn in count():
        yield from _batches(plan, seed, number, epoch, turn)


def _batches(plan: TaskPlan, seed: int, number: int, epoch: int, turn: int = 0) -> list[NDArray[np.int64]]:
    """The batches of one job, on its `turn`-th way through an epoch."""
    if number or turn:  # the first turn of the first job has the batches a job alone has
        seed = int(np.random.SeedSequence([seed, number, turn]).generate_state(1, np.uint64)[0])
    units, classes = _drawn(plan, np.random.default_rng([seed, epoch, _DRAW]))
    found = epoch_batches(
        plan.lengths[units], plan.batch_size, seed=seed, epoch=epoch, classes=classes, tokens=plan.tokens
    )
    return [units[batch] for batch in found]


def _drawn(plan: TaskPlan, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """The units of an epoch, and their classes where they are still to be balanced."""
    total, size = len(plan.lengths), plan.units
    if plan.classes is None or plan.sampling == "natural":
        return np.arange(total) if size == total else np.sort(rng.permutation(total)[:size]), None
    if plan.sampling == "weighted":
        _, own, counts = np.unique(plan.classes, return_inverse=True, return_counts=True)
        weights = 1 / counts[own]
        return rng.choice(total, size=size, p=weights / weights.sum()), None
    if size == total:
        return np.arange(total), plan.classes
    order = balanced_order(plan.classes, rng)
    member = plan.classes[order][:, None] == np.unique(plan.classes)  # (U, classes)
    rank = member.cumsum(axis=0)[member]  # of each unit in its class: sorted by it, classes take turns
    return order[np.argsort(rank, kind="stable")[:size]], None
