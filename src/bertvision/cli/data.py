"""`bertvision data FILE`: what is in a data set, for an encoder's tokenizer."""

from dataclasses import dataclass, field
from typing import Annotated

import tyro

from bertvision.cli.flags import OptionalInt
from bertvision.data.windows import WindowConfig

__all__ = ["ARGS", "DataArgs", "main"]

# Tokenizers that know no limit say so with a number nobody means.
_NO_LIMIT = 1_000_000


@dataclass(frozen=True)
class DataArgs:
    """Show examples, windows, tokens, label balance and lengths of a data set; suggest a maximum length."""

    file: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DATA")]
    """SQuAD .json, .jsonl, .csv, hub:NAME[:SPLIT], demo:train|dev|test or a saved datasets folder."""
    encoder: str = "embedded"
    """Encoder whose tokenizer counts: embedded, a local folder or a name on the Hub."""
    windows: Annotated[WindowConfig, tyro.conf.arg(name="")] = field(default_factory=WindowConfig)
    max_examples: OptionalInt = None
    """Look only at the first so many questions."""
    json: bool = False
    """Print the result as JSON."""


ARGS = DataArgs


def main(args: DataArgs) -> None:
    from bertvision import console
    from bertvision.data.load import load_span_data
    from bertvision.data.stats import data_stats
    from bertvision.data.windows import make_windows
    from bertvision.encoder.load import load_tokenizer

    data = load_span_data(args.file, max_examples=args.max_examples)
    tokenizer = load_tokenizer(args.encoder)
    limit = tokenizer.model_max_length if tokenizer.model_max_length < _NO_LIMIT else None
    stats = data_stats(data, make_windows(data, tokenizer, args.windows), limit=limit)
    if args.json:
        console.emit_json(stats.as_dict())
        return
    share = stats.windows_with_answer / stats.windows
    window = args.windows
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
    lengths = stats.lengths
    console.table(
        "tokens of question, context and special tokens, before cutting",
        [name.replace("p", "", 1) + " %" if name[0] == "p" else name for name in lengths],
        [[f"{value:,}" for value in lengths.values()]],
    )
    console.emit(
        f"windows of {window.max_seq_length} (stride {window.doc_stride} as {window.stride}): "
        f"{stats.examples_with_one_window:,} of {stats.examples:,} examples fit in one"
    )
    if stats.examples_without_label:
        console.emit(
            f"{stats.examples_without_label:,} answers are fully inside no window: raise --max-seq-length"
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
