"""The kinds of tasks, and the loss of each: what training needs to know of a task.

span      start and end of the answer, two numbers a token         tasks/span/
label     a class; score: a number; C numbers a window             tasks/text/
triplet   distances of an anchor to its positive and negatives     tasks/triplet.py
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from bertvision.config import from_mapping, to_mapping
from bertvision.errors import ArtifactError, ConfigError
from bertvision.shapes import Bool, Float, Int, Num
from bertvision.tasks.text.task import TextTask

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "SPAN",
    "SpanTask",
    "Task",
    "TripletTask",
    "check_null_weight",
    "default_head",
    "task_from_words",
    "task_words",
    "window_losses",
]


@dataclass(frozen=True)
class SpanTask:
    """Find the answer to a question in a paragraph."""

    kind: Literal["span"] = "span"
    unit: ClassVar[Literal["token"]] = "token"
    outputs: int = 2
    group: int = 1
    metric: str = "f1"
    weights: tuple[float, float] = (1.0, 1.0)
    """What a window with the answer and one without it count in the loss while something is trained; no file tells
    of it, because nothing that reads a head asks for it."""


@dataclass(frozen=True)
class TripletTask:
    """Bring a text nearer to its positive than to its negatives; trains the encoder alone."""

    form: Literal["paper", "softmin"] = "softmin"
    """softmin: d+ + log sum exp(-d-), which the nearest negative decides; paper: d+ - log sum exp(d-), which the
    farthest one satisfies."""
    margin: float = 0.0
    """Added to the hinge's inside."""
    group: int = 7
    """Windows of a triplet: anchor, positive, negatives."""
    kind: Literal["triplet"] = "triplet"
    unit: ClassVar[Literal["window"]] = "window"
    metric: str = "violation_rate"

    def __post_init__(self) -> None:
        if self.form not in ("paper", "softmin"):
            raise ConfigError(f"--form {self.form} is unknown: choose softmin or paper")

    @property
    def outputs(self) -> int:
        return self.group - 1


Task = SpanTask | TextTask | TripletTask
SPAN = SpanTask()


def check_null_weight(weight: float) -> None:
    """Refuse what no window without an answer can count."""
    if not (weight > 0 and math.isfinite(weight)):
        raise ConfigError(f"--null-weight must be a finite number above 0, not {weight}")


def default_head(task: Task) -> str:
    """The head that trains with an encoder where none is named."""
    return {"span": "last_state", "triplet": "triplet"}.get(task.kind, "cls_linear")


def window_losses(
    task: Task,
    logits: "Float[Tensor, '*rows C']",
    mask: "Bool[Tensor, 'B T']",
    labels: "Num[Tensor, 'B K']",
    bounds: "Int[Tensor, 'B 2']",
) -> "Float[Tensor, ' B']":
    """The loss of each window; an example of several windows has its loss at each of them.

    `bounds` are the first token of the paragraph and one past its last.
    """
    if isinstance(task, SpanTask):
        from bertvision.tasks.span.loss import span_loss

        return span_loss(logits, mask, labels, reduction="none", weight=_span_weights(task, labels, bounds))
    if isinstance(task, TextTask):
        from bertvision.tasks.text.loss import text_loss

        return text_loss(logits, labels, task)
    from bertvision.tasks.triplet import triplet_loss

    return triplet_loss(logits, form=task.form, margin=task.margin).repeat_interleave(task.group)


def _span_weights(
    task: SpanTask, labels: "Num[Tensor, 'B 2']", bounds: "Int[Tensor, 'B 2']"
) -> "Float[Tensor, ' B'] | None":
    """What each window counts, without looking at values: a step with it can be captured and replayed."""
    if task.weights == (1.0, 1.0):
        return None
    # The token that means "no answer" stands outside the paragraph, wherever an encoder has it.
    start = labels[:, 0]
    found = (start >= bounds[:, 0]) & (start < bounds[:, 1])  # (B,)
    # Products: `where` would have to send both numbers to the device in every step.
    return found * task.weights[0] + ~found * task.weights[1]


def task_from_words(words: Any, source: str) -> Task:
    """The task that a head's config.json tells of; folders that say nothing hold span heads."""
    if words in (None, "span"):
        return SPAN
    if not isinstance(words, dict):
        raise ArtifactError(
            f"{source} names the task {words!r}, which this version does not know: fit the head again"
        )
    try:
        return from_mapping(TextTask, words, source=source)
    except (ConfigError, TypeError) as error:
        raise ArtifactError(f"{source} does not tell its task ({error}): fit the head again") from error


def task_words(task: Task) -> Any:
    """What a head's config.json keeps under "task": the kind alone where nothing else is to say."""
    return task.kind if isinstance(task, SpanTask) else to_mapping(task)
