"""`bertvision run`: the whole job; without --train the demo."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bertvision.cli.flags import command_line
from bertvision.pipeline.config import RunConfig

__all__ = ["ARGS", "RunArgs", "default_recipe", "main"]

_METRICS = 4
"""Columns of metrics in the table."""


@dataclass(frozen=True)
class RunArgs(RunConfig):
    # Without a docstring of its own the help shows RunConfig's.
    json: bool = False
    """Print the result as JSON."""


RunArgs.__doc__ = RunConfig.__doc__
ARGS = RunArgs


def default_recipe(argv: list[str]) -> str | None:
    """The demo recipe is the base unless the user names data."""
    named = {word.partition("=")[0] for word in argv} & {"--train", "--dev", "--test"}
    return None if named else "demo"


def main(args: RunArgs) -> None:
    from bertvision import console
    from bertvision.pipeline.run import run

    settings = {field.name: getattr(args, field.name) for field in dataclasses.fields(RunConfig)}
    results = run(RunConfig(**settings), command=command_line())
    report = args.out / "report.html"
    if args.json:
        kept = ("task", "metrics", "encoder", "data", "systems", "seconds")
        console.emit_json({"report": str(report)} | {key: results[key] for key in kept})
        return
    _show(results)
    best = "* best on dev.  " if any(system["best"] for system in results["systems"]) else ""
    console.emit(f"{best}Report: {report}  ({results['seconds']:.0f} s)")


def _show(results: Mapping[str, Any]) -> None:
    """The systems by kind, best first, with the first metrics and the difference to their snapshot."""
    from bertvision import console
    from bertvision.report.results import View, check

    view = View(check(results))
    shown = list(results["metrics"])[:_METRICS]
    rows = []
    for system in view.systems:
        found = view.difference(system)
        rows.append(
            [
                view.name(system) + (" *" if system["best"] else ""),
                *(view.mean_text(system, metric) for metric in shown),
                "{} ({})".format(*view.difference_text(found)) if found else "",
                f"{system['parameters']:,}" if system["parameters"] else "",
            ]
        )
    titles = [view.title(metric) for metric in shown]
    console.table(view.split, ["system", *titles, f"{view.title()} vs snapshot (95 %)", "parameters"], rows)
