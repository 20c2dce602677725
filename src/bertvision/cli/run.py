"""`bertvision run`: the whole job; without --train the demo."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bertvision.cli.flags import JsonFlag, command_line
from bertvision.config import part_of
from bertvision.pipeline.config import RunArgs

_METRICS = 4
"""Columns of metrics in the table."""


@dataclass(frozen=True, kw_only=True)
class Run(JsonFlag, RunArgs):
    __doc__ = RunArgs.__doc__


ARGS = Run


def default_recipe(words: list[str]) -> str | None:
    """The demo recipe is the base unless the user names data."""
    named = {word.partition("=")[0] for word in words} & {"--train", "--dev", "--test"}
    return None if named else "demo"


def main(args: Run) -> None:
    from bertvision import console
    from bertvision.pipeline.run import run

    results = run(part_of(RunArgs, args), command=command_line())
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
    metrics = list(results["metrics"])[:_METRICS]
    rows = []
    for system in view.systems:
        found = view.difference(system)
        rows.append(
            {
                "system": view.name(system) + (" *" if system["best"] else ""),
                **{view.title(metric): view.mean_text(system, metric) for metric in metrics},
                f"{view.title()} vs snapshot (95 %)": "{} ({})".format(*view.difference_text(found))
                if found
                else "",
                "parameters": f"{system['parameters']:,}" if system["parameters"] else "",
            }
        )
    console.table(rows, title=f"scores on {view.split}", optional=("parameters",))
