"""`bertvision run`: the whole job; without --train the demo."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bertvision.cli.flags import command_line
from bertvision.pipeline.config import RunConfig

__all__ = ["ARGS", "RunArgs", "default_recipe", "main"]

_KINDS = ("snapshot", "control", "head", "ensemble", "baseline")


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

    split = "test" if "test" in results["data"] else "dev"
    own, shown = results["task"]["metric"], list(results["metrics"])[:4]
    sign = -1 if results["metrics"][own]["higher"] else 1
    several = len({system["snapshot"] for system in results["systems"]} - {None}) > 1

    def place(system: Mapping[str, Any]) -> tuple[int, float]:
        return _KINDS.index(system["kind"]), sign * system["scores"][split][own]["mean"]

    rows = []
    for system in sorted(results["systems"], key=place):
        name = system["label"]
        if several and system["kind"] not in ("snapshot", "baseline"):
            name += f" @ {system['snapshot']}"
        scores = system["scores"][split]
        rows.append(
            [
                name + (" *" if system["best"] else ""),
                *(_number(scores[m]["mean"], results["metrics"][m]) if m in scores else "" for m in shown),
                _gain(system["versus"], own, results["metrics"][own]),
                f"{system['parameters']:,}" if system["parameters"] else "",
            ]
        )
    titles = [results["metrics"][name]["title"] for name in shown]
    console.table(split, ["system", *titles, f"{titles[0]} vs snapshot (95 %)", "parameters"], rows)


def _number(value: float, metric: Mapping[str, Any], sign: str = "") -> str:
    return f"{value:{sign}.1f}" if metric["percent"] else f"{value:{sign}.3f}"


def _gain(versus: Mapping[str, Any] | None, name: str, metric: Mapping[str, Any]) -> str:
    if versus is None:
        return ""
    difference, low, high = (
        _number(versus["metrics"][name][key], metric, "+") for key in ("difference", "low", "high")
    )
    return f"{difference} ({low} … {high})"
