"""`bertvision finetune`: tune an encoder, with snapshots at fractions of an epoch."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from bertvision.cli.columns import columns, terminal_width
from bertvision.cli.flags import OptionalInt, command_line
from bertvision.data.windows import WindowConfig
from bertvision.encoder.device import Precision
from bertvision.tasks.settings import TextConfig
from bertvision.train.config import FinetuneConfig

if TYPE_CHECKING:
    from bertvision.tasks.base import Task
    from bertvision.train.parallel import Parallel
    from bertvision.train.run_folder import RunFolder

__all__ = ["ARGS", "FinetuneArgs", "main"]


@dataclass(frozen=True)
class FinetuneArgs:
    """Tune an encoder on questions, or on texts with labels or scores, keeping snapshots at fractions of an epoch
    (--snapshots 0.3 1.0).

    --policy says what of it trains; --compare runs several policies on the same data and prints one table. Under
    `accelerate launch` or torchrun several devices tune it together.
    """

    train: str
    """Questions: SQuAD .json, .jsonl, .csv, hub:NAME[:SPLIT], demo:train, a saved datasets folder. Texts with labels
    or scores: glue:TASK:FILE, cs224n:SET:FILE, answerable:QUESTIONS, .csv, .tsv, .jsonl (--text.label: a column)."""
    out: Path
    """Folder for the snapshots; with --compare one folder a policy."""
    encoder: str = "embedded"
    """embedded, a local folder in Hugging Face format (or a snapshot's), or a name on the Hub."""
    dev: str = ""
    """Every snapshot is scored on it."""
    compare: tuple[str, ...] = ()
    """Policies to run one after another, such as full,top-6,houlsby-64,lora-16; needs --dev."""
    inference: bool = False
    """Also time the last snapshot on dev, as it is used later."""
    max_train_examples: OptionalInt = None
    """Take only the first so many questions."""
    max_dev_examples: OptionalInt = None
    """Take only the first so many dev questions."""
    device: str = "auto"
    """auto, cpu, cuda or mps."""
    precision: Precision = "auto"
    """fp32, bf16, or auto: bf16 on GPUs that have it."""
    overwrite: bool = False
    """Replace work in --out that was done with other settings."""
    windows: Annotated[WindowConfig, tyro.conf.arg(name="")] = field(default_factory=WindowConfig)
    text: TextConfig = field(default_factory=TextConfig)
    finetune: Annotated[FinetuneConfig, tyro.conf.arg(name="")] = field(default_factory=FinetuneConfig)
    json: bool = False
    """Print the result as JSON."""


ARGS = FinetuneArgs


def main(args: FinetuneArgs) -> None:
    from bertvision.encoder.device import choose_device
    from bertvision.encoder.policy import parse_policy
    from bertvision.errors import ConfigError
    from bertvision.train.parallel import Parallel

    if args.finetune.epochs == 0:
        raise ConfigError("--epochs 0 leaves nothing to do: give the length of the run")
    for name, source in (("train", args.train), ("dev", args.dev)):
        if source.startswith("store:"):
            raise ConfigError(f"--{name} {source} has states and no tokens to tune on: name the data")
    if args.compare:
        if str(parse_policy(args.finetune.policy)) != "full":
            raise ConfigError(
                f"--compare runs the policies it names, and --policy {args.finetune.policy} names one more: leave one "
                "of them out; over a recipe that names it, give --policy full or an empty --compare"
            )
        from bertvision.cli.compare import compare_policies

        compare_policies(args)
        return
    if args.inference and not args.dev:
        raise ConfigError("--inference answers the questions of --dev: name it")
    with Parallel.start(choose_device(args.device)) as parallel:
        _finetune(args, parallel)


def _finetune(args: FinetuneArgs, parallel: "Parallel") -> None:
    from bertvision.artifacts import check_output
    from bertvision.encoder.encoder import Encoder
    from bertvision.pipeline.finetune import inference_seconds, record_snapshots
    from bertvision.train.finetune import tune
    from bertvision.train.job import Job
    from bertvision.train.splits import load_split
    from bertvision.train.tuning import shares_out
    from bertvision.train.zoo import encoder_reference

    parallel.on_main(lambda: check_output(args.out))
    encoder = Encoder.load(
        encoder_reference(args.encoder)[0],
        device=args.device,
        precision=args.precision,
        parked=shares_out(args.finetune, parallel),
    )
    train = load_split(
        args.train, encoder, args.windows, max_examples=args.max_train_examples, text=args.text
    )
    dev = None
    if args.dev:
        dev = load_split(args.dev, encoder, args.windows, max_examples=args.max_dev_examples, like=train)
    stage, snapshots = tune(
        encoder,
        train,
        folder=args.out,
        config=args.finetune,
        dev=dev,
        overwrite=args.overwrite,
        parallel=parallel,
    )
    # Timed once: the same command again only reports it again.
    if args.inference and dev is not None and stage.results.get("inference_of") != dev.fingerprint:
        seconds = parallel.on_main(
            lambda: inference_seconds(snapshots[-1], dev, device=args.device, precision=args.precision)
        )
        stage.finish(stage.results | {"inference_seconds": seconds, "inference_of": dev.fingerprint})
    job = Job(train, dev, head=args.finetune.head)
    parallel.on_main(lambda: record_snapshots(snapshots, [job], encoder, command_line()))
    if parallel.main:
        _show(args, train.task, stage, snapshots)


def _show(args: FinetuneArgs, task: "Task", stage: "RunFolder", snapshots: list[Path]) -> None:
    """What the run gave."""
    from bertvision import console
    from bertvision.encoder.policy import counts_text

    results = dict(stage.results)
    if not args.inference:
        results.pop("inference_seconds", None)
    if args.json:
        found = {"snapshots": [str(path) for path in snapshots], "seconds": stage.seconds}
        about = {"task": task.config(), "scores": results["snapshots"]}
        console.emit_json(results | found | about)
        return
    console.emit(f"{results['policy']}: {counts_text(results['trainable'], results['parameters'])}")
    rows = [
        {"snapshot": str(path)} | task.cells(results["snapshots"].get(path.name, {})) for path in snapshots
    ]
    if not args.dev:
        for row in rows:
            console.emit(row["snapshot"])
    else:
        optional = [name for name in rows[0] if name not in ("snapshot", task.title(task.metric))]
        for line in columns(rows, terminal_width(), texts=("snapshot",), optional=optional):
            console.emit(line)
    if "inference_seconds" in results:
        console.emit(f"answering dev took {results['inference_seconds']:.2f} s")
