"""`bertvision triplet`: pre-train an encoder on triplets mined from SST, STS and Quora."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from bertvision.cli.columns import columns, terminal_width
from bertvision.cli.flags import OptionalFloat, OptionalInt
from bertvision.data.windows import WindowConfig
from bertvision.encoder.device import Precision
from bertvision.train.config import FinetuneConfig

if TYPE_CHECKING:
    from bertvision.data.texts import TextData
    from bertvision.data.triplets import TripletSet
    from bertvision.train.parallel import Parallel

__all__ = ["ARGS", "TripletArgs", "main"]


@dataclass(frozen=True)
class TripletArgs:
    """Bring texts of one kind together and others apart, before the encoder is tuned for its tasks.

    An anchor has one positive and up to five negatives: three of its own set and one of each other set. The snapshots
    are encoders for finetune, multitask and fit. Distances and violations are logged in metrics.jsonl.
    """

    out: Path
    """Folder for the snapshots."""
    sst: tuple[str, ...] = ()
    """Texts with classes, such as cs224n:sst:FILE; several are joined."""
    sts: tuple[str, ...] = ()
    """Pairs with a score from 0 to 5, such as cs224n:sts:FILE."""
    quora: tuple[str, ...] = ()
    """Pairs that are paraphrases or not, such as cs224n:quora:FILE."""
    encoder: str = "embedded"
    """embedded, a local folder in Hugging Face format (or a snapshot's), or a name on the Hub."""
    form: Literal["softmin", "paper"] = "softmin"
    """softmin: every negative must be farther than the positive; paper: one far negative is enough."""
    margin: OptionalFloat = None
    """How much farther; by default 1 for softmin and 0 for paper, which has none."""
    held_out: float = 0.05
    """Part of the triplets that is not trained on and whose distances are told; most of their texts stand in other
    triplets, which are."""
    max_examples: OptionalInt = None
    """Take only the first so many triplets, after mixing."""
    device: str = "auto"
    """auto, cpu, cuda or mps."""
    precision: Precision = "auto"
    """fp32, bf16, or auto: bf16 on GPUs that have it."""
    overwrite: bool = False
    """Replace work in --out that was done with other settings."""
    windows: Annotated[WindowConfig, tyro.conf.arg(name="")] = field(
        default_factory=lambda: WindowConfig(max_seq_length=128)
    )
    finetune: Annotated[FinetuneConfig, tyro.conf.arg(name="")] = field(
        default_factory=lambda: FinetuneConfig(lr=1e-5)
    )
    json: bool = False
    """Print the result as JSON."""


ARGS = TripletArgs


def main(args: TripletArgs) -> None:
    from bertvision.encoder.device import choose_device
    from bertvision.errors import ConfigError
    from bertvision.train.parallel import Parallel

    if not (args.sst or args.sts or args.quora):
        raise ConfigError("triplet needs labelled texts: name some with --sst, --sts or --quora")
    if not 0 <= args.held_out < 1:
        raise ConfigError(f"--held-out must be at least 0 and below 1, not {args.held_out}")
    with Parallel.start(choose_device(args.device)) as parallel:
        _triplet(args, parallel)


def _triplet(args: TripletArgs, parallel: "Parallel") -> None:
    import numpy as np

    from bertvision import console
    from bertvision.artifacts import check_output
    from bertvision.data.triplets import mine_triplets
    from bertvision.encoder.encoder import Encoder
    from bertvision.tasks.triplet import TripletTask
    from bertvision.train.finetune import tune
    from bertvision.train.job import load_joined
    from bertvision.train.splits import window_split
    from bertvision.train.zoo import encoder_reference

    named: dict[TripletSet, tuple[str, ...]] = {"sst": args.sst, "sts": args.sts, "quora": args.quora}
    parallel.on_main(lambda: check_output(args.out))
    sets: dict[TripletSet, TextData] = {
        name: load_joined(sources) for name, sources in named.items() if sources
    }
    mined = mine_triplets(sets, seed=args.finetune.seed)
    order = np.random.default_rng(args.finetune.seed).permutation(len(mined))[: args.max_examples]
    apart = round(len(order) * args.held_out)
    usual = 1.0 if args.form == "softmin" else 0.0
    margin = usual if args.margin is None else args.margin
    task = TripletTask(args.form, margin, group=2 + mined.negatives)
    encoder = Encoder.load(encoder_reference(args.encoder)[0], device=args.device, precision=args.precision)
    train = window_split(mined.take(order[apart:]), encoder, args.windows, keep=False, task=task)
    held_out = mined.take(order[:apart])
    dev = window_split(held_out, encoder, args.windows, keep=False, task=task) if apart else None
    stage, snapshots = tune(
        encoder,
        train,
        folder=args.out,
        config=args.finetune,
        dev=dev,
        overwrite=args.overwrite,
        parallel=parallel,
    )
    if not parallel.main:
        return
    if args.json:
        console.emit_json(stage.results | {"folders": [str(path) for path in snapshots]})
        return
    scores = stage.results["snapshots"]
    rows = [{"snapshot": str(path)} | task.cells(scores.get(path.name, {}), 5) for path in snapshots]
    console.emit(f"{len(train.data):,} triplets to train on, {apart:,} held out")
    for line in columns(rows, terminal_width(), texts=("snapshot",), optional=("paper loss", "softmin loss")):
        console.emit(line)
