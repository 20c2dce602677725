"""`bertvision fit`: several heads in one pass over a frozen encoder's states."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from bertvision.cli.columns import columns, terminal_width
from bertvision.cli.flags import OptionalInt, command_line
from bertvision.data.windows import WindowConfig
from bertvision.encoder.device import Precision
from bertvision.states.config import StatesConfig
from bertvision.tasks.settings import TextConfig
from bertvision.train.config import FitConfig

if TYPE_CHECKING:
    from bertvision.pipeline.fit import Fitted
    from bertvision.train.parallel import Parallel

__all__ = ["ARGS", "FitArgs", "main"]


@dataclass(frozen=True)
class FitArgs:
    """Fit several heads in one pass over the states of a frozen encoder (a snapshot's folder, or any encoder).

    --heads takes heads and sets of them: papers, pooling+adapters, controls, beyond, each_layer, all. Under
    `accelerate launch` or torchrun several devices fit them together.
    """

    encoder: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENCODER")]
    """A snapshot folder, a folder in Hugging Face format, a name on the Hub, or embedded."""
    train: str
    """Questions: SQuAD .json, .jsonl, .csv, hub:NAME[:SPLIT], demo:train, a saved datasets folder. Texts with labels or
    scores: glue:TASK:FILE, cs224n:SET:FILE, answerable:QUESTIONS, .csv, .tsv or .jsonl (--text.label names a column).
    Or store:KEY: the windows, labels and states of a store (`bertvision cache ls`), without their data."""
    out: Path
    """Folder for the heads, one folder each."""
    dev: str = ""
    """Heads are scored on it and their thresholds tuned; with --keep best or --patience it chooses the epoch."""
    with_encoder: bool = False
    """Keep the encoder in --out, beside its heads: one folder that can be moved. Of a snapshot with adapters, LoRA or
    tuned biases that is a few MB; the encoder it was tuned from is still needed."""
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
    windows: Annotated[WindowConfig, tyro.conf.arg(name="")] = field(default_factory=WindowConfig)
    text: TextConfig = field(default_factory=TextConfig)
    fit: Annotated[FitConfig, tyro.conf.arg(name="")] = field(default_factory=FitConfig)
    states: StatesConfig = field(default_factory=StatesConfig)
    json: bool = False
    """Print the result as JSON."""


ARGS = FitArgs


def main(args: FitArgs) -> None:
    from bertvision.encoder.device import choose_device
    from bertvision.train.parallel import Parallel

    with Parallel.start(choose_device(args.device)) as parallel:
        _fit(args, parallel)


def _fit(args: FitArgs, parallel: "Parallel") -> None:
    from bertvision import console
    from bertvision.pipeline.fit import FitJob, fit_heads
    from bertvision.train.profile import profile_text

    given = {field.name: getattr(args, field.name) for field in fields(FitJob) if field.name != "command"}
    fitted = fit_heads(args.encoder, FitJob(**given, command=command_line()), parallel)
    if not parallel.main:
        return
    results = fitted.stage.results
    if args.json:
        kept = {name: results[name] for name in ("dropped", "states", "profile")}
        console.emit_json({"heads": fitted.rows} | kept)
        return
    _show(fitted, args.out)
    console.emit(profile_text(results["profile"]))


def _show(fitted: "Fitted", out: Path) -> None:
    """The heads as a table, best first, and below it those that diverged."""
    from bertvision import console, words

    task, rows = fitted.task, fitted.rows
    cells = [
        {"head": row["head"], "parameters": f"{row['parameters']:,}"}
        | {"FLOPs/token": words.compact(row["flops_per_token"]), "epoch": f"{row['epoch']}"}
        | {"loss": f"{row['loss']:.4f}"}
        | {f"dev {title}": text for title, text in task.cells(row["scores"]).items()}
        | {"seconds": f"{row['seconds']:.1f}"}
        for row in rows
    ]
    own = f"dev {task.title(task.metric)}"
    others = [name for name in cells[0] if name.startswith("dev ") and name != own]
    for line in columns(
        cells, terminal_width(), texts=("head",), optional=("epoch", "FLOPs/token", *others, "loss")
    ):
        console.emit(line)
    if dropped := fitted.stage.results["dropped"]:
        console.emit(f"dropped, because they diverged: {', '.join(dropped)}")
    console.emit(f"{len(rows)} heads in {out}, best first by {own if own in cells[0] else 'training loss'}")
