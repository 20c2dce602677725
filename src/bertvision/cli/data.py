"""`bertvision data FILE`: what is in a data set, for an encoder's tokenizer."""

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from bertvision.cli.flags import OptionalInt
from bertvision.data.columns import Columns
from bertvision.data.reframe import Reframe, reframe
from bertvision.data.windows import WindowConfig

if TYPE_CHECKING:
    from bertvision.data.stats import DataStats

__all__ = ["ARGS", "DataArgs", "TextArgs", "main"]

# Tokenizers without a limit say so with a huge number.
_NO_LIMIT = 1_000_000


@dataclass(frozen=True)
class TextArgs(Columns, Reframe):
    """How texts with labels or scores are read; data sets that are known by name need none of it."""

    task: Literal["auto", "span", "label", "score"] = "auto"
    """What a table is: auto = spans where it has questions and contexts, else labels; scores must be asked for."""


@dataclass(frozen=True)
class DataArgs:
    """Show examples, windows, tokens, label balance and lengths of a data set; suggest a maximum length."""

    file: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DATA")]
    """Questions: SQuAD .json, demo:train|dev|test, or a table with columns of questions and contexts.
    Texts: glue:TASK:FILE, glue:TASK:hub:SPLIT, cs224n:SET:FILE, answerable:QUESTIONS, or a table with columns of texts
    and labels. Tables are .csv, .tsv, .jsonl, .parquet, hub:NAME[:SPLIT] or a folder saved by datasets."""
    encoder: str = "embedded"
    """Encoder whose tokenizer counts: embedded, a local folder or a name on the Hub."""
    windows: Annotated[WindowConfig, tyro.conf.arg(name="")] = field(default_factory=WindowConfig)
    text: TextArgs = field(default_factory=TextArgs)
    max_examples: OptionalInt = None
    """Look only at the first so many examples."""
    json: bool = False
    """Print the result as JSON."""


ARGS = DataArgs


def main(args: DataArgs) -> None:
    from bertvision import console
    from bertvision.data.load import load_data
    from bertvision.data.stats import data_stats
    from bertvision.data.texts import TextData
    from bertvision.data.windows import make_windows
    from bertvision.encoder.load import load_tokenizer

    data = load_data(
        args.file,
        columns=Columns(**{f.name: getattr(args.text, f.name) for f in fields(Columns)}),
        task=args.text.task,
        max_examples=args.max_examples,
        # A test set without labels can be looked at as well; questions without answers would count as unanswerable.
        answers_required=not args.file.startswith(("glue:", "cs224n:")),
    )
    if isinstance(data, TextData):
        data = reframe(data, args.text)
    tokenizer = load_tokenizer(args.encoder)
    limit = tokenizer.model_max_length if tokenizer.model_max_length < _NO_LIMIT else None
    windows = make_windows(data, tokenizer, args.windows)
    stats = data_stats(data, windows, apart=args.windows.apart, limit=limit)
    if args.json:
        console.emit_json(stats.to_json())
    else:
        _show(stats, args, limit)


def _show(stats: "DataStats", args: DataArgs, limit: int | None) -> None:
    from bertvision import console

    rows = [["all", f"{stats.examples:,}", "100.0%", f"{stats.windows:,}"]]
    for name, count in stats.classes.items():
        share = f"{count.examples / stats.examples:.1%}"
        rows.append([name, f"{count.examples:,}", share, f"{count.windows:,}"])
    if stats.unlabelled and stats.kind != "span":
        share = f"{stats.unlabelled / stats.examples:.1%}"
        rows.append(["without label", f"{stats.unlabelled:,}", share, ""])
    title = f"{stats.name} with the tokenizer of {args.encoder}"
    console.table(title, ["", "examples", "share", "windows"], rows)
    if stats.scores:
        console.table("scores", list(stats.scores), [[f"{value:.3f}" for value in stats.scores.values()]])
    if stats.positive is not None:
        console.emit(
            f"F1 is about {stats.positive!r}; --text.positive of fit and finetune names the other class"
        )
    if stats.paragraphs is not None:
        console.emit(f"{stats.paragraphs:,} paragraphs are asked about")
    console.emit(f"{stats.tokens:,} tokens in all windows")
    _show_lengths(stats, args, limit)
    if stats.unlabelled and stats.kind == "span":
        console.emit(f"{stats.unlabelled:,} answers are fully inside no window: raise --max-seq-length")


def _show_lengths(stats: "DataStats", args: DataArgs, limit: int | None) -> None:
    from bertvision import console

    lengths, window = stats.lengths, args.windows
    what = "question and context" if stats.kind == "span" else "both texts" if stats.pairs else "the text"
    if window.apart and stats.pairs:
        what = "the longer text"
    console.table(
        f"tokens of {what} with special tokens, before cutting",
        [name.replace("p", "", 1) + " %" if name[0] == "p" else name for name in lengths],
        [[f"{value:,}" for value in lengths.values()]],
    )
    console.emit(
        f"windows of {window.max_seq_length} (stride {window.doc_stride} as {window.stride}): "
        f"{stats.examples_with_one_window:,} of {stats.examples:,} examples fit in one"
    )
    at_limit = stats.suggested_max_seq_length == limit
    why = "the most this encoder reads" if at_limit else "99 %, up to a multiple of 8"
    console.emit(
        f"suggested --max-seq-length {stats.suggested_max_seq_length} ({why}): "
        f"{stats.fits_in_one_window:.1%} of the examples fit in one window"
    )
