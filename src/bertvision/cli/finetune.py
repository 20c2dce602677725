"""`bertvision finetune`: tune an encoder, with snapshots at fractions of an epoch."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from bertvision.cli.flags import OptionalInt
from bertvision.data.windows import WindowConfig
from bertvision.encoder.encoder import Precision
from bertvision.train.finetune import FinetuneConfig

__all__ = ["ARGS", "FinetuneArgs", "main"]


@dataclass(frozen=True)
class FinetuneArgs:
    """Tune an encoder on questions, keeping snapshots at fractions of an epoch (--snapshots 0.3 1.0)."""

    train: str
    """SQuAD .json, .jsonl, .csv, hub:NAME[:SPLIT], demo:train or a saved datasets folder."""
    out: Path
    """Folder for the snapshots."""
    encoder: str = "embedded"
    """embedded, a local folder in Hugging Face format, or a name on the Hub."""
    max_train_examples: OptionalInt = None
    """Take only the first so many questions."""
    device: str = "auto"
    """auto, cpu, cuda or mps."""
    precision: Precision = "auto"
    """fp32, bf16, or auto: bf16 on GPUs that have it."""
    overwrite: bool = False
    """Replace work in --out that was done with other settings."""
    tensorboard: bool = False
    """Write TensorBoard files beside metrics.jsonl."""
    windows: Annotated[WindowConfig, tyro.conf.arg(name="")] = field(default_factory=WindowConfig)
    finetune: Annotated[FinetuneConfig, tyro.conf.arg(name="")] = field(default_factory=FinetuneConfig)
    json: bool = False
    """Print the result as JSON."""


ARGS = FinetuneArgs


def main(args: FinetuneArgs) -> None:
    from bertvision import console
    from bertvision.artifacts import check_output
    from bertvision.encoder.encoder import Encoder
    from bertvision.errors import ConfigError
    from bertvision.train.finetune import tune
    from bertvision.train.splits import load_split

    if args.finetune.epochs == 0:
        raise ConfigError("--epochs 0 leaves nothing to do: give the length of the run")
    check_output(args.out)
    encoder = Encoder.load(args.encoder, device=args.device, precision=args.precision)
    train = load_split(args.train, encoder, args.windows, max_examples=args.max_train_examples)
    stage, snapshots = tune(
        encoder,
        train,
        folder=args.out,
        config=args.finetune,
        overwrite=args.overwrite,
        tensorboard=args.tensorboard,
    )
    if args.json:
        console.emit_json(
            {"snapshots": [str(path) for path in snapshots], "seconds": stage.seconds, **stage.results}
        )
        return
    for path in snapshots:
        console.emit(f"{path}")
