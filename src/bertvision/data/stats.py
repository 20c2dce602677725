"""What is in a data set, seen through one tokenizer: balance, lengths, windows."""

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertvision.data.examples import SpanData, TextData
from bertvision.data.windows import Windows

_PERCENTILES = (50, 90, 95, 98, 99)


def data_stats(
    data: SpanData | TextData, windows: Windows, *, apart: bool = False, limit: int | None = None
) -> dict[str, Any]:
    """Count what `data` and its `windows` hold.

        tokens            of all windows, special tokens included: what one pass of the encoder reads
        classes           examples and windows of each; of questions, of those with and without an answer. A window of
                          a question, or of answer / no answer, is judged by itself: it may miss the answer
        positive          of two classes, the one F1 is about
        unlabelled        examples without a label; of questions, those whose answer is fully inside no window
        lengths           tokens of an example with special tokens, before cutting; of a pair read apart, of its longer
                          window
        suggested_max_seq_length    that 99 of 100 examples fit in, as a multiple of 8 (which suits matrix units)

    Args:
        apart: Whether each text of a pair has a window of its own.
        limit: The most tokens the encoder reads at once.
    """
    pairs = isinstance(data, SpanData) or data.pairs
    group = 2 if apart and pairs else 1
    lengths = pair_lengths(windows) if group == 1 else windows.lengths.reshape(-1, group).max(axis=1)
    percentiles = np.percentile(lengths, _PERCENTILES, method="higher").astype(int).tolist()
    # The longest hundredth would make every batch's worst case longer for few examples.
    suggested = -(-percentiles[-1] // 8) * 8
    suggested = suggested if limit is None else min(suggested, limit)
    names, positive, paragraphs = ("with answer", "without answer"), None, None
    if isinstance(data, SpanData):
        paragraphs = len({e.paragraph for e in data.examples})
        labels = [int(not e.answerable) for e in data.examples]
        missing = windows.labels[:, 0] == windows.null
        in_windows = Counter(missing.tolist())  # False is 0: with answer
        unlabelled = labels.count(0) - len(np.unique(windows.example[~missing]))
    else:
        names, positive = data.classes, data.classes[data.positive] if len(data.classes) == 2 else None
        labels = [e.label for e in data.examples]
        in_windows = Counter(windows.labels[:, 0].tolist())
        unlabelled = labels.count(None)
    known = np.array([label for label in labels if label is not None], np.float64)
    scores: dict[str, float] = {}
    if data.kind == "score" and len(known):
        values = {"mean": known.mean(), "spread": known.std(), "min": known.min(), "max": known.max()}
        scores = {name: round(float(value), 4) for name, value in values.items()}
    return {
        "name": data.name,
        "kind": data.kind,
        "examples": len(data),
        "windows": len(windows),
        "tokens": windows.num_tokens,
        "classes": {
            name: {"examples": labels.count(i), "windows": in_windows[i]} for i, name in enumerate(names)
        },
        "positive": positive,
        "scores": scores,
        "unlabelled": unlabelled,
        "pairs": pairs,
        "paragraphs": paragraphs,
        "examples_with_one_window": int((np.bincount(windows.example) == group).sum()),
        "lengths": {
            "mean": round(float(lengths.mean()), 1),
            **{f"p{p}": value for p, value in zip(_PERCENTILES, percentiles, strict=True)},
            "max": int(lengths.max()),
        },
        "suggested_max_seq_length": suggested,
        "fits_in_one_window": round(float((lengths <= suggested).mean()), 4),
    }


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
