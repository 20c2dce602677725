"""What is in a data set, seen through one tokenizer: balance, lengths, windows."""

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bertvision.data.examples import SpanData, TextData
from bertvision.data.windows import Windows

_PERCENTILES = (50, 90, 95, 98, 99)


@dataclass(frozen=True)
class ClassCount:
    examples: int
    windows: int
    """A window of a question, or of answer / no answer, is judged by itself: it may miss the answer."""


@dataclass(frozen=True)
class DataStats:
    name: str
    kind: Literal["span", "label", "score"]
    examples: int
    windows: int
    tokens: int
    """Tokens of all windows, special tokens included: what one pass of the encoder reads."""
    classes: dict[str, ClassCount]
    """By class; of questions, those with and without an answer; none for scores."""
    positive: str | None
    """Of two classes, the one F1 is about."""
    scores: dict[str, float]
    """Mean, spread, least and greatest score; none for classes."""
    unlabelled: int
    """Examples without a label; of questions, those whose answer is fully inside none of their windows."""
    pairs: bool
    """Whether an example has two texts."""
    paragraphs: int | None
    """Paragraphs that are asked about; None: texts."""
    examples_with_one_window: int
    lengths: dict[str, float]
    """Tokens of an example with special tokens, before cutting; of a pair read apart, of its longer window."""
    suggested_max_seq_length: int
    fits_in_one_window: float
    """Share of the examples that fit in one window of the suggested length."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def data_stats(
    data: SpanData | TextData, windows: Windows, *, apart: bool = False, limit: int | None = None
) -> DataStats:
    """Count what `data` and its `windows` hold.

    Args:
        apart: Whether each text of a pair has a window of its own.
        limit: The most tokens the encoder reads at once.
    """
    pairs = isinstance(data, SpanData) or data.pairs
    group = 2 if apart and pairs else 1
    lengths = pair_lengths(windows) if group == 1 else windows.lengths.reshape(-1, group).max(axis=1)
    suggested = suggest_max_length(lengths, limit=limit)
    kind, names, positive, paragraphs = "span", ("with answer", "without answer"), None, None
    if isinstance(data, SpanData):
        labels = [int(not e.answerable) for e in data.examples]
        missing = windows.labels[:, 0] == windows.null
        in_windows = Counter(missing.tolist())  # False is 0: with answer
        unlabelled = labels.count(0) - len(np.unique(windows.example[~missing]))
        paragraphs = len({e.paragraph for e in data.examples})
    else:
        kind, names = data.kind, data.classes
        labels = [e.label for e in data.examples]
        in_windows = Counter(windows.labels[:, 0].tolist())
        unlabelled = labels.count(None)
        positive = names[data.positive] if len(names) == 2 else None
    known = np.array([label for label in labels if label is not None], np.float64)
    scores: dict[str, float] = {}
    if kind == "score" and len(known):
        values = {"mean": known.mean(), "spread": known.std(), "min": known.min(), "max": known.max()}
        scores = {name: round(float(value), 4) for name, value in values.items()}
    percentiles = np.percentile(lengths, _PERCENTILES, method="higher")
    return DataStats(
        name=data.name,
        kind=kind,
        examples=len(data),
        windows=len(windows),
        tokens=windows.num_tokens,
        classes={name: ClassCount(labels.count(i), in_windows[i]) for i, name in enumerate(names)},
        positive=positive,
        scores=scores,
        unlabelled=unlabelled,
        pairs=pairs,
        paragraphs=paragraphs,
        examples_with_one_window=int((np.bincount(windows.example) == group).sum()),
        lengths={
            "mean": round(float(lengths.mean()), 1),
            **{f"p{p}": int(value) for p, value in zip(_PERCENTILES, percentiles, strict=True)},
            "max": int(lengths.max()),
        },
        suggested_max_seq_length=suggested,
        fits_in_one_window=round(float((lengths <= suggested).mean()), 4),
    )


def pair_lengths(windows: Windows) -> NDArray[np.int64]:
    """(examples,) tokens of each example as it was before its context was cut into windows.

    Each context token has its maximal context in exactly one window, so those tokens of an example add up to its
    context.
    """
    starts = windows.example_starts
    tokens = np.concatenate([np.zeros(1, np.int64), np.cumsum(windows.best)])
    context = np.add.reduceat(tokens[windows.offsets[1:]] - tokens[windows.offsets[:-1]], starts)
    around = windows.lengths[starts] - np.diff(windows.context[starts], axis=1)[:, 0]
    return context + around


def suggest_max_length(lengths: NDArray[np.int64], *, limit: int | None = None) -> int:
    """A length that 99 of 100 examples fit in, as a multiple of 8, at most `limit`.

    Multiples of 8 suit matrix units. The longest hundredth would make every batch's worst case longer for few
    examples, and is read through several windows anyway.
    """
    wanted = int(-(-np.percentile(lengths, 99, method="higher") // 8) * 8)
    return wanted if limit is None else min(wanted, limit)
