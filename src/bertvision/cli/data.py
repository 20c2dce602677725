"""`bertvision data FILE`: what is in a dataset, for an encoder's tokenizer."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from bertvision.cli.flags import Result
from bertvision.data.examples import SpanData, TextData
from bertvision.data.texts import TableConfig, reframe
from bertvision.data.windows import WindowConfig, Windows
from bertvision.options import FLAT, POSITIONAL, OptionalInt, arg

_PERCENTILES = (50, 90, 95, 98, 99)


@dataclass(frozen=True, kw_only=True)
class Data:
    """Show examples, windows, tokens, label balance and lengths of a dataset; suggest a maximum length."""

    file: Annotated[str, POSITIONAL, arg(metavar="DATA")]
    """Questions: SQuAD .json, demo:train|dev|test, or a table with columns of questions and contexts.
    Texts: glue:TASK:FILE, glue:TASK:hub:SPLIT, cs224n:SET:FILE, answerable:QUESTIONS, or a table with columns of texts
    and labels. Tables are .csv, .tsv, .jsonl, .parquet, hub:NAME[:SPLIT] or a folder saved by datasets."""
    encoder: str = "embedded"
    """Encoder whose tokenizer counts: embedded, a local folder or a name on the Hub."""
    windows: Annotated[WindowConfig, FLAT] = field(default_factory=WindowConfig)
    text: TableConfig = field(default_factory=TableConfig)
    max_examples: OptionalInt = None
    """Look only at the first so many examples."""


def data(args: Data) -> Result:
    from bertvision.data.cutting import make_windows
    from bertvision.data.load import load_data
    from bertvision.encoder.load import load_tokenizer

    found = load_data(
        args.file,
        columns=args.text.columns,
        task=args.text.task,
        max_examples=args.max_examples,
        # A test set without labels can be looked at as well; questions without answers would count as unanswerable.
        answers_required=not args.file.startswith(("glue:", "cs224n:")),
    )
    if isinstance(found, TextData):
        found = reframe(found, args.text)
    tokenizer = load_tokenizer(args.encoder)
    longest = tokenizer.model_max_length
    limit = longest if longest < 1_000_000 else None  # a huge number stands for no limit
    windows = make_windows(found, tokenizer, args.windows)
    stats = data_stats(found, windows, apart=args.windows.apart, limit=limit)
    return stats, lambda: _show(stats, args, limit)


def data_stats(
    data: SpanData | TextData, windows: Windows, *, apart: bool = False, limit: int | None = None
) -> dict[str, Any]:
    """Count what `data` and its `windows` hold; `apart`: each text of a pair has a window of its own.

    tokens            of all windows, special tokens included: what one pass of the encoder reads
    classes           examples and windows of each; of questions, of those with and without an answer. A window of
                      a question, or of answer / no answer, is judged by itself: it may miss the answer
    positive          of two classes, the one F1 is about
    unlabelled        examples without a label; of questions, those whose answer is fully inside no window
    lengths           tokens of an example with special tokens, before cutting; of a pair read apart, of its longer
                      window
    suggested_max_seq_length    that 99 of 100 examples fit in, as a multiple of 8 (which suits matrix units), at
                                most `limit`, what the encoder reads at once
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
    scores = {}
    if data.kind == "score" and len(known):
        scores = {"mean": known.mean(), "spread": known.std(), "min": known.min(), "max": known.max()}
    return {
        "name": data.name,
        "kind": data.kind,
        "examples": len(data),
        "windows": len(windows),
        "tokens": windows.num_tokens,
        "classes": {n: {"examples": labels.count(i), "windows": in_windows[i]} for i, n in enumerate(names)},
        "positive": positive,
        "scores": {name: round(float(value), 4) for name, value in scores.items()},
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

    Each context token has its maximal context in exactly one window: those are the context, the rest stands around it.
    """
    starts = windows.example_starts
    context = np.add.reduceat(windows.best, windows.offsets[starts], dtype=np.int64)
    return context + windows.lengths[starts] - np.diff(windows.context[starts])[:, 0]


def _show(stats: dict[str, Any], args: Data, limit: int | None) -> None:
    from bertvision.console import emit, table

    spans, window, total = stats["kind"] == "span", args.windows, stats["examples"]
    groups = {"all": (total, stats["windows"])}
    groups |= {name: (count["examples"], count["windows"]) for name, count in stats["classes"].items()}
    if stats["unlabelled"] and not spans:
        groups["without label"] = (stats["unlabelled"], 0)
    rows = [
        {"": name, "examples": f"{n:,}", "share": f"{n / total:.1%}", "windows": f"{w:,}" if w else ""}
        for name, (n, w) in groups.items()
    ]
    table(rows, title=f"{stats['name']} with the tokenizer of {args.encoder}")
    if stats["scores"]:
        table([{name: f"{value:.3f}" for name, value in stats["scores"].items()}], title="scores")
    if stats["positive"] is not None:
        emit(f"F1 is about {stats['positive']!r}; --text.positive of fit and finetune names the other class")
    if stats["paragraphs"] is not None:
        emit(f"{stats['paragraphs']:,} paragraphs are asked about")
    emit(f"{stats['tokens']:,} tokens in all windows")
    if stats["unlabelled"] and spans:
        emit(f"{stats['unlabelled']:,} answers are fully inside no window: raise --max-seq-length")
    what = "question and context" if spans else "both texts" if stats["pairs"] else "the text"
    what = "the longer text" if window.apart and stats["pairs"] else what
    lengths = {f"{name[1:]} %" if name[0] == "p" else name: f"{n:,}" for name, n in stats["lengths"].items()}
    table([lengths], title=f"tokens of {what} with special tokens, before cutting")
    emit(
        f"windows of {window.max_seq_length} (stride {window.doc_stride} as {window.stride}): "
        f"{stats['examples_with_one_window']:,} of {total:,} examples fit in one"
    )
    suggested = stats["suggested_max_seq_length"]
    why = "the most this encoder reads" if suggested == limit else "99 %, up to a multiple of 8"
    emit(
        f"suggested --max-seq-length {suggested} ({why}): "
        f"{stats['fits_in_one_window']:.1%} of the examples fit in one window"
    )
