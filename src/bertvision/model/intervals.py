"""Intervals of the scores that a head's metrics.json holds, from the predictions beside it.

Where the data of a split can still be read, holds exactly the examples that were answered, and gives the scores that
metrics.json holds, examples are drawn again and again: percentile intervals of this one fit.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertvision.artifacts import read_json
from bertvision.data.texts import Columns
from bertvision.errors import BertvisionError
from bertvision.tasks.base import Task
from bertvision.words import finite

Intervals = dict[str, dict[str, tuple[float, float]]]
"""Of each split, of each metric, the two ends of the 95 % interval, in the units of metrics.json."""


def head_intervals(
    folder: Path,
    task: Task,
    scores: Mapping[str, Mapping[str, Any]],
    sources: Sequence[str],
    *,
    columns: Columns,
) -> Intervals:
    """The intervals of a head that lies in `folder` and has these scores on each split.

    Args:
        sources: Where its data may be, as --dev takes it; those that are not (any more) there are passed over.
    """
    found: Intervals = {}
    files = {split: folder / split / "predictions.json" for split in scores}
    answered = {split: read_json(path) for split, path in files.items() if path.is_file()}
    for data in _readable(sources, task, columns) if answered else ():
        for split, answers in answered.items():
            if split not in found and set(answers) == set(task.ids(data)):
                ends = {
                    name: (drawn.low, drawn.high)
                    for name, drawn in task.judge(data, answers).items()
                    if _same(drawn.difference, scores[split].get(name))
                }
                found |= {split: ends} if ends else {}
    return found


def _readable(sources: Sequence[str], task: Task, columns: Columns) -> Iterator[Any]:
    for source in dict.fromkeys(sources):
        known = source.partition(":")[0] in ("glue", "cs224n", "answerable")
        try:
            yield task.load(source, columns=Columns() if known else columns)
        except BertvisionError:
            continue  # gone, or of another task


def _same(value: float, stored: Any) -> bool:
    known = finite(stored)
    return known is not None and abs(value - known) <= 1e-6 * max(1.0, abs(known))
