"""`bertvision run`: the whole job; without --train the demo."""

import dataclasses
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bertvision.pipeline import RunConfig

if TYPE_CHECKING:
    from bertvision.report.rows import Overview

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
    from bertvision.report.text_schema import about_texts

    settings = {field.name: getattr(args, field.name) for field in dataclasses.fields(RunConfig)}
    results = run(RunConfig(**settings), command=shlex.join(["bertvision", *sys.argv[1:]]))
    report = args.out / "report.html"
    if args.json:
        kept = ("task", "encoder", "data", "systems", "seconds")
        told = {key: results[key] for key in kept if key in results}
        console.emit_json({"report": str(report)} | told)
        return
    final = "test" if "test" in results["data"] else "dev"
    (_tell_texts if about_texts(results) else _tell_spans)(results, final)
    best = "* best on dev.  " if any(system["best"] for system in results["systems"]) else ""
    console.emit(f"{best}Report: {report}  ({results['seconds']:.0f} s)")


def _name(view: "Overview", system: Mapping[str, Any]) -> str:
    """As the report names it: with its snapshot where there are several."""
    return view.title(system) + (" *" if system["best"] else "")


def _size(system: Mapping[str, Any]) -> str:
    return f"{system['parameters']:,}" if system["parameters"] else ""


def _tell_spans(results: Mapping[str, Any], split: str) -> None:
    from bertvision import console
    from bertvision.report.rows import overview

    columns = ["system", "EM", "F1", "EM tuned", "F1 tuned", "F1 tuned vs snapshot (95 %)", "parameters"]
    view = overview(results)
    rows = [_span_row(view, system, split) for system in view.systems]  # best first, as in the report
    console.table(f"{split}: threshold 0, and the threshold tuned on dev", columns, rows)


def _span_row(view: "Overview", system: Mapping[str, Any], split: str) -> list[str]:
    scores, versus = system["scores"][split], system["versus"]
    gain = versus["tuned"]["f1"] if versus else None
    return [
        _name(view, system),
        *(f"{scores[at][metric]:.1f}" for at in ("zero", "tuned") for metric in ("exact", "f1")),
        f"{gain['difference']:+.1f} ({gain['low']:+.1f} … {gain['high']:+.1f})" if gain else "",
        _size(system),
    ]


def _tell_texts(results: Mapping[str, Any], split: str) -> None:
    """The task's metric first, and the two next to it."""
    from bertvision import console
    from bertvision.report import text_rows, text_words
    from bertvision.report.text_schema import metrics_of

    shown = metrics_of(results)[:3]
    titles = [text_words.TITLES[name] for name in shown]
    view = text_rows.overview(results)
    rows = []
    for system in view.systems:
        found = text_words.paired(system["versus"], split)
        gain = ""
        if found is not None:
            ends = text_words.interval(found["low"], found["high"])
            gain = f"{text_words.change(found['difference'])} ({ends})"
        numbers = [text_words.number(text_rows.mean(system, split, name)) for name in shown]
        rows.append([_name(view, system), *numbers, gain, _size(system)])
    console.table(split, ["system", *titles, f"{titles[0]} vs snapshot (95 %)", "parameters"], rows)
