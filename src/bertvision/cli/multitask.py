"""`bertvision multitask --config RECIPE`: one encoder tuned for several tasks at once."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from bertvision.cli.columns import columns, terminal_width
from bertvision.cli.flags import OptionalInt, command_line
from bertvision.data.windows import WindowConfig
from bertvision.encoder.device import Precision
from bertvision.train.config import MultitaskConfig, TaskSpec

if TYPE_CHECKING:
    from bertvision.train.job import Job
    from bertvision.train.parallel import Parallel

__all__ = ["ARGS", "MultitaskArgs", "main"]


@dataclass(frozen=True)
class MultitaskArgs:
    """Tune one encoder for several tasks at once, a head for each; the recipe names them (`bertvision recipes qabert`).

    Every snapshot holds the encoder and the heads of all tasks: `bertvision predict` answers all of them.
    """

    out: Path
    """Folder for the snapshots."""
    tasks: tyro.conf.Suppress[tuple[TaskSpec, ...]] = ()
    encoder: str = "embedded"
    """embedded, a local folder in Hugging Face format (or a snapshot's), or a name on the Hub."""
    data: str = ""
    """The folder that stands for {data} in the recipe's sources."""
    max_train_examples: OptionalInt = None
    """Take only the first so many examples of each training set."""
    max_dev_examples: OptionalInt = None
    """Take only the first so many dev examples of each task."""
    device: str = "auto"
    """auto, cpu, cuda or mps."""
    precision: Precision = "auto"
    """fp32, bf16, or auto: bf16 on GPUs that have it."""
    overwrite: bool = False
    """Replace work in --out that was done with other settings."""
    windows: Annotated[WindowConfig, tyro.conf.arg(name="")] = field(default_factory=WindowConfig)
    finetune: Annotated[MultitaskConfig, tyro.conf.arg(name="")] = field(default_factory=MultitaskConfig)
    json: bool = False
    """Print the result as JSON."""


ARGS = MultitaskArgs


def main(args: MultitaskArgs) -> None:
    from bertvision.encoder.device import choose_device
    from bertvision.errors import ConfigError
    from bertvision.train.parallel import Parallel

    if not args.tasks:
        raise ConfigError(
            "multitask reads its tasks from a recipe: give --config, for example --config qabert"
        )
    with Parallel.start(choose_device(args.device)) as parallel:
        _multitask(args, parallel)


def _multitask(args: MultitaskArgs, parallel: "Parallel") -> None:
    from bertvision.artifacts import check_output, write_text
    from bertvision.config import dump_yaml
    from bertvision.encoder.encoder import Encoder
    from bertvision.pipeline.finetune import record_snapshots
    from bertvision.train.finetune import tune_jobs
    from bertvision.train.job import load_jobs
    from bertvision.train.zoo import encoder_reference

    parallel.on_main(lambda: check_output(args.out))
    encoder = Encoder.load(encoder_reference(args.encoder)[0], device=args.device, precision=args.precision)
    limits: dict[str, Any] = {
        "max_examples": args.max_train_examples,
        "max_dev_examples": args.max_dev_examples,
    }
    jobs = load_jobs(args.tasks, encoder, args.windows, data=args.data, **limits)
    stage, snapshots = tune_jobs(
        encoder,
        jobs,
        folder=args.out,
        config=args.finetune,
        overwrite=args.overwrite,
        parallel=parallel,
    )

    def end() -> None:
        record = args.out / "config.yaml"
        lasting = dataclasses.replace(args, overwrite=False)
        write_text(record, dump_yaml(lasting, heading=f"bertvision multitask --config {record}"))
        record_snapshots(snapshots, jobs, encoder, command_line())
        _show(args, jobs, stage.results, snapshots)

    parallel.on_main(end)


def _show(args: MultitaskArgs, jobs: "list[Job]", results: dict[str, Any], snapshots: list[Path]) -> None:
    from bertvision import console
    from bertvision.encoder.policy import counts_text

    if args.json:
        console.emit_json(results | {"folders": [str(path) for path in snapshots]})
        return
    console.emit(f"{results['policy']}: {counts_text(results['trainable'], results['parameters'])}")
    rows: list[dict[str, Any]] = []
    for path in snapshots:
        found = results["snapshots"].get(path.name, {})
        for job in jobs:
            scores = (
                found if len(jobs) == 1 else found.get(job.name, {})
            )  # of one task they stand by themselves
            if scores:
                cells = job.task.cells(scores)
                rows.append({"snapshot": path.name, "task": job.name} | cells)
    if rows:
        names = list(dict.fromkeys(key for row in rows for key in row))
        rows = [{name: row.get(name, "") for name in names} for row in rows]
        own = [job.task.title(job.task.metric) for job in jobs]
        optional = [name for name in names[2:] if name not in own]
        for line in columns(rows, terminal_width(), texts=("snapshot", "task"), optional=optional):
            console.emit(line)
    console.emit(f"snapshots in {args.out}: {', '.join(path.name for path in snapshots)}")
