"""`bertvision data FILE`: what is in a data set, for an encoder's tokenizer."""

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from bertvision.cli.flags import OptionalInt
from bertvision.data.load import Columns
from bertvision.data.reframe import Reframe, reframe
from bertvision.data.windows import WindowConfig

if TYPE_CHECKING:
    from bertvision.data.stats import DataStats
    from bertvision.data.text_stats import TextStats

__all__ = ["ARGS", "DataArgs", "TextArgs", "main"]

# Tokenizers that know no limit say so with a number nobody means.
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
    """Questions: SQuAD .json, .jsonl, .csv, hub:NAME[:SPLIT], demo:train|dev|test or a saved datasets folder.
    Texts: glue:TASK:FILE, glue:TASK:hub:SPLIT, cs224n:SET:FILE, answerable:QUESTIONS, or .csv, .tsv, .jsonl,
    hub:NAME[:SPLIT] with columns of texts and labels."""
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
    from bertvision.data.text_stats import TextStats, text_stats
    from bertvision.data.text_windows import make_windows_of
    from bertvision.data.texts import TextData
    from bertvision.encoder.load import load_tokenizer

    columns = Columns(**{f.name: getattr(args.text, f.name) for f in fields(Columns)})
    data = load_data(
        args.file,
        columns=columns,
        task=args.text.task,
        max_examples=args.max_examples,
        # A test set without labels can be looked at as well; questions without answers would count as unanswerable.
        answers_required=not args.file.startswith(("glue:", "cs224n:")),
    )
    if isinstance(data, TextData):
        data = reframe(data, args.text)
    tokenizer = load_tokenizer(args.encoder)
    limit = tokenizer.model_max_length if tokenizer.model_max_length < _NO_LIMIT else None
    windows = make_windows_of(data, tokenizer, args.windows)
    if isinstance(data, TextData):
        stats = text_stats(data, windows, apart=args.windows.apart, limit=limit)
    else:
        stats = data_stats(data, windows, limit=limit)
    if args.json:
        console.emit_json(stats.as_dict())
    elif isinstance(stats, TextStats):
        _tell_texts(stats, args, limit)
    else:
        _tell_spans(stats, args, limit)


def _tell_spans(stats: "DataStats", args: DataArgs, limit: int | None) -> None:
    from bertvision import console

    share = stats.windows_with_answer / stats.windows
    console.table(
        f"{stats.name} with the tokenizer of {args.encoder}",
        ["", "count", "with answer", "share"],
        [
            [
                "examples",
                f"{stats.examples:,}",
                f"{stats.answerable:,}",
                f"{stats.answerable / stats.examples:.1%}",
            ],
            ["windows", f"{stats.windows:,}", f"{stats.windows_with_answer:,}", f"{share:.1%}"],
            ["paragraphs", f"{stats.paragraphs:,}", "", ""],
            ["tokens in all windows", f"{stats.tokens:,}", "", ""],
        ],
    )
    _tell_lengths(stats, args, limit, of="question, context and special tokens")
    if stats.examples_without_label:
        console.emit(
            f"{stats.examples_without_label:,} answers are fully inside no window: raise --max-seq-length"
        )


def _tell_texts(stats: "TextStats", args: DataArgs, limit: int | None) -> None:
    from bertvision import console

    rows = [["all", f"{stats.examples:,}", "100.0%", f"{stats.windows:,}"]]
    for name, count in stats.classes.items():
        windows = f"{stats.windows_of_classes[name]:,}"
        rows.append([name, f"{count:,}", f"{count / stats.examples:.1%}", windows])
    if stats.without_label:
        share = f"{stats.without_label / stats.examples:.1%}"
        rows.append(["without label", f"{stats.without_label:,}", share, ""])
    console.table(
        f"{stats.name} with the tokenizer of {args.encoder}", ["", "examples", "share", "windows"], rows
    )
    if stats.scores:
        console.table("scores", list(stats.scores), [[f"{value:.3f}" for value in stats.scores.values()]])
    console.emit(f"{stats.tokens:,} tokens in all windows")
    together = "the longer text" if args.windows.apart else "both texts"
    what = together if stats.pairs else "the text"
    _tell_lengths(stats, args, limit, of=f"{what} and special tokens")


def _tell_lengths(stats: "DataStats | TextStats", args: DataArgs, limit: int | None, *, of: str) -> None:
    from bertvision import console

    lengths, window = stats.lengths, args.windows
    console.table(
        f"tokens of {of}, before cutting",
        [name.replace("p", "", 1) + " %" if name[0] == "p" else name for name in lengths],
        [[f"{value:,}" for value in lengths.values()]],
    )
    console.emit(
        f"windows of {window.max_seq_length} (stride {window.doc_stride} as {window.stride}): "
        f"{stats.examples_with_one_window:,} of {stats.examples:,} examples fit in one"
    )
    why = (
        "the most this encoder reads"
        if stats.suggested_max_seq_length == limit
        else "99 %, up to a multiple of 8"
    )
    console.emit(
        f"suggested --max-seq-length {stats.suggested_max_seq_length} ({why}): "
        f"{stats.fits_in_one_window:.1%} of the examples fit in one window"
    )
