"""What is in a set of texts with labels or scores, seen through one tokenizer: balance, lengths, windows."""

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bertvision.data.stats import length_summary, pair_lengths, suggest_max_length
from bertvision.data.texts import TextData, TextKind
from bertvision.data.windows import Windows

__all__ = ["TextStats", "text_stats"]


@dataclass(frozen=True)
class TextStats:
    name: str
    kind: TextKind
    pairs: bool
    examples: int
    classes: dict[str, int]
    """Examples of each class; none for scores."""
    windows_of_classes: dict[str, int]
    """Windows of each class: of answer / no answer a window is judged by itself."""
    scores: dict[str, float]
    """Mean, spread, least and greatest score; none for classes."""
    without_label: int
    windows: int
    examples_with_one_window: int
    tokens: int
    """Tokens of all windows, special tokens included: what one pass of the encoder reads."""
    lengths: dict[str, float]
    """Tokens of the text or pair with special tokens, before the longer text is cut; of a pair read apart, of its
    longer window."""
    suggested_max_seq_length: int
    fits_in_one_window: float
    """Share of the examples that fit in one window of the suggested length."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def text_stats(
    data: TextData, windows: Windows, *, apart: bool = False, limit: int | None = None
) -> TextStats:
    """Count what `data` and its `windows` hold.

    Args:
        apart: Whether each text of a pair has a window of its own.
        limit: The most tokens the encoder reads at once.
    """
    apart = apart and data.pairs
    lengths = windows.lengths.reshape(-1, 2).max(axis=1) if apart else pair_lengths(windows)
    suggested = suggest_max_length(lengths, limit=limit)
    labels = [example.label for example in data.examples]
    known = np.array([label for label in labels if label is not None], np.float64)
    counted = Counter(labels)
    in_windows = Counter(windows.labels[:, 0].tolist())
    scores: dict[str, float] = {}
    if data.kind == "score" and len(known):
        values = {"mean": known.mean(), "spread": known.std(), "min": known.min(), "max": known.max()}
        scores = {name: round(float(value), 4) for name, value in values.items()}
    return TextStats(
        name=data.name,
        kind=data.kind,
        pairs=data.pairs,
        examples=len(data),
        classes={name: counted[i] for i, name in enumerate(data.classes)},
        windows_of_classes={name: in_windows[i] for i, name in enumerate(data.classes)},
        scores=scores,
        without_label=counted[None],
        windows=len(windows),
        examples_with_one_window=int((np.bincount(windows.example) == (2 if apart else 1)).sum()),
        tokens=windows.num_tokens,
        lengths=length_summary(lengths),
        suggested_max_seq_length=suggested,
        fits_in_one_window=round(float((lengths <= suggested).mean()), 4),
    )
