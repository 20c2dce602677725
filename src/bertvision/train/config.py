"""Settings of training. This module imports no torch: `--help` reads it.

OptimConfig                   optimiser, schedule, seed; what one head is fitted with
  TrainConfig                 + batches, checkpoints, trackers
    FitConfig                 heads on the states of a frozen encoder
    TuneConfig                an encoder and what trains with it
      FinetuneConfig          for one task, with its DrawConfig
      MultitaskConfig         for several, each a TaskSpec
DrawConfig                    the head of a task and how its examples are drawn
  JobConfig, TaskSpec         + what one of several has
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from bertvision.config import part_of, to_mapping
from bertvision.encoder.policy import parse_policy
from bertvision.errors import ConfigError
from bertvision.heads.spec import HeadSpec, TrainOverrides, expand, parse_head
from bertvision.tasks.base import TextConfig

Tracker = Literal["tensorboard", "wandb", "trackio", "mlflow"]
Sampling = Literal["natural", "balanced", "weighted"]
MixOrder = Literal["sequential", "mixed", "temperature"]

Rule = tuple[Callable[[Any], bool], str]
_POSITIVE: Rule = (lambda x: 0 < x < math.inf, "a finite number above 0")
_NOT_NEGATIVE: Rule = (lambda x: 0 <= x < math.inf, "finite and not negative")
_AT_LEAST_ONE: Rule = (lambda x: x >= 1, "at least 1")
_RULES: dict[str, Rule] = {
    # Adam's first step is ten times the rate, and float32 ends at 3e38.
    "lr": (lambda x: 0 < x <= 1e36, "above 0 and at most 1e36"),
    "warmup": (lambda x: 0 <= x < 1, "at least 0 and below 1, a part of all steps"),
    "seed": (lambda x: 0 <= x < 2**63, "at least 0 and below 2**63"),
    "temperature": (lambda x: x > 0, "above 0"),
    "heads": (bool, "at least one head (`bertvision heads` lists them)"),
    "seeds": (lambda x: len({*x}) == len(x) > 0 <= min(x), "one or more different numbers, none negative"),
    **dict.fromkeys(("eps", "null_weight", "activation_gb", "weight"), _POSITIVE),
    **dict.fromkeys(("clip", "weight_decay", "checkpoint_seconds", "patience", "score_every"), _NOT_NEGATIVE),
    **dict.fromkeys(("batch_tokens", "subset", "startup"), _NOT_NEGATIVE),
    **dict.fromkeys(("log_every", "trials"), _AT_LEAST_ONE),
}
"""What a setting of this name must be, whichever class has it."""


def _check(config: Any, where: str = "", **more: Rule) -> None:
    """Refuse the first setting that breaks its rule; `more` are rules of this class alone."""
    for name, (holds, rule) in (_RULES | more).items():
        if hasattr(config, name) and not holds(value := getattr(config, name)):
            shown = name if where else f"--{name.replace('_', '-')}"
            raise ConfigError(f"{shown}{where} must be {rule}, not {value}")


@dataclass(frozen=True)
class OptimConfig:
    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    """adamw; adam, whose decay passes through the moments; or sgd with a momentum of 0.9."""
    lr: float = 1e-3
    """Highest learning rate."""
    schedule: Literal["constant", "linear"] = "constant"
    """constant, or linear decay to zero at the end."""
    warmup: float = 0.0
    """Part of all steps over which the rate rises from zero."""
    weight_decay: float = 0.0
    """Decoupled weight decay of matrices; biases and norms are never decayed."""
    bias_correction: bool = True
    """Correct Adam's moments in the first steps; BERT's own AdamW does not."""
    eps: float = 1e-8
    """Added to Adam's divisor; BERT's own AdamW had 1e-6."""
    clip: float = 1.0
    """Largest norm of the whole gradient; 0 = no clipping."""
    seed: int = 0
    """Order of the data, dropout and initial weights."""

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True)
class TrainConfig(OptimConfig):
    batch_size: int = 16
    """Windows per step."""
    checkpoint_seconds: float = 60.0
    """Time between two checkpoints."""
    track: tuple[Tracker, ...] = ()
    """Also send the numbers of metrics.jsonl to tensorboard, wandb, trackio or mlflow."""

    _aside: ClassVar[tuple[str, ...]] = ("checkpoint_seconds", "track")
    """Settings that decide no result."""

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that decide a result."""
        return {name: value for name, value in to_mapping(self).items() if name not in self._aside}


# ---- heads on a frozen encoder


@dataclass(frozen=True)
class FitConfig(TrainConfig):
    heads: tuple[str, ...] = ("default",)
    """Heads such as adapter:size=64,skip or learned_pooling:lr=3e-3, and sets of them: default, all, papers, controls,
    beyond, pooling+adapters, each_layer (`bertvision heads` lists them)."""
    seeds: tuple[int, ...] = (0,)
    """Fit every head once for each of these seeds: initial weights, dropout and order of the data (that of --seed plus
    this seed). Every epoch reads the states once for each seed."""
    epochs: int = 1
    """Passes over the states."""
    null_weight: float = 1.0
    """Weight of a window without an answer in the loss of spans; 1 = like any other."""
    patience: int = 0
    """Stop a head after this many epochs without a better dev score; 0 = never."""
    keep: Literal["last", "best"] = "last"
    """Keep the weights of the last epoch or of the best on dev."""
    stack: Literal["auto", "on", "off"] = "auto"
    """Compute heads that differ only in rate, seed and dropout as one batched head; auto = on a GPU. A CPU is
    faster one by one, because each head's numbers then stay in its cache."""
    activation_gb: float = 4.0
    """Memory for what a step of a head keeps between its forward and its backward pass; large heads read a batch
    in several parts."""

    def __post_init__(self) -> None:
        _check(self, epochs=_AT_LEAST_ONE, batch_size=_AT_LEAST_ONE)

    @property
    def scores_epochs(self) -> bool:
        """Whether dev scores are needed during the fit."""
        patience = (self.patience_of(parse_head(text)) for text, _ in expand(self.heads))
        return self.keep == "best" or any(patience)

    def optim(self, spec: HeadSpec, seed: int) -> OptimConfig:
        """What one head is fitted with: its own settings where it has some, else the fit's."""
        own = {name: value for name, value in dataclasses.asdict(spec.train).items() if value is not None}
        own.pop("patience", None)
        return dataclasses.replace(part_of(OptimConfig, self), **own | {"seed": seed})

    def order_of(self, spec: HeadSpec, seed: int) -> int:
        """Seed of the order in which a head sees the data; a head's own seed (`adapter:seed=1`) does not change it."""
        return self.seed + seed if spec.train.seed is None else self.seed

    def patience_of(self, spec: HeadSpec) -> int:
        return self.patience if spec.train.patience is None else spec.train.patience


@dataclass(frozen=True)
class SearchConfig:
    trials: int = 40
    """Trials in all, including those of other processes and earlier runs."""
    startup: int = 10
    """Trials that are drawn at random before the search and the pruner have enough to go by."""
    pruner: Literal["median", "halving", "none"] = "median"
    """median: end a trial whose best dev score so far is below the median of others at its epoch; halving: let only
    the best third continue after epochs 1, 3, 9, ...; none: train all to the end."""

    def __post_init__(self) -> None:
        _check(self)


# ---- an encoder and what trains with it


@dataclass(frozen=True)
class TuneConfig(TrainConfig):
    policy: str = "full"
    """What trains beside the head: full, none, layers (not the embeddings), top-K (K layers and all norms), cut-K
    (K layers, nothing below), houlsby-M, houlsby-M+top-K, houlsby-M+full, lora-R, bitfit."""
    lr: float = 5e-5
    schedule: Literal["constant", "linear"] = "linear"
    warmup: float = 0.1
    weight_decay: float = 0.01
    epochs: float = 1.0
    """Length of the run; the schedule ends here. 0 = leave the encoder as it is (`run` only)."""
    snapshots: tuple[float, ...] = ()
    """Fractions of an epoch at which the encoder is kept, such as 0.3,1.0; the end is always kept."""
    batch_tokens: int = 0
    """Tokens per step, pads included, instead of windows: many short ones or few long ones; 0 = by windows."""
    accumulate: int = 1
    """Cut each batch into this many encoder calls; the step stays the same, memory shrinks."""
    checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them: less memory, more time."""
    score_every: float = 0.0
    """With --dev: epochs between two scores on it, without a snapshot; 0 = snapshots alone are scored."""
    log_every: int = 10
    """Steps between two lines of metrics.jsonl; a line has the mean loss of its steps."""

    _aside: ClassVar[tuple[str, ...]] = (*TrainConfig._aside, "log_every", "score_every")

    def __post_init__(self) -> None:
        object.__setattr__(self, "policy", str(parse_policy(self.policy)))  # one spelling
        # A batch by tokens has as many windows as fit.
        most = math.inf if self.batch_tokens else self.batch_size
        within = (lambda x: 1 <= x <= most, f"between 1 and {most}")
        _check(self, epochs=_NOT_NEGATIVE, batch_size=_AT_LEAST_ONE, accumulate=within)
        for fraction in self.snapshots:
            if not 0 < fraction <= self.epochs:
                raise ConfigError(
                    f"snapshot {fraction:g} lies outside the run of {self.epochs:g} epochs: "
                    "raise --epochs or lower --snapshots"
                )


@dataclass(frozen=True, kw_only=True)
class DrawConfig:
    """What every task of a fine-tuning has."""

    head: str = ""
    """The head that trains with the encoder, as `fit --heads` takes one; by default last_state for spans, cls_linear
    for labels and scores."""
    sampling: Sampling = "natural"
    """balanced = classes (windows with and without an answer) come equally often; weighted = drawn with replacement,
    with a weight of 1 / the size of their class."""

    def __post_init__(self) -> None:
        if self.head and any(of_set for _, of_set in expand([self.head])):
            raise ConfigError(
                f"--head {self.head} is a set of heads, and one trains with an encoder: name it"
            )
        if self.head and parse_head(self.head).train != TrainOverrides():
            raise ConfigError(f"--head {self.head} trains as the encoder does: set --lr and the like instead")


@dataclass(frozen=True)
class FinetuneConfig(DrawConfig, TuneConfig):
    null_weight: float = 1.0
    """Weight of a window without an answer in the loss of spans; 1 = like any other."""

    def __post_init__(self) -> None:
        TuneConfig.__post_init__(self)
        DrawConfig.__post_init__(self)


@dataclass(frozen=True)
class MultitaskConfig(TuneConfig):
    order: MixOrder = "mixed"
    """sequential: task after task in every epoch; mixed: their batches shuffled; temperature: tasks drawn at random."""
    temperature: float = 1.0
    """With --order temperature: a task of n examples is drawn in proportion to n ** (1 / temperature)."""


@dataclass(frozen=True, kw_only=True)
class JobConfig(DrawConfig):
    """How one task of a fine-tuning is drawn from, and what trains on it."""

    name: str = ""
    """Its head's folder; empty where it is the only one."""
    batch_size: int = 0
    """Examples in a batch; 0 = the run's."""
    subset: int = 0
    """Examples of an epoch, drawn anew each time; 0 = all."""
    weight: float = 1.0
    """Weight of its loss."""
    bins: int = 5
    """Classes that scores are put into for sampling."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self, f" of task {self.name}", batch_size=_NOT_NEGATIVE)


@dataclass(frozen=True)
class TaskSpec(TextConfig, JobConfig):
    """One task of several, as a recipe names it (train/job.py)."""

    train: tuple[str, ...] = ()
    """Its training sets, joined."""
    dev: str = ""

    def __post_init__(self) -> None:
        TextConfig.__post_init__(self)
        JobConfig.__post_init__(self)
        if not self.name or not self.train:
            raise ConfigError("every task of a recipe needs a name and at least one training set under train")
