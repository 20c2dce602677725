"""`bertvision heads`: what each head costs, for any encoder size."""

import textwrap
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from bertvision.cli.flags import Result, refuse
from bertvision.heads.spec import Unit
from bertvision.options import POSITIONAL, OptionalInt, arg


@dataclass(frozen=True)
class HeadsArgs:
    """Show structure, parameters and FLOPs of heads, for an encoder of any size."""

    heads: Annotated[tuple[str, ...], POSITIONAL, arg(metavar="[HEAD ...]")] = ()
    """Heads such as adapter:size=64,skip, or sets of them (default, papers, pooling+adapters, controls, beyond,
    each_layer, all; with --unit window default, papers, controls, each_layer, all); none = every head that ships, in
    the size of its paper."""
    layers: int = 24
    """Layers of the encoder; heads read one state more, the embedding output."""
    hidden: int = 1024
    """Hidden size of the encoder."""
    tokens: int = 386
    """Tokens of a window."""
    unit: Literal["token", "window", "all"] = "all"
    """Heads that give logits of each token (spans), of whole windows (labels, scores), or both; the name of a set means
    token heads unless this is window."""
    pooler: bool = True
    """Window heads read the pooler's vector as one more channel."""
    encoder_parameters: OptionalInt = None
    """What the percentage refers to; by default a BERT of this size with its output layer (24 x 1024: 335,143,938)."""


def bert_parameters(layers: int, hidden: int) -> int:
    """Parameters of an uncased BERT: 30,522 word pieces, 512 positions, 2 types, pooler and two outputs a token."""
    H = hidden
    embeddings = (30_522 + 512 + 2) * H + 2 * H
    layer = 12 * H * H + 13 * H  # attention 4 H^2, feed-forward 8 H^2; biases and two norms
    return embeddings + layers * layer + H * H + H + 2 * H + 2


def heads(args: HeadsArgs) -> Result:
    from bertvision.heads.spec import CATALOGUE, expand

    for name in ("layers", "hidden", "tokens", "encoder_parameters"):
        value, most = getattr(args, name), 10**15 if name == "encoder_parameters" else 10**6
        wrong = value is not None and not 1 <= value <= most
        refuse((wrong, f"--{name.replace('_', '-')} must lie between 1 and {most:,}, not {value}"))
    if args.heads:
        sets: Unit = "window" if args.unit == "window" else "token"
        texts = list(dict.fromkeys(text for text, _ in expand(args.heads, sets, states=args.layers + 1)))
    else:
        texts = [row.head for row in CATALOGUE if args.unit in (row.unit, "all")]
    encoder = args.encoder_parameters or bert_parameters(args.layers, args.hidden)
    rows = [_row(text, args, encoder) for text in texts]
    source = "as given" if args.encoder_parameters else "a BERT of this size with its output layer"
    title = (
        f"{args.layers + 1} states of {args.hidden}, windows of {args.tokens} tokens. FLOPs: forward pass, a token. "
        f"%: of {encoder:,} parameters ({source})."
    )
    return rows, lambda: _show(title, rows)


def _row(text: str, args: HeadsArgs, encoder: int) -> dict[str, Any]:
    from bertvision.heads.base import Geometry, cost, head_class
    from bertvision.heads.spec import CatalogueRow, find_row, for_windows, parse_head

    found = find_row(parse_head(text))
    known = found or CatalogueRow(text)
    text = for_windows(text, args.tokens)
    spec = parse_head(text)
    cls = head_class(spec.name)
    unit = args.unit if args.unit != "all" else cls.units[0]
    geometry = Geometry(args.layers + 1, args.hidden, unit=unit, pooled=args.pooler and unit == "window")
    price = cost(spec, geometry, tokens=args.tokens)
    compared = price.total if known.counted == "total" else price.parameters
    return {
        "head": text,
        "label": spec.label,
        "name": spec.name,
        "unit": unit,
        "section": known.section,
        "paper": known.paper,
        "origin": known.origin if found else "",
        "structure": (cls.__doc__ or "").strip().partition("\n")[0].rstrip("."),
        "parameters": price.parameters,
        "total": price.total,
        "percent": 100 * compared / encoder,
        "percent_of": known.counted,
        "published_percent": known.published,
        "flops_per_token": price.flops_per_token,
    }


def _show(title: str, rows: list[dict[str, Any]]) -> None:
    """The numbers of all heads, then each one's structure in a sentence; no line is wider than the terminal."""
    from bertvision import console, words

    width = console.terminal_width()
    cells = [
        {
            "head": row["head"],
            "section": row["section"],
            "origin": row["origin"],
            "trainable": f"{row['parameters']:,}",
            "total": f"{row['total']:,}",
            "%": f"{row['percent']:.3f}" + ("*" if row["percent_of"] == "total" else " "),
            "printed": f"{p:.3f}" if (p := row["published_percent"]) is not None else "",
            "FLOPs": words.compact(row["flops_per_token"]),
        }
        for row in rows
    ]
    table = console.columns(cells, width, optional=("printed", "total", "origin", "section"))
    if any(row["percent_of"] == "total" for row in rows):
        table += textwrap.wrap("* of the total, as printed: running means and variances included", width)
    found = {row["name"].removesuffix(".v1"): row["structure"] for row in rows}
    indent = max(map(len, found)) + 2
    how: Any = {"width": max(width, indent + 20), "subsequent_indent": " " * indent}
    structures = [
        line for name, text in found.items() for line in textwrap.wrap(f"{name:<{indent}}{text}", **how)
    ]
    for line in [*textwrap.wrap(title, width), "", *table, "", *structures]:
        console.emit(line)
