"""What labels and scores share: tasks about single texts, pairs, and questions over paragraphs.

The windows of a long text are merged into one answer:

    mean              the mean of the windows' probabilities (scores)
    min, max          the least (greatest) probability of the positive class (score) that a window has
    any_null          as max: one window that votes for the positive class decides, as in the papers

For answer / no answer the mean is wrong, because one window with the answer is enough: `min` takes the least
probability of no answer.

An unknown label (-1, or a score of NaN) costs nothing and has no gradient. Losses are computed in float32, whatever the
logits came in, and nothing depends on the values: they can be vmapped over stacked heads and captured in a CUDA graph.

On disk: predictions.json (id -> class or score).

Shapes: R rows of logits (a window each, or `group` windows side by side), E examples, W windows, C outputs.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bertvision.artifacts import write_json_rows
from bertvision.data.examples import SpanBuilder, SpanData, TextData, answerable
from bertvision.data.texts import Columns, Reframe, reframe
from bertvision.data.windows import WindowConfig, Windows
from bertvision.errors import ConfigError, DataError
from bertvision.tasks.base import Baselines, CardText, Member, Merge, Task, TextConfig
from bertvision.tasks.logits import Logits
from bertvision.tasks.metrics import Difference, metric_difference

if TYPE_CHECKING:
    from torch import Tensor

    from bertvision.states.base import StateBatch

_SHOWN = 600  # characters of a text in a report


@dataclass(frozen=True)
class TextAnswers:
    task: Any
    data: TextData
    rows: NDArray[np.float64]  # (R, C) one logit a class, or (R,) scores
    starts: NDArray[np.int64]  # (E,) first row of each example
    labels: NDArray[Any]  # (R,) what each row had to be; -1 (NaN) where it is not known

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def values(self) -> NDArray[Any]:
        """(E,) numbers of the predicted classes, or scores."""
        return merge_rows(self.rows, self.starts, self.task.merge)

    @cached_property
    def truth(self) -> NDArray[Any]:
        """(E,) the labels, in the form of `values`."""
        return truth(self.data, self.values.dtype)


@dataclass(frozen=True, kw_only=True)
class TextTask(Task):
    unit = "window"
    head = "cls_linear"
    answers_class: ClassVar[type[TextAnswers]] = TextAnswers
    positive = 1

    merge: Merge = "mean"
    group: int = 1
    pairs: bool = False

    def __post_init__(self) -> None:
        if self.metric not in self.metrics or not self.metrics[self.metric].selects:
            fitting = ", ".join(name for name, metric in self.metrics.items() if metric.selects)
            raise ConfigError(f"--text.metric {self.metric} does not suit {self.kind}s: use {fitting}")

    def card_text(self, returns: str, merged: str, limits: str, hub_task: str) -> CardText:
        call, given = '"text"', "a text"
        if self.asks:
            call, given = '"question", "context"', "a question and a text"
        elif self.pairs:
            call, given = '"first", "second"', "a pair of texts"
        about = f"Given {given} it returns {returns}."
        if self.group == 1:
            how = {"mean": "mean", "min": "least"}.get(self.merge, "greatest")
            about += f" Of a text longer than a window several are read, and the {how} {merged} counts."
        return CardText(hub_task, call, about, limits)

    @classmethod
    def settings(
        cls, data: TextData, text: TextConfig, windows: WindowConfig, merge: Merge
    ) -> dict[str, Any]:
        """The settings that labels and scores share; `merge` is the usual one."""
        if text.positive and (len(data.classes) != 2 or text.positive not in data.classes):
            known = ", ".join(data.classes) or "none"
            raise ConfigError(
                f"--text.positive {text.positive} must be one of two classes; {data.name} has {known}"
            )
        usual = data.metric if data.metric in cls.metrics else next(iter(cls.metrics))
        return {
            "metric": usual if text.metric == "auto" else text.metric,
            "merge": merge if text.merge == "auto" else text.merge,
            "group": 2 if windows.apart and data.pairs else 1,
            "pairs": data.pairs,
        }

    def check_data(self, data: Any) -> None:
        super().check_data(data)
        if data.classes != self.classes:
            raise DataError(
                f"{data.name} has the classes {', '.join(data.classes)} but the head was fitted for "
                f"{', '.join(self.classes)}: give it data of its own task"
            )
        sides = (data.spans is not None, data.pairs), (self.asks, self.pairs)
        ours, own = (
            "questions" if asks else "pairs of texts" if pairs else "single texts" for asks, pairs in sides
        )
        if len(data) and ours != own:
            raise ConfigError(f"{data.name} has {ours}, and the task is about {own}: name data of its kind")

    def load(self, source: str, *, columns: Columns, max_examples: int | None = None) -> TextData:
        if self.asks and not source.startswith("answerable:"):
            source = f"answerable:{source}"
        return super().load(source, columns=columns, max_examples=max_examples)

    def prepare(self, data: SpanData | TextData, how: Reframe) -> TextData:
        if self.group > 1 and how != Reframe():
            raise ConfigError(
                "--apart reads two texts by themselves: leave it out, or --text.prompt and --text.context"
            )
        if self.asks and not (isinstance(data, TextData) and data.spans is not None):
            return answerable(as_questions(data), answers_required=False)
        assert isinstance(data, TextData)
        return reframe(data, how)

    def loss(self, logits: "Tensor", batch: "StateBatch") -> "Tensor":
        import torch

        label = batch.targets.reshape(-1, self.group)[:, 0]  # (E,) the windows of an example agree
        known = ~torch.isnan(label) if label.is_floating_point() else label >= 0
        # Replaced before the loss, not behind it: the gradient of a NaN times zero is NaN.
        label = torch.where(known, label, torch.zeros_like(label))
        loss = self.losses(logits.float(), label) * known
        return loss.unsqueeze(-1).expand(-1, self.group).reshape(-1)

    @abstractmethod
    def losses(self, logits: "Tensor", label: "Tensor") -> "Tensor":
        """(E,) loss of each example, from logits (E, C) and labels (E,)."""

    def row_labels(self, windows: Windows) -> NDArray[Any]:  # (R,)
        return windows.labels[:: self.group, 0]

    @abstractmethod
    def rows(self, logits: Logits) -> NDArray[np.float64]:
        """The rows of the answers, in float64."""

    def answer(self, windows: Windows, logits: Logits, data: TextData, tuning: Any = None) -> Any:
        """A tuning is applied to predictions alone."""
        self.check_logits(logits, windows)
        example = windows.example[:: self.group]  # (R,)
        starts = np.flatnonzero(np.diff(example, prepend=-1))
        if not np.array_equal(example[starts], np.arange(len(data))):
            raise DataError(
                f"{len(starts)} examples have windows but {data.name} has {len(data)}: "
                "make the windows from this data"
            )
        return self.answers_class(self, data, self.rows(logits), starts, self.row_labels(windows))

    def merged_by(self, merge: str) -> "TextTask":
        return replace(self, merge=merge)

    def score(self, answers: Any, tuning: Any = None) -> dict[str, float]:
        right, found = answers.truth, {}
        for name, metric in self.metrics.items():
            if metric.predictions is not None:
                said = answers.values
                found[name] = float(metric.predictions(right, said, len(self.classes), self.positive))
            elif metric.probabilities is not None:
                found[name] = metric.probabilities(right, answers.probabilities)
        return found

    def compare(self, metric: str, ours: Sequence[Member], theirs: Sequence[Member] = ()) -> Difference:
        sides = [[answers.values for answers, _ in members] for members in (ours, theirs)]
        how = {"classes": len(self.classes), "positive": self.positive}
        return metric_difference(self.metrics[metric], ours[0][0].truth, *sides, **how)

    def named(self, values: NDArray[Any]) -> list[Any]:
        """Values as a user reads them: the names of classes, or scores."""
        return [self.classes[value] if self.classes else value for value in values.tolist()]

    def write_answers(self, folder: Path, answers: Any, tuning: Any = None) -> None:
        rows = zip(self.ids(answers.data), self.named(answers.values), strict=True)
        write_json_rows(folder / "predictions.json", dict(rows))

    @abstractmethod
    def constant(self, train: TextData) -> tuple[str, Any]:
        """The best row for all examples alike, and what a baseline that always gives it is called."""

    def baselines(self, train: TextData, parts: Mapping[str, TextData]) -> Baselines:
        name, row = self.constant(train)
        found = {}
        for part, data in parts.items():
            rows, starts = np.broadcast_to(row, (len(data), *np.shape(row))), np.arange(len(data))
            found[part] = self.score(self.answers_class(self, data, rows, starts, starts))
        return {name: found}

    def examples(self, member: Member) -> list[dict[str, Any]]:
        answers, _ = member
        found = []
        both = self.named(answers.truth), self.named(answers.values)
        for one, right, said in zip(answers.data.examples, *both, strict=True):
            texts = [text for text in (one.first, one.second) if text is not None]
            texts = [text if len(text) <= _SHOWN else text[:_SHOWN] + " …" for text in texts]
            level = said == right if self.classes else None
            found.append({"id": one.id, "texts": texts, "truth": right, "said": said, "right": level})
        return found


def holds_questions(data: SpanData | TextData) -> bool:
    return isinstance(data, SpanData) or data.spans is not None


def as_questions(data: SpanData | TextData) -> SpanData:
    if isinstance(data, SpanData):
        return data
    if data.spans is not None:
        return data.spans
    builder = SpanBuilder(data.name)
    for example in data.examples:
        builder.add(example.id, example.first, example.second)
    return builder.build()


def truth(data: TextData, dtype: Any) -> NDArray[Any]:
    """(E,) class numbers or scores."""
    unknown = sum(example.label is None for example in data.examples)
    if unknown or not len(data):
        raise DataError(
            f"{data.name}: {unknown} of {len(data)} examples have no label and cannot be scored; "
            "predict them instead, or give a file with labels"
        )
    return np.array([example.label for example in data.examples], dtype=dtype)


def merge_rows(values: NDArray[np.float64], starts: NDArray[np.int64], how: str) -> NDArray[np.float64]:
    """(E, ...) from (R, ...), where the rows of example e begin at starts[e]."""
    if len(starts) == len(values):  # every text is one window, as most are
        return values
    if how == "min":
        return np.minimum.reduceat(values, starts, axis=0)
    if how != "mean":
        return np.maximum.reduceat(values, starts, axis=0)
    counts = np.diff(np.append(starts, len(values)))
    return np.add.reduceat(values, starts, axis=0) / counts.reshape(-1, *[1] * (values.ndim - 1))
