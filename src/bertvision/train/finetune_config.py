"""The settings of a fine-tuning, refused where they cannot work together."""

import math
from dataclasses import dataclass
from typing import Any, Literal

from bertvision.config import to_mapping
from bertvision.encoder.policy import parse_policy
from bertvision.errors import ConfigError
from bertvision.heads.catalogue import expand
from bertvision.heads.spec import TrainOverrides, parse_head
from bertvision.tasks.settings import check_null_weight
from bertvision.train.mixing import MixOrder
from bertvision.train.optim import OptimConfig

__all__ = ["FinetuneConfig", "MultitaskConfig"]


@dataclass(frozen=True)
class FinetuneConfig(OptimConfig):
    """How the encoder is tuned before heads are fitted on it."""

    policy: str = "full"
    """What trains beside the head: full, none, layers (not the embeddings), top-K (K layers and all norms), cut-K
    (K layers, nothing below), houlsby-M, houlsby-M+top-K, houlsby-M+full, lora-R, bitfit."""
    head: str = ""
    """The head that trains with the encoder, as `fit --heads` takes one; by default last_state for spans, cls_linear
    for labels and scores."""
    lr: float = 5e-5
    """Highest learning rate."""
    schedule: Literal["constant", "linear"] = "linear"
    """constant, or linear decay to zero at the end."""
    warmup: float = 0.1
    """Part of all steps over which the rate rises from zero."""
    weight_decay: float = 0.01
    """Decoupled weight decay of matrices; biases and norms are never decayed."""
    bias_correction: bool = True
    """--no-bias-correction leaves Adam's moments small in the first steps, as BERT's own AdamW did; else they are
    divided by what they lack."""
    epochs: float = 1.0
    """Length of the run; the schedule ends here. 0 = leave the encoder as it is (`run` only)."""
    snapshots: tuple[float, ...] = ()
    """Fractions of an epoch at which the encoder is kept, such as 0.3,1.0; the end is always kept."""
    batch_size: int = 16
    """Windows per step."""
    batch_tokens: int = 0
    """Tokens per step, pads included, instead of windows: many short ones or few long ones; 0 = by windows."""
    accumulate: int = 1
    """Cut each batch into this many encoder calls; the step stays the same, memory shrinks."""
    checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them: less memory, more time."""
    sampling: Literal["natural", "balanced", "weighted"] = "natural"
    """balanced = classes (windows with and without an answer) come equally often; weighted = drawn with replacement,
    with a weight of 1 / the size of their class."""
    null_weight: float = 1.0
    """What a window without an answer counts in the loss of spans; 1 = like any other."""
    shard: bool = False
    """With several processes: share out the encoder's weights among them (FSDP), for encoders no device holds whole."""
    score_every: float = 0.0
    """With --dev: epochs between two scores on it, without a snapshot; 0 = snapshots alone are scored."""
    log_every: int = 10
    """Steps between two lines of metrics.jsonl; a line has the mean loss of its steps."""
    checkpoint_seconds: float = 60.0
    """Time between two checkpoints."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_policy(self.policy)
        if self.head and any(of_set for _, of_set in expand([self.head])):
            raise ConfigError(
                f"--head {self.head} is a set of heads, and one trains with an encoder: name it"
            )
        if self.head and parse_head(self.head).train != TrainOverrides():
            raise ConfigError(f"--head {self.head} trains as the encoder does: set --lr and the like instead")
        if not (self.score_every >= 0 and math.isfinite(self.score_every)):
            raise ConfigError(f"--score-every must be finite and not negative, not {self.score_every}")
        if self.optimizer == "sgd" and not self.bias_correction:
            raise ConfigError(
                "--no-bias-correction belongs to Adam, and --optimizer sgd has nothing to correct: "
                "leave one of them out"
            )
        if not (self.epochs >= 0 and math.isfinite(self.epochs)):
            raise ConfigError(f"--epochs of fine-tuning must be finite and not negative, not {self.epochs}")
        check_null_weight(self.null_weight)
        if self.log_every < 1:
            raise ConfigError(f"--log-every must be at least 1, not {self.log_every}")
        for fraction in self.snapshots:
            if not 0 < fraction <= self.epochs:
                raise ConfigError(
                    f"snapshot {fraction:g} lies outside the run of {self.epochs:g} epochs: "
                    "raise --epochs or lower --snapshots"
                )
        self._check_folders()
        # A batch by tokens has as many windows as fit.
        most = self.accumulate if self.batch_tokens else self.batch_size
        if self.batch_size < 1 or not 1 <= self.accumulate <= most:
            raise ConfigError(
                f"--batch-size {self.batch_size} of fine-tuning must be at least 1 and --accumulate "
                f"{self.accumulate} between 1 and the batch size"
            )
        if self.batch_tokens < 0:
            raise ConfigError(f"--batch-tokens must not be negative, not {self.batch_tokens}")

    def _check_folders(self) -> None:
        """A folder's name has six digits of the fraction; two snapshots of one name would be one."""
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
        """The settings that decide a result."""
        settings = to_mapping(self)
        for name in ("checkpoint_seconds", "log_every", "score_every", "shard", "track"):
            settings.pop(name)
        if self.null_weight == 1:  # came later, and is told where it decides something
            settings.pop("null_weight")
        settings["policy"] = str(parse_policy(self.policy))
        return settings


@dataclass(frozen=True)
class MultitaskConfig(FinetuneConfig):
    """How one encoder is tuned for several tasks at once."""

    order: MixOrder = "mixed"
    """sequential: task after task in every epoch; mixed: their batches shuffled; temperature: tasks drawn at random."""
    temperature: float = 1.0
    """With --order temperature: a task of n examples is drawn in proportion to n ** (1 / temperature)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.temperature > 0:
            raise ConfigError(f"--temperature must be above 0, not {self.temperature}")
        if self.null_weight != 1:
            raise ConfigError("--null-weight is for one task of spans, not for several tasks: leave it out")
        if self.head or self.sampling != "natural":
            raise ConfigError(
                "--head and --sampling are settings of each task: put them under `tasks` in the recipe"
            )
