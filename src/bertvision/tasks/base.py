"""What the library asks of a task: the only place that knows what logits mean.

A kind of task is one file of this room with a frozen dataclass derived from `Task`, decorated with `register`, and one
line in `tasks/__init__.py`. Everything else (training, evaluation, serving, reports) calls the methods below and never
asks which kind it has.

    labels of windows ──► loss                                    while something is trained
    outputs of a head ──► collector ──► Logits ──► answer ──► Answers ──► score, compare, predictions, files
                                                     ▲            │
                                                     └── tune ◄───┘    threshold, calibration: fitted on dev

Answers are of all examples of a dataset, in a form of their own for each kind; `member` means answers with the tuning
that goes with them.

Shapes: E examples, W windows, N tokens of all windows, B windows of a batch, T tokens of a window (padded), C outputs.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from bertvision.config import from_mapping, to_mapping
from bertvision.data.load import load_data
from bertvision.data.texts import Columns, Reframe, TableConfig
from bertvision.data.windows import WindowConfig, Windows
from bertvision.errors import ArtifactError, ConfigError
from bertvision.tasks.logits import Collector, Logits
from bertvision.tasks.metrics import Difference, Metric

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from bertvision.states.base import StateBatch


Merge = Literal["mean", "min", "max", "any_null"]
Decoding = Literal["google", "nbest", "bertvision"]
Merging = Literal["min", "max", "prod_max", "any_null"]

_OWN_MERGING: dict[str, Merging] = {"google": "min", "nbest": "max", "bertvision": "prod_max"}


@dataclass(frozen=True)
class TextConfig(TableConfig):
    """How texts with labels or scores are read; datasets that are known by name need none of it."""

    loss: str = "auto"
    """ce: cross-entropy; bce: one logit for two classes; mse: scores. auto: ce or mse."""
    merge: Literal["auto", "mean", "min", "max", "any_null"] = "auto"
    """How the windows of a long text become one answer: the mean of their probabilities, the least or the greatest one
    of the positive class, or any_null, the papers' vote. auto: mean, and min for answer / no answer."""
    metric: str = "auto"
    """What heads are chosen and compared by: accuracy, f1 or mcc for labels, pearson or spearman for scores. auto:
    GLUE's own for GLUE, else accuracy, and Pearson for scores."""
    positive: str = ""
    """Of two classes, the name of the positive one, whose F1 is reported and that --text.merge refers to; by default
    the rarer one."""
    balance: bool = False
    """Count all classes alike in the loss, however many windows each has."""

    @property
    def learning(self) -> "TextConfig":
        """The same without what only says how the source is read."""
        names = ("loss", "merge", "metric", "positive", "balance")
        return TextConfig(**{name: getattr(self, name) for name in names})


PLAIN = TextConfig()


@dataclass(frozen=True)
class DecodeConfig:
    """How the logits of spans become answers (span_decode.py)."""

    decoding: Decoding = "google"
    """How a window's logits become candidates: the n best valid spans, with (google) or without (nbest)
    the max-context rule, or the paper's independent argmaxes (bertvision)."""
    merging: Merging | None = None
    """How the windows of a question agree on no answer: its lowest (min) or highest (max) score over the
    windows, the highest-scoring window of all (prod_max), or no answer as soon as one window says so
    (any_null). By default that of the decoding: min for google, max for nbest, prod_max for bertvision."""
    n_best_size: int = 20
    """How many starts and ends are paired in a window, and how many candidates a question keeps."""
    max_answer_length: int = 30
    """The most tokens an answer may have; not used by bertvision decoding."""
    null_score_diff_threshold: float = 0.0
    """No answer is predicted where its score exceeds the best candidate's by more than this."""
    max_context: bool = True
    """Accept a span only from the window that shows the most context around its first token; google only."""

    def __post_init__(self) -> None:
        if self.n_best_size < 1:
            raise ConfigError(f"--n-best-size must be at least 1, not {self.n_best_size}")
        if self.max_answer_length < 1:
            raise ConfigError(f"--max-answer-length must be at least 1 token, not {self.max_answer_length}")
        if not math.isfinite(at := self.null_score_diff_threshold):
            raise ConfigError(f"--null-score-diff-threshold must be a finite number, not {at}")

    @property
    def resolved_merging(self) -> Merging:
        return self.merging or _OWN_MERGING[self.decoding]


Member = tuple[Any, Any]  # answers and their tuning
Baselines = dict[str, dict[str, dict[str, float]]]
"""Scores by name of a baseline, by part of the data, by metric."""


@dataclass(frozen=True)
class Tuning:
    """What was fitted on dev after training; a kind without such numbers has this one."""


@dataclass(frozen=True)
class CardText:
    """What a model card says of a task."""

    hub_task: str  # the Hub's name of the task
    call: str  # the arguments of `predict`
    about: str  # what goes in and what comes out
    limits: str  # what heads of this kind cannot do


class Task(ABC):
    """What is to be learned from examples, and what a head's outputs mean. Subclasses are frozen dataclasses."""

    kind: ClassVar[str]
    unit: ClassVar[Literal["token", "window"]]  # what a row of logits belongs to: a token, or `group` windows
    metrics: ClassVar[Mapping[str, Metric]]  # in the order of the columns of a table
    tuning_class: ClassVar[type[Tuning]] = Tuning
    predicts: ClassVar[bool] = True
    """Whether heads of this kind answer anything; those that only train an encoder are neither saved nor fitted, and
    need none of the methods about answers below `score`."""
    abstains: ClassVar[bool] = False
    """Whether it answers one question from many candidates, or not at all: it has a threshold, an n-best list and the
    papers' decodings, and several heads in one folder are rivals for the same answer."""
    joins: ClassVar[tuple[str, ...]] = ("mean",)  # how an ensemble is joined, the usual way first

    outputs: int  # C: numbers a head gives
    head: str  # the head that trains with an encoder where none is named
    card: CardText
    metric: str  # what systems are chosen and compared by
    group: int = 1  # windows that are one example side by side
    classes: tuple[str, ...] = ()
    pairs: bool = False  # whether its examples are pairs of texts, before any prompt is put in front
    asks: bool = False  # whether its examples are questions over paragraphs

    @property
    def texts_read(self) -> int:
        return 2 if self.pairs or self.asks else 1

    # ---- from data to a task

    @classmethod
    @abstractmethod
    def of(cls, data: Any, text: TextConfig, windows: WindowConfig) -> "Task":
        """The task a training set stands for."""

    def check_data(self, data: Any) -> None:
        if data.kind != self.kind:
            raise ConfigError(f"{data.name} is not data of a {self.kind} task: name other data")

    def load(self, source: str, *, columns: Columns, max_examples: int | None = None) -> Any:
        how: Any = {"task": self.kind, "classes": self.classes or None, "max_examples": max_examples}
        data = load_data(source, columns=columns, **how)
        self.check_data(data)
        return data

    def prepare(self, data: Any, how: Reframe) -> Any:
        """The examples of `data`, which may come from a user, as this task reads them."""
        return data

    def windows(
        self, data: Any, tokenizer: "PreTrainedTokenizerBase", config: WindowConfig, *, cache: Path | None
    ) -> tuple[Windows, str]:
        """The examples cut into windows, and the fingerprint of those; `cache` keeps them on disk."""
        from bertvision.data.cutting import windows_for
        from bertvision.encoder.load import tokenizer_fingerprint

        return windows_for(
            data, tokenizer, config, tokenizer_fingerprint=tokenizer_fingerprint(tokenizer), cache_dir=cache
        )

    def describe(self, data: Any) -> dict[str, Any]:
        """What the labels are: {"counts": {class: examples}} or {"range": {...}}."""
        return {}

    def ids(self, data: Any) -> list[str]:
        return [example.id for example in data.examples]

    def refused(self, flag: str, uses: str) -> ConfigError:
        return ConfigError(f"{flag} is for {uses}, not for a {self.kind} task: leave it out")

    # ---- training

    @abstractmethod
    def loss(self, logits: "Tensor", batch: "StateBatch") -> "Tensor":
        """(B,) loss of each window; an example of several windows has its loss at each of them."""

    def sampling_classes(self, windows: Windows, bins: int) -> NDArray[Any]:
        """(W / group,) class of each example's windows, for sampling that balances classes."""
        raise self.refused("--sampling balanced", "classes")

    def balanced(self, windows: Windows) -> "Task":
        """The same with a loss that counts all classes alike, however many windows each has."""
        raise self.refused("--text.balance", "classes")

    def null_weighted(self, windows: Windows, weight: float) -> "Task":
        """The same with a loss that counts a window without an answer `weight` times as much as one with it."""
        raise self.refused("--null-weight", "spans")

    # ---- logits

    def collector(self, windows: Windows) -> Collector:
        return Collector(windows, self.group)

    def check_logits(self, logits: Logits, windows: Windows) -> None:
        """Raise unless logits of windows are finite and fit them and the outputs of the task."""
        logits.check(("values",), np.arange(len(windows) // self.group + 1))
        if (found := logits["values"].shape[1]) != self.outputs:
            raise ArtifactError(
                f"the logits have {found} columns but the task has {self.outputs} outputs: "
                "they were made by a head of another task"
            )

    def join_how(self, how: str) -> str:
        """The way to join the members of an ensemble, the usual one for "" and "auto"."""
        if how and how != "auto" and how not in self.joins:
            ways = " or ".join(self.joins)
            raise ConfigError(f"heads of a {self.kind} task are joined by {ways}, not by {how}")
        return how if how in self.joins else self.joins[0]

    # ---- answers

    def untuned(self, decode: DecodeConfig | None = None) -> Any:
        """What holds before anything is fitted on dev; `decode` says how spans are found."""
        return self.tuning_class()

    def merged_by(self, merge: str) -> "Task":
        raise self.refused("--text-merge", "labels and scores")

    @abstractmethod
    def answer(self, windows: Windows, logits: Logits, data: Any, tuning: Any = None) -> Any:
        """The answers of all examples of `data`."""

    def tune(self, answers: Any) -> Any:
        return self.untuned()

    @abstractmethod
    def score(self, answers: Any, tuning: Any = None) -> dict[str, float]:
        """Every metric of the answers, by name; without a tuning it is fitted on these very answers."""

    def calibrated(self, answers: Any, tuning: Any) -> Any:
        """The answers with the probabilities that a user gets."""
        return answers

    def join(self, members: Sequence[Logits], windows: Windows, how: str = "") -> Logits:
        raise NotImplementedError(self.kind)

    def compare(self, metric: str, ours: Sequence[Member], theirs: Sequence[Member] = ()) -> Difference:
        """Mean of a metric over our members minus that of theirs, with its interval; without `theirs` that of ours."""
        raise NotImplementedError(self.kind)

    def mcnemar(self, ours: Member, theirs: Member) -> float | None:
        """McNemar's p of two members; None where no answer is simply right or wrong."""
        return None

    # ---- what a user gets

    def predictions(self, answers: Any, tuning: Any = None, *, n_best: int = 0) -> Sequence[Any]:
        """One prediction an example: a dataclass with `kind` and `line()`."""
        raise NotImplementedError(self.kind)

    def write_answers(self, folder: Path, answers: Any, tuning: Any = None) -> None:
        """Write the predictions as files into `folder`, each in one step."""
        raise NotImplementedError(self.kind)

    def shown_tokens(self, answers: Any) -> NDArray[Any] | None:
        """(t, 2) characters of the tokens that an explanation of the first example shows; None: of none."""
        return None

    def explain(
        self, member: Member, logits: Logits, chars: NDArray[Any], *, n_best: int = 1, layer: bool = False
    ) -> dict[str, Any]:
        """What is shown of the first example's answer, with numbers for the tokens at `chars`; of a reader of one
        hidden state (`layer`) only what the page draws."""
        (prediction,) = self.predictions(*member)
        return ({} if layer else {"kind": self.kind}) | to_json(prediction)

    # ---- what a report shows

    def details(self, answers: Any, tuning: Any = None) -> dict[str, Any]:
        """Figures of one system's answers that only this kind has, small enough for results.json."""
        return {}

    def baselines(self, train: Any, parts: Mapping[str, Any]) -> Baselines:
        """Scores that can be had without learning."""
        return {}

    def examples(self, member: Member) -> list[dict[str, Any]]:
        """Every example: {"id", "texts": [...], "truth", "said" (the answer), "right"}, and "context" where it has one;
        "right" is null where an answer is more or less right."""
        return []

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

    # ---- on disk

    def config(self) -> dict[str, Any]:
        """What a head's config.json keeps under "task"."""
        return {"kind": self.kind} | to_mapping(self)

    def tuning_from(self, values: Mapping[str, Any], source: str) -> Any:
        return _read(self.tuning_class, values, source, "tuning", "on", "evaluate the head again")


def to_json(prediction: Any) -> dict[str, Any]:
    """A prediction as JSON; candidates stand there only where some were asked for."""
    return {name: value for name, value in asdict(prediction).items() if value or name != "nbest"}


def check_n_best(count: int) -> None:
    if count < 0:
        raise ConfigError(f"--n-best must not be negative, not {count}: 0 lists the answer alone")


KINDS: dict[str, type[Task]] = {}  # by name, in the order they were registered
_T = TypeVar("_T", bound=type[Task])


def register(cls: _T) -> _T:
    KINDS[cls.kind] = cls
    return cls


def task_for(data: Any, text: TextConfig, windows: WindowConfig) -> Task:
    return KINDS[data.kind].of(data, text, windows)


def task_from_config(config: Any, source: str) -> Task:
    kind = config.get("kind") if isinstance(config, Mapping) else None
    if kind not in KINDS:
        raise ArtifactError(
            f"{source} names the task {config!r}, which this version does not know: fit the head again"
        )
    return _read(KINDS[kind], config, source, "task", "kind", "fit the head again")


def _read(cls: Any, values: Mapping[str, Any], source: str, what: str, but: str, way_out: str) -> Any:
    """The dataclass `cls` of stored values, of which `but` is no field."""
    try:
        return from_mapping(cls, {k: v for k, v in values.items() if k != but}, source=source)
    except (ConfigError, TypeError) as error:
        raise ArtifactError(f"{source} holds no usable {what} ({error}): {way_out}") from error
