"""`bertvision sweep`: the best head among many, by dev scores."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from bertvision.cli.flags import command_line
from bertvision.pipeline.sweep_config import SweepConfig

_SHOWN = 10
"""Candidates that are shown on the terminal."""


@dataclass(frozen=True)
class SweepArgs(SweepConfig):
    # Without a docstring of its own the help shows SweepConfig's.
    json: bool = False
    """Print the result as JSON."""


SweepArgs.__doc__ = SweepConfig.__doc__
ARGS = SweepArgs


def main(args: SweepArgs) -> None:
    from bertvision import console
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
    with Parallel.start(choose_device(args.device)) as parallel:
        from bertvision.pipeline.sweep import sweep

        settings = {field.name: getattr(args, field.name) for field in fields(SweepConfig)}
        results = sweep(SweepConfig(**settings), command=command_line(), parallel=parallel)
    if args.json:
        console.emit_json(results)
    else:
        _show(results, args.out)


def _show(results: Mapping[str, Any], out: Path) -> None:
    """The best candidates as a table, and what to do next."""
    from bertvision import console, words
    from bertvision.report.results import View, check

    view = View(check(results))
    cells = [
        {
            "head": system["label"],
            "trial": str(int(system["name"])),
            f"dev {view.title()}": view.mean_text(system),
            "epochs": str(system["epochs"]),
            "parameters": words.count(system["parameters"]),
            "seconds": words.number(system["seconds"], percent=True),
            "status": system["status"],
        }
        for system in view.systems[:_SHOWN]
    ]
    optional = ("parameters", "seconds", "epochs")
    console.table(cells, optional=optional)
    unit, counts = view.results["sweep"]["mode"], [system["status"] for system in view.systems]
    summary = ", ".join(f"{counts.count(status)} {status}" for status in dict.fromkeys(counts))
    console.emit(f"{len(counts)} {'heads' if unit == 'grid' else unit}: {summary}; {out / 'report.html'}")
    if (best := view.head) is not None and best["best"]:
        console.emit(f"best: --heads {best['label']}, in {out / best['folder']}")
