"""What the library asks of a task: the only place that knows what logits mean.

A kind of task is one file of this room with a frozen dataclass derived from `Task`, decorated with `register`, and one
line in `tasks/__init__.py`. Everything else (training, evaluation, serving, reports) calls the methods below and never
asks which kind it has.

    data ──► targets ──► loss                                     while something is trained
    outputs of a head ──► collector ──► Logits ──► answer ──► Answers ──► score, compare, predictions, files
                                                     ▲            │
                                                     └── tune ◄───┘    threshold, calibration: fitted on dev

Shapes: E examples, W windows, N tokens of all windows, B windows of a batch, T tokens of a window (padded), C outputs.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from bertvision.config import from_mapping, to_mapping
from bertvision.data.load import load_data
from bertvision.data.texts import Columns
from bertvision.data.windows import Windows
from bertvision.errors import ArtifactError, ConfigError
from bertvision.tasks.compare import Difference
from bertvision.tasks.logits import Collector, Logits, RowCollector, TokenCollector
from bertvision.tasks.metrics import Metric
from bertvision.tasks.predictions import to_json
from bertvision.tasks.settings import DecodeConfig, TextConfig

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from bertvision.data.reframe import Reframe
    from bertvision.data.texts import Columns
    from bertvision.data.windows import WindowConfig
    from bertvision.states.batch import StateBatch


@dataclass(frozen=True)
class Tuning:
    """What was fitted on dev after training; a kind without such numbers has this one."""


class Task(ABC):
    """What is to be learned from examples, and what a head's outputs mean. Subclasses are frozen dataclasses."""

    kind: ClassVar[str]
    unit: ClassVar[Literal["token", "window"]]
    """What a row of logits belongs to: a token, or a window (`group` of them where an example is several)."""
    metrics: ClassVar[Mapping[str, Metric]]
    """All its metrics, in the order of the columns of a table."""
    tuning_class: ClassVar[type[Tuning]] = Tuning
    arrays: ClassVar[tuple[str, ...]] = ("values",)
    """Names of the arrays its logits must hold."""
    predicts: ClassVar[bool] = True
    """Whether heads of this kind answer anything; those that only train an encoder are neither saved nor fitted."""
    abstains: ClassVar[bool] = False
    """Whether it answers one question from many candidates, or not at all: it has a threshold, an n-best list and the
    papers' decodings, and several heads in one folder are rivals for the same answer."""
    joins: ClassVar[tuple[str, ...]] = ("mean",)
    """How the members of an ensemble may be joined, the usual way first."""
    limits: ClassVar[str] = ""
    """What a model card says that heads of this kind cannot do."""

    group: int = 1
    """Windows that are one example side by side."""
    metric: str
    """What systems are chosen and compared by."""
    classes: tuple[str, ...] = ()

    @property
    @abstractmethod
    def outputs(self) -> int:
        """C: numbers a head gives."""

    @property
    @abstractmethod
    def head(self) -> str:
        """The head that trains with an encoder where none is named."""

    @property
    def reads_questions(self) -> bool:
        """Whether its examples are questions over paragraphs."""
        return False

    @property
    def texts_read(self) -> int:
        """How many texts an example has: one, or two of a pair."""
        return 1

    # ---- from data to a task

    @classmethod
    @abstractmethod
    def of(cls, data: Any, text: TextConfig, windows: "WindowConfig") -> "Task":
        """The task a training set stands for."""

    def check_data(self, data: Any) -> None:
        """Refuse data of another task."""
        if data.kind != self.kind:
            raise ConfigError(f"{data.name} is not data of a {self.kind} task: name other data")

    def load(self, source: str, *, columns: Columns, max_examples: int | None = None) -> Any:
        """Load a dataset for this task, with its classes."""
        kind: Any = self.kind
        classes = self.classes or None
        data = load_data(source, columns=columns, task=kind, classes=classes, max_examples=max_examples)
        self.check_data(data)
        return data

    def prepare(self, data: Any, how: "Reframe") -> Any:
        """The examples of `data`, which may come from a user, as this task reads them."""
        return data

    def windows(
        self,
        data: Any,
        tokenizer: "PreTrainedTokenizerBase",
        config: "WindowConfig",
        *,
        tokenizer_fingerprint: str,
        cache: Path | None = None,
    ) -> tuple[Windows, str]:
        """The examples cut into windows, and the fingerprint of those; `cache` keeps them on disk."""
        from bertvision.data.cutting import windows_fingerprint, windows_for

        how: dict[str, Any] = {"tokenizer_fingerprint": tokenizer_fingerprint}
        windows = windows_for(data, tokenizer, config, **how, cache_dir=cache)
        return windows, windows_fingerprint(data, tokenizer, config, **how)

    def describe(self, data: Any) -> dict[str, Any]:
        """What the labels are: {"counts": {class: examples}} or {"range": {...}}."""
        return {}

    def ids(self, data: Any) -> list[str]:
        return [example.id for example in data.examples]

    def refused(self, flag: str, uses: str) -> ConfigError:
        """The error of a flag that only other kinds of tasks have a use for."""
        return ConfigError(f"{flag} is for {uses}, not for a {self.kind} task: leave it out")

    # ---- training

    @abstractmethod
    def targets(self, data: Any, windows: Windows) -> NDArray[Any]:
        """What is to be learned: (W, K) per window, or flat (N,) per token."""

    @abstractmethod
    def loss(self, logits: "Tensor", batch: "StateBatch") -> "Tensor":
        """(B,) loss of each window; an example of several windows has its loss at each of them."""

    def sampling_classes(self, data: Any, windows: Windows, bins: int) -> NDArray[np.int64]:
        """(W / group,) class of each example's windows, for sampling that balances classes."""
        raise self.refused("--sampling balanced", "classes")

    def weighted(
        self, data: Any, windows: Windows, *, balance: bool = False, null_weight: float = 1.0
    ) -> "Task":
        """The same with other weights in its loss.

        `balance` counts all classes alike, however many windows each has; `null_weight` counts a window without an
        answer so many times as much as one with it.
        """
        if balance:
            raise self.refused("--text.balance", "classes")
        if null_weight != 1:
            raise self.refused("--null-weight", "spans")
        return self

    # ---- logits

    def collector(self, windows: Windows) -> Collector:
        """What puts the outputs of batches together."""
        return TokenCollector(windows) if self.unit == "token" else RowCollector(windows, self.group)

    def check_logits(self, logits: Logits, windows: Windows) -> None:
        """Raise unless they fit the windows and are finite."""
        if self.unit == "token":
            logits.check(windows.num_tokens, self.arrays, windows.offsets)
        else:
            rows = len(windows) // self.group
            logits.check(rows, self.arrays, np.arange(rows + 1))
        values = logits.get("values")
        if values is not None and values.shape[1:] != (self.outputs,):
            raise ArtifactError(
                f"the logits have {values.shape[-1]} columns but the task has {self.outputs} outputs: "
                "they were made by a head of another task"
            )

    def join(self, members: Sequence[Logits], windows: Windows, how: str = "") -> Logits:
        """An ensemble as one set of logits."""
        raise ConfigError(f"heads of {self.kind} tasks cannot be joined")

    def join_how(self, how: str, members: Sequence[Logits] | None = None) -> str:
        """The way `members` are joined, the usual one for "" and "auto"."""
        if members is not None and not members:
            raise ConfigError("an ensemble needs the logits of at least one model")
        if how in ("", "auto"):
            return self.joins[0]
        if how not in self.joins:
            raise ConfigError(
                f"heads of a {self.kind} task are joined by {' or '.join(self.joins)}, not by {how}"
            )
        return how

    # ---- answers

    def untuned(self, decode: DecodeConfig | None = None) -> Any:
        """What holds before anything is fitted on dev; `decode` says how spans are found."""
        return self.tuning_class()

    def merged_by(self, merge: str) -> "Task":
        """The same with another way to merge the windows of a long text."""
        raise self.refused("--text-merge", "labels and scores")

    @abstractmethod
    def answer(self, windows: Windows, logits: Logits, data: Any, tuning: Any = None) -> Any:
        """The answers of all examples of `data`."""

    def tune(self, answers: Any) -> Any:
        """Fit the tuning on the answers to a held-out split."""
        return self.untuned()

    def calibrated(self, answers: Any, tuning: Any) -> Any:
        """The answers with the probabilities that a user gets."""
        return answers

    @abstractmethod
    def score(self, answers: Any, tuning: Any = None) -> dict[str, float]:
        """Every metric of the answers, by name; without a tuning it is fitted on these very answers."""

    def compare(
        self, metric: str, ours: Sequence[tuple[Any, Any]], theirs: Sequence[tuple[Any, Any]] = ()
    ) -> Difference:
        """Mean of a metric over our members minus that of theirs, with its interval; members are answers and tuning.

        Without `theirs` the metric of ours.
        """
        raise ConfigError(f"systems of a {self.kind} task cannot be compared by {metric}")

    def mcnemar(self, ours: tuple[Any, Any], theirs: tuple[Any, Any]) -> float | None:
        """McNemar's p of two members; None where no answer is simply right or wrong."""
        return None

    # ---- what a user gets

    def predictions(self, answers: Any, tuning: Any = None, *, n_best: int = 0) -> Sequence[Any]:
        """One prediction an example."""
        raise ConfigError(f"a {self.kind} task answers nothing")

    def write_answers(self, folder: Path, answers: Any, tuning: Any = None) -> None:
        """Write the predictions as files into `folder`, each in one step."""
        raise ConfigError(f"a {self.kind} task answers nothing")

    def shown_tokens(self, answers: Any) -> NDArray[np.int32] | None:
        """(t, 2) characters of the tokens that an explanation of the first example shows; None: of none."""
        return None

    def explain(
        self,
        answers: Any,
        logits: Logits,
        tuning: Any,
        chars: NDArray[np.int32],
        *,
        n_best: int = 1,
        layer: bool = False,
    ) -> dict[str, Any]:
        """What is shown of the first example's answer and of what it was made, with numbers for the tokens at `chars`.

        Of a reader of one hidden state (`layer`) only what the page draws.
        """
        (prediction,) = self.predictions(answers, tuning)
        return ({} if layer else {"kind": self.kind}) | to_json(prediction)

    # ---- what a report shows

    def judge(self, data: Any, predictions: Mapping[str, Any]) -> dict[str, Difference]:
        """Metrics and their intervals of predictions as predictions.json holds them."""
        return {}

    def details(self, answers: Any, tuning: Any = None) -> dict[str, Any]:
        """Figures of one system's answers that only this kind has, small enough for results.json."""
        return {}

    def baselines(self, train: Any, parts: Mapping[str, Any]) -> dict[str, dict[str, dict[str, float]]]:
        """Scores that can be had without learning, by name and by part of the data."""
        return {}

    def example(self, data: Any, number: int) -> dict[str, Any]:
        """One example: {"texts": [...], "truth": ...}, and "context" where it has one."""
        return {"texts": [], "truth": None}

    def said(self, answers: Any, tuning: Any = None) -> tuple[list[Any], Sequence[bool | None]]:
        """What the answers say, and whether each is right (None: neither)."""
        return [], []

    def differing(self, ours: Sequence[Any], theirs: Sequence[Any]) -> list[int]:
        """The examples of which two systems say something else."""
        return [i for i, (first, second) in enumerate(zip(ours, theirs, strict=True)) if first != second]

    def disagreements(
        self, ours: tuple[Any, Any], theirs: tuple[Any, Any], count: int = 12
    ) -> list[dict[str, Any]]:
        """A fair draw of examples on which a head and its snapshot differ; wins and losses are drawn alike."""
        (head, head_right), (snapshot, snapshot_right) = self.said(*ours), self.said(*theirs)
        chosen = self.differing(head, snapshot)
        random.Random(0).shuffle(chosen)
        data = ours[0].data
        names = self.ids(data)
        return [
            {"id": names[i]}
            | self.example(data, i)
            | {"head": head[i], "snapshot": snapshot[i]}
            | {"head_right": head_right[i], "snapshot_right": snapshot_right[i]}
            for i in chosen[:count]
        ]

    # ---- what a model card says

    @property
    def hub_task(self) -> str:
        """The Hub's name of the task."""
        return "text-classification"

    @property
    def about(self) -> str:
        """What goes in and what comes out, in a sentence or two."""
        return ""

    @property
    def call(self) -> str:
        """The arguments of `predict`."""
        return '"text"'

    # ---- its own words

    def title(self, metric: str) -> str:
        return self.metrics[metric].title

    @property
    def selecting(self) -> tuple[str, ...]:
        """The metrics systems may be compared by, the task's own first."""
        own = [name for name, metric in self.metrics.items() if metric.selects and name != self.metric]
        return (self.metric, *own)

    def cells(self, scores: Mapping[str, float], most: int = 3) -> dict[str, str]:
        """Scores as cells of a table, the task's own metric first."""
        shown = self.selecting if self.metrics[self.metric].selects else tuple(self.metrics)
        return {
            self.title(name): self.metrics[name].text(scores[name]) for name in shown[:most] if name in scores
        }

    def config(self) -> dict[str, Any]:
        """What a head's config.json keeps under "task"."""
        return {"kind": self.kind} | to_mapping(self)

    def tuning_from(self, values: Mapping[str, Any], source: str) -> Any:
        """A tuning as metrics.json holds it."""
        known = {name: value for name, value in values.items() if name != "on"}
        try:
            return from_mapping(self.tuning_class, known, source=source)
        except (ConfigError, TypeError) as error:
            raise ArtifactError(
                f"{source} holds no usable tuning ({error}): evaluate the head again"
            ) from error


# ---- the kinds

_KINDS: dict[str, type[Task]] = {}
_T = TypeVar("_T", bound=type[Task])


def register(cls: _T) -> _T:
    """Make a kind of task known."""
    if cls.kind in _KINDS:
        raise ValueError(f"a task of kind {cls.kind} is registered already")
    _KINDS[cls.kind] = cls
    return cls


def kinds() -> dict[str, type[Task]]:
    """All kinds by name, in the order they were registered."""
    return dict(_KINDS)


def task_for(data: Any, text: TextConfig, windows: "WindowConfig") -> Task:
    """The task a training set stands for."""
    return _KINDS[data.kind].of(data, text, windows)


def task_from_config(config: Any, source: str) -> Task:
    """The task that a head's config.json describes."""
    kind = config.get("kind") if isinstance(config, Mapping) else None
    if kind not in _KINDS:
        raise ArtifactError(
            f"{source} names the task {config!r}, which this version does not know: fit the head again"
        )
    values = {name: value for name, value in config.items() if name != "kind"}
    try:
        return from_mapping(_KINDS[kind], values, source=source)
    except (ConfigError, TypeError) as error:
        raise ArtifactError(f"{source} does not describe its task ({error}): fit the head again") from error
