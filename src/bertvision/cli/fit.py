"""`bertvision fit`: several heads in one pass over a frozen encoder's states."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bertvision.cli.flags import JsonFlag, command_line
from bertvision.config import part_of
from bertvision.pipeline.config import FitArgs

if TYPE_CHECKING:
    from bertvision.pipeline.fit import Fitted


@dataclass(frozen=True, kw_only=True)
class Fit(JsonFlag, FitArgs):
    __doc__ = FitArgs.__doc__


ARGS = Fit


def main(args: Fit) -> None:
    from bertvision import console
    from bertvision.pipeline.fit import fit_heads
    from bertvision.train.profile import profile_text

    fitted = fit_heads(part_of(FitArgs, args), command=command_line())
    if args.json:
        console.emit_json(fitted.to_json())
        return
    _show(fitted, args.out)
    console.emit(profile_text(fitted.results["profile"]))


def _show(fitted: "Fitted", out: Path) -> None:
    """The heads as a table, best first, and below it those that diverged."""
    from bertvision import console, words

    task = fitted.task
    rows = [
        {
            "head": row["head"],
            "parameters": f"{row['parameters']:,}",
            "FLOPs/token": words.compact(row["flops_per_token"]),
            "epoch": f"{row['epoch']}",
            "loss": f"{row['loss']:.4f}",
            **{f"dev {title}": text for title, text in task.cells(row["scores"]).items()},
            "seconds": f"{row['seconds']:.1f}",
        }
        for row in fitted.rows
    ]
    own = f"dev {task.title(task.metric)}"
    others = [name for name in rows[0] if name.startswith("dev ") and name != own]
    console.table(rows, optional=("epoch", "FLOPs/token", *others, "loss"))
    if dropped := fitted.results["dropped"]:
        console.emit(f"dropped, because they diverged: {', '.join(dropped)}")
    console.emit(f"{len(rows)} heads in {out}, best first by {own if own in rows[0] else 'training loss'}")
