"""`bertvision finetune`: tune an encoder, with snapshots at fractions of an epoch, or compare several policies."""

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bertvision.cli.flags import JsonFlag, command_line
from bertvision.config import part_of
from bertvision.pipeline.config import FinetuneArgs

if TYPE_CHECKING:
    from bertvision.pipeline.finetune import Tuned


@dataclass(frozen=True, kw_only=True)
class Finetune(JsonFlag, FinetuneArgs):
    __doc__ = FinetuneArgs.__doc__


ARGS = Finetune


def main(args: Finetune) -> None:
    from bertvision import console
    from bertvision.pipeline.compare import compare_policies
    from bertvision.pipeline.finetune import finetune

    own = part_of(FinetuneArgs, args)
    if not args.compare:
        show(finetune(own, command=command_line()), as_json=args.json)
        return
    rows = compare_policies(own)
    if args.json:
        console.emit_json(rows)
    else:
        show_policies(rows)


def show(tuned: "Tuned", *, as_json: bool, metrics: int = 3) -> None:
    """The snapshots with their scores, for `finetune`, `multitask` and `triplet`."""
    from bertvision import console
    from bertvision.encoder.policy import counts_text

    if as_json:
        console.emit_json(tuned.to_json())
        return
    results = tuned.results
    console.emit(f"{results['policy']}: {counts_text(results['trainable'], results['parameters'])}")
    rows = []
    for path in tuned.snapshots:
        scores = tuned.scores(path)
        for job in tuned.jobs:
            task = {"task": job.name} if job.name else {}
            rows.append({"snapshot": str(path)} | task | job.task.cells(scores.get(job.name, {}), metrics))
    own = {job.task.title(job.task.metric) for job in tuned.jobs}
    names = dict.fromkeys(name for row in rows for name in row)
    console.table(rows, optional=[name for name in names if name not in {"snapshot", "task", *own}])
    if "inference_seconds" in results:
        console.emit(f"answering dev took {results['inference_seconds']:.2f} s")


def show_policies(rows: list[dict[str, Any]]) -> None:
    from bertvision import console
    from bertvision.encoder.policy import short_count
    from bertvision.tasks.base import task_from_config

    task = task_from_config(rows[0]["task"], "finetune")
    cells = [
        {
            "policy": row["policy"],
            "trainable": short_count(row["trainable"]),
            "of all": f"{row['trainable'] / row['parameters']:.2%}",
            "train s": f"{row['seconds']:.1f}",
            "memory": console.size_text(row["peak_bytes"]),
            "answer s": f"{row['inference_seconds']:.2f}",
            **task.cells(row),
            **({"eff.": f"{row['efficiency']:.2f}"} if "efficiency" in row else {}),
        }
        for row in rows
    ]
    legend = "memory: the most held while training; answer s: seconds to answer all of dev"
    if any("efficiency" in row for row in rows):
        legend = f"eff.: efficiency, (F1 - 50) / log10(trainable parameters); {legend}"
    others = [task.title(name) for name in task.metrics if name != task.metric]
    console.table(cells, optional=(*others, "of all"))
    for line in textwrap.wrap(legend, console.terminal_width()):
        console.emit(line)
