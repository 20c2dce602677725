"""What is in a data set, seen through one tokenizer: counts, label balance, lengths."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertvision.data.examples import SpanData
from bertvision.data.windows import Windows

__all__ = ["DataStats", "data_stats", "length_summary", "pair_lengths", "suggest_max_length"]

_PERCENTILES = (50, 90, 95, 98, 99)


@dataclass(frozen=True)
class DataStats:
    name: str
    examples: int
    answerable: int
    paragraphs: int
    """Paragraphs that are asked about."""
    windows: int
    windows_with_answer: int
    examples_without_label: int
    """Answerable examples whose answer is fully inside none of their windows."""
    examples_with_one_window: int
    tokens: int
    """Tokens of all windows, special tokens included: what one pass of the encoder reads."""
    lengths: dict[str, float]
    """Tokens of question, context and special tokens before any cutting of the context."""
    suggested_max_seq_length: int
    fits_in_one_window: float
    """Share of the examples that fit in one window of the suggested length."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def data_stats(data: SpanData, windows: Windows, *, limit: int | None = None) -> DataStats:
    """Count what `data` and its `windows` hold; `limit` is the most tokens the encoder reads at once."""
    lengths = pair_lengths(windows)
    answerable = np.fromiter((e.answerable for e in data.examples), np.bool_, len(data))
    labelled = windows.labels[:, 0] != windows.null
    suggested = suggest_max_length(lengths, limit=limit)
    return DataStats(
        name=data.name,
        examples=len(data),
        answerable=int(answerable.sum()),
        paragraphs=len({e.paragraph for e in data.examples}),
        windows=len(windows),
        windows_with_answer=int(labelled.sum()),
        examples_without_label=int(answerable.sum()) - len(np.unique(windows.example[labelled])),
        examples_with_one_window=int((np.bincount(windows.example) == 1).sum()),
        tokens=windows.num_tokens,
        lengths=length_summary(lengths),
        suggested_max_seq_length=suggested,
        fits_in_one_window=round(float((lengths <= suggested).mean()), 4),
    )


def length_summary(lengths: NDArray[np.int64]) -> dict[str, float]:
    """Mean, percentiles and the longest, by the names they are shown under."""
    percentiles = np.percentile(lengths, _PERCENTILES, method="higher")
    return {
        "mean": round(float(lengths.mean()), 1),
        **{f"p{p}": int(value) for p, value in zip(_PERCENTILES, percentiles, strict=True)},
        "max": int(lengths.max()),
    }


def pair_lengths(windows: Windows) -> NDArray[np.int64]:
    """(examples,) tokens of each pair as it was before its context was cut into windows.

    Each context token has its maximal context in exactly one window, so those tokens of an example add up
    to its context.
    """
    starts = windows.example_starts
    tokens = np.concatenate([np.zeros(1, np.int64), np.cumsum(windows.best)])
    context = np.add.reduceat(tokens[windows.offsets[1:]] - tokens[windows.offsets[:-1]], starts)
    around = windows.lengths[starts] - np.diff(windows.context[starts], axis=1)[:, 0]
    return context + around


def suggest_max_length(lengths: NDArray[np.int64], *, limit: int | None = None) -> int:
    """A length that 99 of 100 examples fit in, as a multiple of 8, at most `limit`.

    Multiples of 8 are what matrix units like; the last hundredth would make every batch's worst case
    longer for few examples, and is read through several windows anyway.
    """
    wanted = int(-(-np.percentile(lengths, 99, method="higher") // 8) * 8)
    return wanted if limit is None else min(wanted, limit)
