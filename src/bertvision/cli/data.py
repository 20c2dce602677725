"""`bertvision data FILE`: what is in a dataset, for an encoder's tokenizer."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from bertvision.cli.flags import Result
from bertvision.config import part_of
from bertvision.data.texts import Columns, Reframe, reframe
from bertvision.data.windows import WindowConfig
from bertvision.options import FLAT, POSITIONAL, OptionalInt, arg


@dataclass(frozen=True)
class TextArgs(Columns, Reframe):
    """How texts with labels or scores are read; datasets that are known by name need none of it."""

    task: Literal["auto", "span", "label", "score"] = "auto"
    """What a table is: auto = spans where it has questions and contexts, else labels; scores must be asked for."""


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
    text: TextArgs = field(default_factory=TextArgs)
    max_examples: OptionalInt = None
    """Look only at the first so many examples."""


def data(args: Data) -> Result:
    from bertvision.data.cutting import make_windows
    from bertvision.data.examples import TextData
    from bertvision.data.load import load_data
    from bertvision.data.stats import data_stats
    from bertvision.encoder.load import load_tokenizer

    found = load_data(
        args.file,
        columns=part_of(Columns, args.text),
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
