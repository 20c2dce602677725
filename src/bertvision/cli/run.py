"""`bertvision run`: the whole job; without --train the demo."""

import shlex
import sys

from bertvision.pipeline import RunConfig

__all__ = ["ARGS", "default_recipe", "main"]

ARGS = RunConfig


def default_recipe(argv: list[str]) -> str | None:
    """The demo recipe is the base unless the user names training data."""
    named = any(word == "--train" or word.startswith("--train=") for word in argv)
    return None if named else "demo"


def main(args: RunConfig) -> None:
    from bertvision import console
    from bertvision.pipeline import run

    results = run(args, command=shlex.join(["bertvision", *sys.argv[1:]]))
    final = "test" if "test" in results["data"] else "dev"
    rows = []
    for system in results["systems"]:
        scores, versus = system["scores"][final], system["versus"]
        gain = versus["tuned"]["f1"] if versus else None
        rows.append([
            system["label"] + (" *" if system["best"] else ""),
            *(f"{scores[at][metric]:.1f}" for at in ("zero", "tuned") for metric in ("exact", "f1")),
            f"{gain['difference']:+.1f} ({gain['low']:+.1f} … {gain['high']:+.1f})" if gain else "",
            f"{system['parameters']:,}" if system["parameters"] else "",
        ])  # fmt: skip
    columns = ["system", "EM", "F1", "EM tuned", "F1 tuned", "F1 tuned vs snapshot (95 %)", "parameters"]
    console.table(f"{final}: threshold 0, and the threshold tuned on dev", columns, rows)
    console.emit(f"* best on dev.  Report: {args.out / 'report.html'}  ({results['seconds']:.0f} s)")
