"""`bertvision data FILE`: what is in a dataset, for an encoder's tokenizer."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from bertvision.cli.flags import Result
from bertvision.config import part_of
from bertvision.data.reframe import Reframe, reframe
from bertvision.data.texts import Columns
from bertvision.data.windows import WindowConfig
from bertvision.options import FLAT, POSITIONAL, OptionalInt, arg

if TYPE_CHECKING:
    from bertvision.data.stats import DataStats


# Tokenizers without a limit have a huge number instead.
_NO_LIMIT = 1_000_000


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
    limit = tokenizer.model_max_length if tokenizer.model_max_length < _NO_LIMIT else None
    windows = make_windows(found, tokenizer, args.windows)
    stats = data_stats(found, windows, apart=args.windows.apart, limit=limit)
    return stats.to_json(), lambda: _show(stats, args, limit)


def _show(stats: "DataStats", args: Data, limit: int | None) -> None:
    from bertvision import console

    spans, window = stats.kind == "span", args.windows
    groups = {"all": (stats.examples, stats.windows)}
    groups |= {name: (count.examples, count.windows) for name, count in stats.classes.items()}
    if stats.unlabelled and not spans:
        groups["without label"] = (stats.unlabelled, 0)
    rows = [
        {
            "": name,
            "examples": f"{count:,}",
            "share": f"{count / stats.examples:.1%}",
            "windows": f"{windows:,}" if windows else "",
        }
        for name, (count, windows) in groups.items()
    ]
    console.table(rows, title=f"{stats.name} with the tokenizer of {args.encoder}")
    if stats.scores:
        console.table([{name: f"{value:.3f}" for name, value in stats.scores.items()}], title="scores")
    if stats.positive is not None:
        console.emit(
            f"F1 is about {stats.positive!r}; --text.positive of fit and finetune names the other class"
        )
    if stats.paragraphs is not None:
        console.emit(f"{stats.paragraphs:,} paragraphs are asked about")
    console.emit(f"{stats.tokens:,} tokens in all windows")
    if stats.unlabelled and spans:
        console.emit(f"{stats.unlabelled:,} answers are fully inside no window: raise --max-seq-length")
    what = "question and context" if spans else "both texts" if stats.pairs else "the text"
    what = "the longer text" if window.apart and stats.pairs else what
    lengths = {
        name.replace("p", "", 1) + " %" if name[0] == "p" else name: f"{value:,}"
        for name, value in stats.lengths.items()
    }
    console.table([lengths], title=f"tokens of {what} with special tokens, before cutting")
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
