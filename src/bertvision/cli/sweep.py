"""`bertvision sweep`: the best head among many, by dev scores."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from bertvision.cli.columns import columns, terminal_width
from bertvision.cli.flags import OptionalInt
from bertvision.data.windows import WindowConfig
from bertvision.encoder.device import Precision
from bertvision.states.config import StatesConfig
from bertvision.train.fit import FitConfig
from bertvision.train.search import SearchConfig
from bertvision.train.splits import TextConfig

if TYPE_CHECKING:
    from bertvision.train.parallel import Parallel

__all__ = ["ARGS", "SweepArgs", "main"]

_TOLD = 10
"""Trials that are shown on the terminal."""


@dataclass(frozen=True)
class SweepArgs:
    """Search for the best head: trials chosen by what earlier ones scored on dev, or with --grid all combinations in
    one pass over the states.

    What is varied stands under space: in a recipe, or after --vary: lr=1e-4..1e-2:log size=64,386.
    The same command goes on where a killed one ended; given in several terminals it shares the trials out.
    """

    encoder: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENCODER")] = "embedded"
    """A snapshot folder, a folder in Hugging Face format, a name on the Hub, or embedded."""
    train: str = ""
    """Data the heads are fitted on, as `bertvision fit` takes it."""
    dev: str = ""
    """Data the heads are scored on: its scores choose the trial and the epoch, so they flatter."""
    out: Path = Path("runs/sweep")
    """Folder for the study, its trials and the report."""
    space: Annotated[dict, tyro.conf.Fixed, tyro.conf.Suppress] = field(default_factory=dict)
    vary: tuple[str, ...] = ()
    """What is varied, over what the recipe says: NAME=LOW..HIGH[:log][:step=S][:points=N] or NAME=A,B,C. Names are
    options of the heads and of their training, and batch_size."""
    grid: bool = False
    """Fit every combination in one pass, without optuna; a range needs a step or points."""
    keep_heads: bool = False
    """Keep the heads of all trials, not only of the best."""
    max_train_examples: OptionalInt = None
    """Take only the first so many training examples."""
    max_dev_examples: OptionalInt = None
    """Take only the first so many dev examples."""
    device: str = "auto"
    """auto, cpu, cuda or mps."""
    precision: Precision = "auto"
    """fp32, bf16, or auto: bf16 on GPUs that have it."""
    overwrite: bool = False
    """Replace a sweep in --out that was made with other settings."""
    search: Annotated[SearchConfig, tyro.conf.arg(name="")] = field(default_factory=SearchConfig)
    text: TextConfig = field(default_factory=TextConfig)
    windows: Annotated[WindowConfig, tyro.conf.arg(name="")] = field(default_factory=WindowConfig)
    fit: Annotated[FitConfig, tyro.conf.arg(name="")] = field(default_factory=FitConfig)
    states: StatesConfig = field(default_factory=StatesConfig)
    json: bool = False
    """Print the result as JSON."""


ARGS = SweepArgs


def main(args: SweepArgs) -> None:
    from bertvision.encoder.device import choose_device
    from bertvision.errors import ConfigError
    from bertvision.train.parallel import Parallel, rank_and_world
    from bertvision.train.search import check_optuna

    if not args.grid:
        check_optuna()
        if rank_and_world()[1] > 1:
            raise ConfigError(
                "trials are not run by accelerate launch or torchrun: give the command once for each device, they "
                "share the study in --out"
            )
    for name, value in (("train", args.train), ("dev", args.dev)):
        if not value:
            raise ConfigError(f"--{name} is missing: a sweep fits heads on --train and scores them on --dev")
    if args.dev.startswith("store:"):
        raise ConfigError(f"--dev {args.dev} has no examples to score: name the data")
    with Parallel.start(choose_device(args.device)) as parallel:
        _sweep(args, parallel)


def _sweep(args: SweepArgs, parallel: "Parallel") -> None:
    from bertvision.artifacts import check_output, output_folder
    from bertvision.encoder.encoder import Encoder
    from bertvision.encoder.load import check_apart
    from bertvision.report.sweep import write_sweep_page
    from bertvision.train.splits import load_split
    from bertvision.train.sweep import SweepWork, check_space, run_grid, run_trials
    from bertvision.train.sweep_space import read_space
    from bertvision.train.zoo import encoder_reference

    parallel.on_main(lambda: check_output(args.out))
    folder, about = encoder_reference(args.encoder)
    if args.overwrite:
        check_apart(folder, args.out)
    encoder = Encoder.load(folder, device=args.device, precision=args.precision)
    sizes = (args.max_train_examples, args.max_dev_examples)
    train = load_split(
        args.train, encoder, args.windows, max_examples=sizes[0], stores=args.states.store, text=args.text
    )
    dev = load_split(args.dev, encoder, train.config, max_examples=sizes[1], like=train)
    space = read_space(args.fit.heads, args.space, args.vary, unit=train.task.unit)
    check_space(space, args.fit)
    work = SweepWork(
        encoder, train, dev, about, args.states, args.fit, args.out, args.keep_heads, args.overwrite
    )
    if args.grid:
        results = run_grid(work, space, parallel)
    else:
        output_folder(args.out)
        results = run_trials(work, space, args.search)
    page = args.out / "report.html"
    parallel.on_main(lambda: write_sweep_page(results, page))
    _tell(args, results, page)


def _tell(args: SweepArgs, results: dict[str, Any], page: Path) -> None:
    """The best trials as a table, and what to do next."""
    from bertvision import console
    from bertvision.report import words

    if args.json:
        console.emit_json(results)
        return
    trials = sorted(results["trials"], key=lambda trial: (trial["score"] is None, -(trial["score"] or 0.0)))
    best = next((trial for trial in trials if trial["number"] == results["best"]), None)
    digits = 1 if results["percent"] else 3
    cells = [
        {
            "head": str(trial.get("head", words.UNKNOWN)),
            "trial": str(trial["number"]),
            f"dev {results['title']}": words.UNKNOWN
            if trial["score"] is None
            else f"{trial['score']:.{digits}f}",
            "epochs": str(trial["epochs"]),
            "parameters": words.count(trial.get("parameters")),
            "seconds": words.UNKNOWN if "seconds" not in trial else f"{trial['seconds']:.1f}",
            "status": trial["status"],
        }
        for trial in trials[:_TOLD]
    ]
    for line in columns(
        cells, terminal_width(), texts=("head", "status"), optional=("parameters", "seconds", "epochs")
    ):
        console.emit(line)
    counts = [trial["status"] for trial in trials]
    summary = ", ".join(f"{counts.count(status)} {status}" for status in dict.fromkeys(counts))
    console.emit(f"{len(trials)} {'heads' if results['mode'] == 'grid' else 'trials'}: {summary}; {page}")
    if best is not None:
        console.emit(f"best: --heads {best['head']}, in {args.out / best['folder']}")
