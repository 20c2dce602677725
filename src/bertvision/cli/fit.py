"""`bertvision fit`: several heads in one pass over a frozen encoder's states."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from bertvision.cli.flags import OptionalInt
from bertvision.data.windows import WindowConfig
from bertvision.encoder.encoder import Precision
from bertvision.feed.batches import FeedConfig
from bertvision.train.fit import FitConfig

__all__ = ["ARGS", "FitArgs", "main"]


@dataclass(frozen=True)
class FitArgs:
    """Fit several heads in one pass over the states of a frozen encoder (a snapshot's folder, or any encoder)."""

    encoder: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENCODER")]
    """A snapshot folder, a folder in Hugging Face format, a name on the Hub, or embedded."""
    train: str
    """SQuAD .json, .jsonl, .csv, hub:NAME[:SPLIT], demo:train or a saved datasets folder."""
    out: Path
    """Folder for the heads, one folder each."""
    dev: str = ""
    """Scores on it choose the epoch with --keep best or --patience."""
    max_train_examples: OptionalInt = None
    """Take only the first so many training questions."""
    max_dev_examples: OptionalInt = None
    """Take only the first so many dev questions."""
    device: str = "auto"
    """auto, cpu, cuda or mps."""
    precision: Precision = "auto"
    """fp32, bf16, or auto: bf16 on GPUs that have it."""
    overwrite: bool = False
    """Replace work in --out that was done with other settings."""
    tensorboard: bool = False
    """Write TensorBoard files beside metrics.jsonl."""
    windows: Annotated[WindowConfig, tyro.conf.arg(name="")] = field(default_factory=WindowConfig)
    fit: Annotated[FitConfig, tyro.conf.arg(name="")] = field(default_factory=FitConfig)
    feed: FeedConfig = field(default_factory=FeedConfig)
    json: bool = False
    """Print the result as JSON."""


ARGS = FitArgs


def main(args: FitArgs) -> None:
    from bertvision import console
    from bertvision.artifacts import check_output, write_text
    from bertvision.encoder.encoder import Encoder
    from bertvision.errors import ConfigError
    from bertvision.heads.files import load_head
    from bertvision.report.card import card
    from bertvision.train.splits import load_split
    from bertvision.train.zoo import encoder_reference, fit_zoo, zoo_members

    zoo_members(args.fit)  # a mistyped head should fail before the encoder is loaded
    if args.fit.scores_epochs and not args.dev:
        raise ConfigError("--keep best and --patience need --dev: scores on it choose the epoch")
    check_output(args.out)
    folder, about = encoder_reference(args.encoder)
    encoder = Encoder.load(folder, device=args.device, precision=args.precision)
    train = load_split(args.train, encoder, args.windows, max_examples=args.max_train_examples)
    dev = (
        load_split(args.dev, encoder, args.windows, max_examples=args.max_dev_examples) if args.dev else None
    )
    stage = fit_zoo(
        encoder,
        train,
        folder=args.out,
        config=args.fit,
        windows=args.windows,
        encoder_about=about,
        feed=args.feed,
        dev=dev,
        overwrite=args.overwrite,
        tensorboard=args.tensorboard,
    )
    rows = []
    for name, info in stage.results["heads"].items():
        head, config = load_head(args.out / name)
        write_text(args.out / name / "README.md", card(config, {}))
        last = info["history"][-1]
        rows.append(
            {
                "folder": str(args.out / name),
                "parameters": head.num_parameters,
                **last,
                "seconds": info["seconds"],
            }
        )
    if args.json:
        console.emit_json({"heads": rows, "dropped": stage.results["dropped"]})
        return
    columns = ["head", "parameters", "loss", "dev F1", "seconds"]
    cells = [
        [
            r["folder"],
            f"{r['parameters']:,}",
            f"{r['loss']:.4f}",
            f"{r['score']:.1f}" if "score" in r else "",
            f"{r['seconds']:.1f}",
        ]
        for r in rows
    ]
    console.table("", columns, cells)
