"""Intervals of a head's scores, from its kept answers and the data they were given to.

A head's folder keeps what it answered on each split (SPLIT/predictions.json) but not the data. Where the data can still
be read, holds exactly the examples that were answered, and scores what metrics.json says, examples are drawn again and
again with replacement; everywhere else there is no interval, and the card says so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertvision.artifacts import read_json
from bertvision.data.examples import SpanData
from bertvision.data.load import Columns, load_data
from bertvision.data.texts import TextData
from bertvision.errors import BertvisionError
from bertvision.report.words import finite
from bertvision.tasks.kinds import SpanTask, Task
from bertvision.tasks.span.compare import paired_bootstrap
from bertvision.tasks.span.score import per_question
from bertvision.tasks.text.score import metric, truth
from bertvision.tasks.text.task import TextTask

__all__ = ["Intervals", "head_intervals", "text_interval"]

Intervals = dict[str, dict[str, tuple[float, float]]]
"""Of each split, of each metric, the two ends of the 95 % interval, in the units of metrics.json."""

_RESAMPLES = 1000


def head_intervals(
    folder: Path, task: Task, metrics: Mapping[str, Any], sources: Sequence[str], *, columns: Columns
) -> Intervals:
    """The intervals of a head that lies in `folder`.

    Args:
        sources: Where its data may be, as --dev takes it; those that are not (any more) there are passed over.
    """
    found: Intervals = {}
    kept = {name: _answers_of(folder, name, told) for name, told in metrics.items()}
    splits = {name: path for name, path in kept.items() if path.is_file()}
    if not splits:
        return found
    for data in _readable(sources, task, columns):
        ids = {example.id for example in data.examples}
        for split, path in splits.items():
            answers = read_json(path)
            if split not in found and set(answers) == ids:
                ends = _ends(data, answers, task, metrics[split])
                found |= {split: ends} if ends else {}
    return found


def _answers_of(folder: Path, split: str, told: Any) -> Path:
    """Where the answers lie that a part of metrics.json tells the scores of: an ensemble of spans has but one set."""
    joined = isinstance(told, Mapping) and "stored" in told
    return (folder if joined else folder / split) / "predictions.json"


def _readable(sources: Sequence[str], task: Task, columns: Columns) -> list[SpanData | TextData]:
    read: list[SpanData | TextData] = []
    for source in dict.fromkeys(sources):
        try:
            if isinstance(task, TextTask):
                known = source.partition(":")[0] in ("glue", "cs224n", "answerable")
                kind = "auto" if known else task.kind
                named = Columns() if known else columns
                read.append(load_data(source, task=kind, classes=task.classes or None, columns=named))
            else:
                read.append(load_data(source, task="span"))
        except BertvisionError:
            continue  # gone, or of another task
    return read


def _ends(
    data: SpanData | TextData, answers: Mapping[str, Any], task: Task, told: Mapping[str, Any]
) -> dict[str, tuple[float, float]]:
    """Of the metrics whose value is the one that was `told`."""
    ends: dict[str, tuple[float, float]] = {}
    if isinstance(told.get("stored"), Mapping):  # an ensemble's, at its own threshold
        told = {f"tuned_{name}": value for name, value in told["stored"].items()}
    if isinstance(task, SpanTask) and isinstance(data, SpanData):
        for name, values in zip(("tuned_exact", "tuned_f1"), per_question(data, answers), strict=True):
            drawn = paired_bootstrap(values, np.zeros_like(values), resamples=_RESAMPLES)
            if _same(drawn.difference, told.get(name)):
                ends[name] = (drawn.low, drawn.high)
    elif isinstance(task, TextTask) and isinstance(data, TextData) and data.labelled:
        numbers = {name: i for i, name in enumerate(task.classes)}
        given = [answers[example.id] for example in data.examples]
        if task.kind == "label" and any(name not in numbers for name in given):
            return ends
        values = np.array([numbers[name] if task.kind == "label" else float(name) for name in given])
        right = truth(data)
        for name in ("accuracy", "f1", "mcc") if task.kind == "label" else ("pearson", "spearman"):
            judged = replace(task, metric=name)
            if _same(metric(judged, right, values), told.get(name)):
                ends[name] = text_interval(judged, right, values)
    return ends


def _same(value: float, told: Any) -> bool:
    known = finite(told)
    return known is not None and abs(value - known) <= 1e-6 * max(1.0, abs(known))


def text_interval(
    task: TextTask,
    right: NDArray[Any],
    values: NDArray[Any],
    *,
    resamples: int = _RESAMPLES,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile interval of the task's metric: (E,) predictions `values` against (E,) labels `right`."""
    random = np.random.default_rng(seed)
    drawn = np.empty(resamples)
    for i in range(resamples):
        rows = random.integers(0, len(right), size=len(right))
        drawn[i] = metric(task, right[rows], values[rows])
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
