"""`bertvision run`: the whole job; without --train the demo."""

import dataclasses
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bertvision.pipeline import RunConfig

__all__ = ["ARGS", "RunArgs", "default_recipe", "main"]


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
    from bertvision.pipeline import run
    from bertvision.report.rows import overview

    settings = {field.name: getattr(args, field.name) for field in dataclasses.fields(RunConfig)}
    results = run(RunConfig(**settings), command=shlex.join(["bertvision", *sys.argv[1:]]))
    report = args.out / "report.html"
    if args.json:
        kept = ("encoder", "data", "systems", "seconds")
        console.emit_json({"report": str(report)} | {key: results[key] for key in kept})
        return
    final = "test" if "test" in results["data"] else "dev"
    columns = ["system", "EM", "F1", "EM tuned", "F1 tuned", "F1 tuned vs snapshot (95 %)", "parameters"]
    rows = [_row(system, final) for system in overview(results).systems]  # best first, as in the report
    console.table(f"{final}: threshold 0, and the threshold tuned on dev", columns, rows)
    best = "* best on dev.  " if any(system["best"] for system in results["systems"]) else ""
    console.emit(f"{best}Report: {report}  ({results['seconds']:.0f} s)")


def _row(system: Mapping[str, Any], split: str) -> list[str]:
    scores, versus = system["scores"][split], system["versus"]
    gain = versus["tuned"]["f1"] if versus else None
    return [
        system["label"] + (" *" if system["best"] else ""),
        *(f"{scores[at][metric]:.1f}" for at in ("zero", "tuned") for metric in ("exact", "f1")),
        f"{gain['difference']:+.1f} ({gain['low']:+.1f} … {gain['high']:+.1f})" if gain else "",
        f"{system['parameters']:,}" if system["parameters"] else "",
    ]
