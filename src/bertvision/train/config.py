"""Settings of training. This module imports no torch: `--help` reads it.

OptimConfig                   optimiser, schedule, seed; what one head is fitted with
  TrainConfig                 + batches, checkpoints, trackers
    FitConfig                 heads on the states of a frozen encoder
    TuneConfig                an encoder and what trains with it
      FinetuneConfig          for one task
      MultitaskConfig         for several, each a TaskSpec
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from bertvision.config import to_mapping
from bertvision.encoder.policy import parse_policy
from bertvision.errors import ConfigError
from bertvision.heads.catalogue import expand
from bertvision.heads.spec import HeadSpec, TrainOverrides, parse_head
from bertvision.tasks.settings import TextConfig, check_null_weight

Tracker = Literal["tensorboard", "wandb", "trackio", "mlflow"]
Sampling = Literal["natural", "balanced", "weighted"]
MixOrder = Literal["sequential", "mixed", "temperature"]


@dataclass(frozen=True)
class OptimConfig:
    """The optimiser and its schedule."""

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
        if not 0 < self.lr <= 1e36:  # Adam's first step is ten times that, and float32 ends at 3e38
            raise ConfigError(f"lr must lie above 0 and not above 1e36, not {self.lr}")
        if not 0 <= self.warmup < 1:
            raise ConfigError(f"warmup is a part of all steps, at least 0 and below 1, not {self.warmup}")
        if not (self.eps > 0 and math.isfinite(self.eps)):
            raise ConfigError(f"eps must be a finite number above 0, not {self.eps}")
        for name in ("clip", "weight_decay"):
            value = getattr(self, name)
            if not (value >= 0 and math.isfinite(value)):
                raise ConfigError(f"{name} must be a finite number that is not negative, not {value}")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed must not be negative and lie below 2**63, not {self.seed}")


@dataclass(frozen=True)
class TrainConfig(OptimConfig):
    """What fitting heads and tuning encoders share."""

    batch_size: int = 16
    """Windows per step."""
    checkpoint_seconds: float = 60.0
    """Time between two checkpoints."""
    track: tuple[Tracker, ...] = ()
    """Also send the numbers of metrics.jsonl to tensorboard, wandb, trackio or mlflow."""

    _aside: ClassVar[tuple[str, ...]] = ("checkpoint_seconds", "track")
    """Settings that decide no result."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size < 1:
            raise ConfigError(f"--batch-size must be at least 1, not {self.batch_size}")
        if not self.checkpoint_seconds >= 0:
            raise ConfigError(f"--checkpoint-seconds must not be negative, not {self.checkpoint_seconds}")
        if self.optimizer == "sgd" and not self.bias_correction:
            raise ConfigError(
                "--no-bias-correction belongs to Adam, and --optimizer sgd has nothing to correct: "
                "leave one of them out"
            )

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that decide a result."""
        return {name: value for name, value in to_mapping(self).items() if name not in self._aside}


# ---- heads on a frozen encoder


@dataclass(frozen=True)
class FitConfig(TrainConfig):
    """How heads are fitted on the states of a frozen encoder."""

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
        super().__post_init__()
        if self.epochs < 1:
            raise ConfigError(f"--epochs of the fit must be at least 1, not {self.epochs}")
        check_null_weight(self.null_weight)
        if self.patience < 0:
            raise ConfigError(f"--patience must not be negative, not {self.patience}")
        if not (self.activation_gb > 0 and math.isfinite(self.activation_gb)):
            raise ConfigError(f"--activation-gb must be a finite number above 0, not {self.activation_gb}")
        if not self.heads:
            raise ConfigError("--heads names no head: give at least one (`bertvision heads` lists them)")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise ConfigError(f"--seeds must be different numbers, none negative, not {self.seeds}")

    @property
    def scores_epochs(self) -> bool:
        """Whether dev scores are needed during the fit."""
        own = any((parse_head(text).train.patience or 0) > 0 for text, _ in expand(self.heads))
        return self.keep == "best" or self.patience > 0 or own

    def optim(self, spec: HeadSpec, seed: int) -> OptimConfig:
        """What one head is fitted with: its own settings where it has some, else the fit's."""
        names = [f.name for f in dataclasses.fields(OptimConfig)]
        values: dict[str, Any] = {name: getattr(self, name) for name in names}
        own = {k: v for k, v in dataclasses.asdict(spec.train).items() if v is not None and k in names}
        values |= own | {"seed": seed}
        return OptimConfig(**values)

    def order_of(self, spec: HeadSpec, seed: int) -> int:
        """Seed of the order in which a head sees the data; a head's own seed (`adapter:seed=1`) does not change it."""
        return self.seed + seed if spec.train.seed is None else self.seed

    def patience_of(self, spec: HeadSpec) -> int:
        return self.patience if spec.train.patience is None else spec.train.patience


# ---- an encoder and what trains with it


@dataclass(frozen=True)
class TuneConfig(TrainConfig):
    """How an encoder is tuned."""

    policy: str = "full"
    """What trains beside the head: full, none, layers (not the embeddings), top-K (K layers and all norms), cut-K
    (K layers, nothing below), houlsby-M, houlsby-M+top-K, houlsby-M+full, lora-R, bitfit."""
    lr: float = 5e-5
    """Highest learning rate."""
    schedule: Literal["constant", "linear"] = "linear"
    """constant, or linear decay to zero at the end."""
    warmup: float = 0.1
    """Part of all steps over which the rate rises from zero."""
    weight_decay: float = 0.01
    """Decoupled weight decay of matrices; biases and norms are never decayed."""
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
    shard: bool = False
    """With several processes: split the encoder's weights over them (FSDP), for encoders no device holds whole."""
    score_every: float = 0.0
    """With --dev: epochs between two scores on it, without a snapshot; 0 = snapshots alone are scored."""
    log_every: int = 10
    """Steps between two lines of metrics.jsonl; a line has the mean loss of its steps."""

    _aside: ClassVar[tuple[str, ...]] = (*TrainConfig._aside, "log_every", "score_every", "shard")

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_policy(self.policy)
        if not (self.score_every >= 0 and math.isfinite(self.score_every)):
            raise ConfigError(f"--score-every must be finite and not negative, not {self.score_every}")
        if not (self.epochs >= 0 and math.isfinite(self.epochs)):
            raise ConfigError(f"--epochs of fine-tuning must be finite and not negative, not {self.epochs}")
        if self.log_every < 1:
            raise ConfigError(f"--log-every must be at least 1, not {self.log_every}")
        if self.batch_tokens < 0:
            raise ConfigError(f"--batch-tokens must not be negative, not {self.batch_tokens}")
        # A batch by tokens has as many windows as fit.
        if self.accumulate < 1 or (self.accumulate > self.batch_size and not self.batch_tokens):
            raise ConfigError(
                f"--accumulate {self.accumulate} must lie between 1 and --batch-size {self.batch_size}"
            )
        for fraction in self.snapshots:
            if not 0 < fraction <= self.epochs:
                raise ConfigError(
                    f"snapshot {fraction:g} lies outside the run of {self.epochs:g} epochs: "
                    "raise --epochs or lower --snapshots"
                )
        # A folder's name has six digits of the fraction.
        named: dict[str, float] = {}
        for fraction in sorted({*self.snapshots, self.epochs}):
            other = named.setdefault(f"{fraction:g}", fraction)
            if other != fraction:
                raise ConfigError(
                    f"the snapshots at {other!r} and {fraction!r} of an epoch would share the folder "
                    f"snapshot-{fraction:g}: change --snapshots or --epochs"
                )

    @property
    def identity(self) -> dict[str, Any]:
        return super().identity | {"policy": str(parse_policy(self.policy))}


@dataclass(frozen=True)
class FinetuneConfig(TuneConfig):
    """How the encoder is tuned before heads are fitted on it."""

    head: str = ""
    """The head that trains with the encoder, as `fit --heads` takes one; by default last_state for spans, cls_linear
    for labels and scores."""
    sampling: Sampling = "natural"
    """balanced = classes (windows with and without an answer) come equally often; weighted = drawn with replacement,
    with a weight of 1 / the size of their class."""
    null_weight: float = 1.0
    """Weight of a window without an answer in the loss of spans; 1 = like any other."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_head(self.head)
        check_null_weight(self.null_weight)


@dataclass(frozen=True)
class MultitaskConfig(TuneConfig):
    """How one encoder is tuned for several tasks at once."""

    order: MixOrder = "mixed"
    """sequential: task after task in every epoch; mixed: their batches shuffled; temperature: tasks drawn at random."""
    temperature: float = 1.0
    """With --order temperature: a task of n examples is drawn in proportion to n ** (1 / temperature)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.temperature > 0:
            raise ConfigError(f"--temperature must be above 0, not {self.temperature}")


@dataclass(frozen=True, kw_only=True)
class JobConfig:
    """How one task of a fine-tuning is drawn from, and what trains on it."""

    name: str = ""
    """Its head's folder; empty where it is the only one."""
    head: str = ""
    """The head that trains with the encoder; cls_linear for labels and scores, last_state for spans."""
    batch_size: int = 0
    """Examples in a batch; 0 = the run's."""
    sampling: Sampling = "natural"
    """natural, balanced or weighted (with replacement, by 1 / the size of the class)."""
    subset: int = 0
    """Examples of an epoch, drawn anew each time; 0 = all."""
    weight: float = 1.0
    """Weight of its loss."""
    bins: int = 5
    """Classes that scores are put into for sampling."""

    def __post_init__(self) -> None:
        _check_head(self.head)
        if not (self.weight > 0 and math.isfinite(self.weight)):
            raise ConfigError(f"weight of task {self.name} must be above 0, not {self.weight}")
        for name in ("batch_size", "subset"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} of task {self.name} must not be negative: 0 leaves it out")


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


def _check_head(head: str) -> None:
    """Refuse what cannot train with an encoder."""
    if head and any(of_set for _, of_set in expand([head])):
        raise ConfigError(f"--head {head} is a set of heads, and one trains with an encoder: name it")
    if head and parse_head(head).train != TrainOverrides():
        raise ConfigError(f"--head {head} trains as the encoder does: set --lr and the like instead")


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """Dotted names of the settings that differ."""
    names: list[str] = []
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            names += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            names.append(f"{prefix}{key}")
    return names
