"""`bertvision heads`: what each head costs, for any encoder size."""

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from bertvision.cli.columns import columns, terminal_width
from bertvision.cli.flags import OptionalInt

if TYPE_CHECKING:
    from bertvision.heads.base import Geometry

__all__ = ["ARGS", "HeadsArgs", "bert_parameters", "main"]


@dataclass(frozen=True)
class HeadsArgs:
    """Structure, parameters and FLOPs of heads, for an encoder of any size."""

    heads: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[HEAD ...]")] = ()
    """Heads such as adapter:size=64,skip, or sets of them (default, papers, pooling+adapters, controls, beyond,
    each_layer, all; with --task label default, papers, controls, each_layer, all); none = every head in the size of its
    paper."""
    layers: int = 24
    """Layers of the encoder; heads read one state more, the embedding output."""
    hidden: int = 1024
    """Hidden size of the encoder."""
    tokens: int = 386
    """Tokens of a window."""
    task: Literal["span", "label", "all"] = "all"
    """Heads for spans, for labels (and scores), or both; a set is of span heads unless it is label."""
    pooler: bool = True
    """Label heads read the pooler's vector as one more channel."""
    encoder_parameters: OptionalInt = None
    """What the percentage refers to; by default a BERT of this size with its output layer (24 x 1024: 335,143,938)."""
    json: bool = False
    """Print the result as JSON."""


ARGS = HeadsArgs


def bert_parameters(layers: int, hidden: int) -> int:
    """Parameters of an uncased BERT: 30,522 word pieces, 512 positions, 2 types, pooler and two outputs a token."""
    H = hidden
    embeddings = (30_522 + 512 + 2) * H + 2 * H
    layer = 12 * H * H + 13 * H  # attention 4 H^2, feed-forward 8 H^2; biases and two norms
    return embeddings + layers * layer + H * H + H + 2 * H + 2


def main(args: HeadsArgs) -> None:
    from bertvision import console
    from bertvision.errors import ConfigError
    from bertvision.heads.base import Geometry
    from bertvision.heads.catalogue import CATALOGUE, expand

    for flag in ("layers", "hidden", "tokens", "encoder_parameters"):
        if (value := getattr(args, flag)) is not None and value < 1:
            raise ConfigError(f"--{flag.replace('_', '-')} must be at least 1, not {value}")
        if flag != "encoder_parameters" and getattr(args, flag) > 10**6:
            raise ConfigError(f"--{flag} must be at most 1,000,000, not {getattr(args, flag)}")
    shapes = {
        "span": Geometry(args.layers + 1, args.hidden),
        "label": Geometry(args.layers + 1, args.hidden, task="label", pooled=args.pooler),
    }
    if args.heads:
        sets = "label" if args.task == "label" else "span"
        texts = list(dict.fromkeys(text for text, _ in expand(args.heads, sets, states=args.layers + 1)))
    else:
        texts = [row.head for row in CATALOGUE if args.task in (row.task, "all")]
    encoder = args.encoder_parameters or bert_parameters(args.layers, args.hidden)
    rows = [_row(text, shapes, args, encoder) for text in texts]
    if args.json:
        console.emit_json(rows)
        return
    width = terminal_width()
    about = "as given" if args.encoder_parameters else "a BERT of this size with its output layer"
    title = (
        f"{args.layers + 1} states of {args.hidden}, windows of {args.tokens} tokens. FLOPs: forward pass, a token. "
        f"%: of {encoder:,} parameters ({about})."
    )
    for line in [*textwrap.wrap(title, width), "", *_table(rows, width)]:
        console.emit(line)


def _row(text: str, shapes: "dict[str, Geometry]", args: HeadsArgs, encoder: int) -> dict[str, Any]:
    """Everything there is to say about one head."""
    from bertvision.heads.base import check_task, head_class
    from bertvision.heads.catalogue import find_row, for_windows
    from bertvision.heads.cost import cost
    from bertvision.heads.spec import parse_head

    spec = parse_head(text)
    cls, known = head_class(spec.name), find_row(spec)
    task = args.task if args.task != "all" else "span" if "span" in cls.tasks else "label"
    check_task(cls, task)
    text = for_windows(text, args.tokens)
    spec = parse_head(text)
    price = cost(spec, shapes[task], tokens=args.tokens)
    counted = known.counted if known else "trainable"
    compared = price.total if counted == "total" else price.parameters
    return {
        "head": text,
        "label": spec.label,
        "name": spec.name,
        "task": task,
        "seed": known.seed if known else "",
        "paper": known.paper if known else "",
        "origin": known.origin if known else "",
        "structure": (cls.__doc__ or "").strip().partition("\n")[0].rstrip("."),
        "parameters": price.parameters,
        "total": price.total,
        "percent": 100 * compared / encoder,
        "percent_of": counted,
        "published_percent": known.published if known else None,
        "flops_per_token": price.flops_per_token,
    }


def _table(rows: list[dict[str, Any]], width: int) -> list[str]:
    """The numbers as a table and the structures below it, no line longer than `width`."""
    from bertvision.report import words

    cells = [
        {
            "head": row["head"],
            "seed": row["seed"],
            "origin": row["origin"],
            "trainable": f"{row['parameters']:,}",
            "total": f"{row['total']:,}",
            "%": f"{row['percent']:.3f}" + ("*" if row["percent_of"] == "total" else " "),
            "printed": f"{p:.3f}" if (p := row["published_percent"]) is not None else "",
            "FLOPs": words.compact(row["flops_per_token"]),
        }
        for row in rows
    ]
    lines = columns(
        cells, width, texts=("head", "seed", "origin"), optional=("printed", "total", "origin", "seed")
    )
    if any(row["percent_of"] == "total" for row in rows):
        lines += textwrap.wrap("* of the total, as printed: running means and variances included", width)
    return [*lines, "", *_structures(rows, width)]


def _structures(rows: list[dict[str, Any]], width: int) -> list[str]:
    told = {row["name"].removesuffix(".v1"): row["structure"] for row in rows}
    indent = max(map(len, told)) + 2
    lines: list[str] = []
    for name, structure in told.items():
        lines += textwrap.wrap(
            f"{name:<{indent}}{structure}", max(width, indent + 20), subsequent_indent=" " * indent
        )
    return lines
