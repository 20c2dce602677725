"""A job: one task of a fine-tuning, with its data, its head and how its examples are drawn.

Usually there is one. Several train the same encoder in turn, batch by batch (train/batching.py): each has a head of its
own, and a batch is of one job alone. A recipe names them:

    tasks:
      - {name: sst, train: ["cs224n:sst:{data}/ids-sst-train.csv"], dev: ..., head: minbert}
      - {name: quora, train: [...], dev: ..., head: minbert, loss: bce, subset: 8000, sampling: weighted}

`{data}` is a folder that the command names.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertvision.data.examples import TextData, join_texts
from bertvision.data.load import load_data
from bertvision.data.windows import WindowConfig
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ConfigError
from bertvision.heads.base import Head, head_class
from bertvision.heads.spec import HeadSpec, parse_head
from bertvision.tasks.base import Task
from bertvision.tasks.settings import PLAIN, TextConfig
from bertvision.train.batching import Batching, TaskPlan
from bertvision.train.config import JobConfig, MultitaskConfig, TaskSpec, TuneConfig
from bertvision.train.splits import Split, geometry_of, load_split, window_split


@dataclass(frozen=True)
class Job(JobConfig):
    """What one task brings to a fine-tuning."""

    train: Split
    dev: Split | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        head_class(self.spec.name, self.task.unit)

    @property
    def task(self) -> Task:
        return self.train.task

    @property
    def spec(self) -> HeadSpec:
        return parse_head(self.head or self.task.head)

    @property
    def identity(self) -> dict[str, Any]:
        """What decides its part in a result."""
        return (
            _job_fields(self) | {"train": self.train.fingerprint, "head": self.spec.label} | self.train.about
        )

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
        """How its examples are drawn: units of one window, or of those that are an example side by side."""
        group = self.task.group
        lengths = self.train.windows.lengths.reshape(-1, group).max(axis=1) * group
        classes = None
        if self.sampling != "natural":
            classes = self.task.sampling_classes(self.train.data, self.train.windows, self.bins)
        size = self.batch_size or batch_size
        return TaskPlan(lengths, size, tokens, classes, self.sampling, self.subset, group)


def plan_of(jobs: Sequence[Job], config: TuneConfig) -> Batching:
    """The steps of a run over these tasks."""
    mixing: dict[str, Any] = {}
    if isinstance(config, MultitaskConfig):
        mixing = {"order": config.order, "temperature": config.temperature}
    plans = [job.plan(config.batch_size, config.batch_tokens) for job in jobs]
    return Batching(plans, seed=config.seed, epochs=config.epochs, **mixing)


def load_jobs(
    specs: Sequence[TaskSpec],
    encoder: Encoder,
    windows: WindowConfig,
    *,
    data: str = "",
    max_examples: int | None = None,
    max_dev_examples: int | None = None,
) -> list[Job]:
    """The tasks with their data in windows; `data` stands where their sources say {data}."""

    def placed(source: str) -> str:
        if "{data}" in source and not data:
            raise ConfigError(f"the recipe names {source}: say with --data which folder {{data}} is")
        return source.replace("{data}", data.rstrip("/"))

    jobs = []
    for spec in specs:
        sources = [placed(source) for source in spec.train]
        if len(sources) == 1:
            train = load_split(sources[0], encoder, windows, max_examples=max_examples, text=spec)
        else:
            joined = load_joined(sources, spec, max_examples=max_examples)
            train = window_split(joined, encoder, windows, text=spec)
        dev = None
        if spec.dev:
            dev = load_split(placed(spec.dev), encoder, windows, max_examples=max_dev_examples, like=train)
        jobs.append(Job(train, dev, **_job_fields(spec)))
    return jobs


def _job_fields(of: JobConfig) -> dict[str, Any]:
    return {f.name: getattr(of, f.name) for f in dataclasses.fields(JobConfig)}


def load_joined(
    sources: Sequence[str], text: TextConfig = PLAIN, *, max_examples: int | None = None
) -> TextData:
    """Several sets of texts as one; the classes are those of the first."""
    parts: list[TextData] = []
    for source in sources:
        classes = parts[0].classes or None if parts else None
        found = load_data(
            source, columns=text.columns, task=text.task, classes=classes, max_examples=max_examples
        )
        if not isinstance(found, TextData):
            raise ConfigError(
                f"{source} has questions, which cannot be joined or mined: name texts with labels"
            )
        parts.append(found)
    return join_texts(parts)
