"""What tasks about whole texts share: labels and scores of single texts, pairs, and questions over paragraphs.

The windows of a long text are merged into one answer:

    mean              the mean of the windows' probabilities (scores)
    min, max          the least (greatest) probability of the positive class (score) that a window has
    any_null          as max: one window that votes for the positive class decides, as in the papers

For answer / no answer the mean is wrong, because one window with the answer is enough: `min` takes the least
probability of no answer.

Shapes: R rows of logits (a window each, or `group` windows side by side), E examples, W windows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertvision.data.examples import SpanData, TextData, answerable
from bertvision.data.reframe import Reframe, reframe
from bertvision.data.spans import SpanBuilder
from bertvision.data.texts import Columns
from bertvision.data.windows import Windows
from bertvision.errors import ConfigError, DataError
from bertvision.tasks.base import Task
from bertvision.tasks.compare import Difference, metric_difference
from bertvision.tasks.settings import Merge

_SHOWN = 600
"""Characters of a text in a report."""


class TextTask(Task):
    """A task whose examples are texts, with a row of logits for the windows of each."""

    unit = "window"

    merge: Merge = "mean"
    positive: int = 1
    pairs: bool = False
    """Its examples are pairs of texts, before any prompt is put in front."""
    asks: bool = False
    """Its examples are questions over paragraphs (answer / no answer), cut into windows like those of spans."""

    @property
    def head(self) -> str:
        return "cls_linear"

    @property
    def reads_questions(self) -> bool:
        return self.asks

    @property
    def texts_read(self) -> int:
        return 2 if self.pairs or self.asks else 1

    def check_data(self, data: Any) -> None:
        super().check_data(data)
        if data.classes != self.classes:
            raise DataError(
                f"{data.name} has the classes {', '.join(data.classes)} but the head was fitted for "
                f"{', '.join(self.classes)}: give it data of its own task"
            )
        if (data.spans is not None) != self.asks:
            raise DataError(
                f"{data.name} holds other texts than the head was fitted on: name data of its kind"
            )
        if len(data) and data.pairs != self.texts_read - 1:
            ours, theirs = ("pairs of texts", "single texts")[:: 1 if data.pairs else -1]
            raise ConfigError(
                f"{data.name} has {ours}, and the task is about {theirs}: name data of its kind"
            )

    def load(self, source: str, *, columns: Columns, max_examples: int | None = None) -> TextData:
        if self.asks and not source.startswith("answerable:"):
            source = f"answerable:{source}"
        return super().load(source, columns=columns, max_examples=max_examples)

    @property
    def call(self) -> str:
        return '"question", "context"' if self.asks else '"first", "second"' if self.pairs else '"text"'

    @property
    def given(self) -> str:
        return "a question and a text" if self.asks else "a pair of texts" if self.pairs else "a text"

    def merged(self, what: str) -> str:
        """How the windows of a long text become one answer."""
        if self.group > 1:
            return ""
        how = {"mean": "mean", "min": "least"}.get(self.merge, "greatest")
        return f"Of a text longer than a window several are read, and the {how} {what} counts."

    def example(self, data: TextData, number: int) -> dict[str, Any]:
        one = data.examples[number]
        texts = [text for text in (one.first, one.second) if text is not None]
        return {"texts": [t if len(t) <= _SHOWN else t[:_SHOWN] + " …" for t in texts], "truth": one.label}

    def merged_by(self, merge: str) -> "TextTask":
        own: Any = self  # every subclass is a dataclass
        return replace(own, merge=merge)

    def compare(
        self, metric: str, ours: Sequence[tuple[Any, Any]], theirs: Sequence[tuple[Any, Any]] = ()
    ) -> Difference:
        sides = [[answers.values for answers, _ in members] for members in (ours, theirs)]
        return self._difference(metric, ours[0][0].truth, *sides)

    def _difference(
        self, metric: str, right: NDArray[Any], ours: Sequence[NDArray[Any]], theirs: Sequence[NDArray[Any]]
    ) -> Difference:
        how = {"classes": len(self.classes), "positive": self.positive}
        return metric_difference(self.metrics[metric], right, ours, theirs, **how)

    def score(self, answers: Any, tuning: Any = None) -> dict[str, float]:
        """Every metric; the tuning changes none."""
        right, found = answers.truth, {}
        for name, metric in self.metrics.items():
            if metric.predictions is not None:
                found[name] = float(
                    metric.predictions(right, answers.values, len(self.classes), self.positive)
                )
            elif metric.probabilities is not None:
                found[name] = metric.probabilities(right, answers.probabilities)
        return found

    def judge(self, data: TextData, predictions: Mapping[str, Any]) -> dict[str, Difference]:
        given = [predictions[name] for name in self.ids(data)]
        if not data.labelled or (self.classes and not set(given) <= set(self.classes)):
            return {}
        values = np.array([self.classes.index(one) for one in given] if self.classes else given)
        right = truth(data, values.dtype)
        return {name: self._difference(name, right, [values], []) for name in self.selecting}

    def prepare(self, data: SpanData | TextData, how: Reframe) -> TextData:
        if self.group > 1 and how != Reframe():
            raise ConfigError(
                "--apart reads two texts by themselves: leave it out, or --text.prompt and --text.context"
            )
        if self.asks and not (isinstance(data, TextData) and data.spans is not None):
            return answerable(as_questions(data), answers_required=False)
        assert isinstance(data, TextData)
        return reframe(data, how)


def holds_questions(data: SpanData | TextData) -> bool:
    """Whether its examples are questions over paragraphs."""
    return isinstance(data, SpanData) or data.spans is not None


def as_questions(data: SpanData | TextData) -> SpanData:
    """The same examples as questions over paragraphs, without answers."""
    if isinstance(data, SpanData):
        return data
    if data.spans is not None:
        return data.spans
    builder = SpanBuilder(data.name)
    for example in data.examples:
        builder.add(example.id, example.first, example.second)
    return builder.build()


def truth(data: TextData, dtype: Any) -> NDArray[Any]:
    """(E,) class numbers or scores of the examples."""
    unknown = sum(example.label is None for example in data.examples)
    if unknown or not len(data):
        raise DataError(
            f"{data.name}: {unknown} of {len(data)} examples have no label and cannot be scored; "
            "predict them instead, or give a file with labels"
        )
    return np.array([example.label for example in data.examples], dtype=dtype)


def row_starts(windows: Windows, group: int, data: TextData) -> NDArray[np.int64]:
    """(E,) first row of logits of each example; the windows must be those of `data`."""
    example = windows.example[::group]  # (R,)
    starts = np.flatnonzero(np.diff(example, prepend=-1))
    if not np.array_equal(example[starts], np.arange(len(data))):
        raise DataError(
            f"{len(starts)} examples have windows but {data.name} has {len(data)}: make the windows from this data"
        )
    return starts


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
