"""`bertvision heads`: what each head costs, for any encoder size."""

from dataclasses import dataclass
from typing import Annotated

import tyro

__all__ = ["ARGS", "HeadsArgs", "main"]


@dataclass(frozen=True)
class HeadsArgs:
    """Parameters and FLOPs of heads, for an encoder of any size."""

    heads: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[HEAD ...]")] = ()
    """Heads such as adapter:size=64,skip; none = the papers' sizes of every head."""
    layers: int = 24
    """Layers of the encoder; heads read one state more, the embedding output."""
    hidden: int = 1024
    """Hidden size of the encoder."""
    tokens: int = 386
    """Tokens of a window."""
    encoder_parameters: int = 335_141_888
    """What the percentage refers to; BERT-large by default."""
    json: bool = False
    """Print the result as JSON."""


ARGS = HeadsArgs

_ZOO = (
    "last_state", "average_pooling", "learned_pooling",
    "adapter:size=64", "adapter:size=64,skip", "adapter:size=386", "adapter:size=386,skip",
)  # fmt: skip


def main(args: HeadsArgs) -> None:
    from bertvision import console
    from bertvision.errors import ConfigError
    from bertvision.heads import Geometry, cost, parse_head
    from bertvision.heads.base import head_class

    for flag in ("layers", "hidden", "tokens", "encoder_parameters"):
        if getattr(args, flag) < 1:
            raise ConfigError(f"--{flag.replace('_', '-')} must be at least 1, not {getattr(args, flag)}")
    geometry = Geometry(states=args.layers + 1, hidden=args.hidden)
    rows = []
    for text in args.heads or _ZOO:
        spec = parse_head(text)
        price = cost(spec, geometry, tokens=args.tokens)
        structure = (head_class(spec.name).__doc__ or "").strip().splitlines()[0].rstrip(".")
        rows.append({
            "label": spec.label,
            "name": spec.name,
            "structure": structure,
            "parameters": price.parameters,
            "percent": price.percent_of(args.encoder_parameters),
            "flops_per_token": price.flops_per_token,
        })  # fmt: skip
    if args.json:
        console.emit_json(rows)
        return
    console.table(
        f"{geometry.states} states of {geometry.hidden}, {args.tokens} tokens",
        ["head", "name", "structure", "parameters", "% of encoder", "FLOPs per token"],
        [
            [
                r["label"],
                r["name"],
                r["structure"],
                f"{r['parameters']:,}",
                f"{r['percent']:.3f}",
                f"{r['flops_per_token']:,}",
            ]
            for r in rows
        ],
    )
