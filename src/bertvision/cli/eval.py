"""`bertvision eval HEAD ... --data FILE`: official scores of trained heads; all metrics of labels and scores."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bertvision.cli.flags import JsonFlag, command_line
from bertvision.config import part_of
from bertvision.pipeline.config import EvalArgs

if TYPE_CHECKING:
    from bertvision.pipeline.evaluate import Scored


@dataclass(frozen=True, kw_only=True)
class Eval(JsonFlag, EvalArgs):
    __doc__ = EvalArgs.__doc__


ARGS = Eval


def main(args: Eval) -> None:
    from bertvision.pipeline.evaluate import evaluate

    show(evaluate(part_of(EvalArgs, args), command=command_line()), as_json=args.json)


def show(rows: "Sequence[Scored]", *, as_json: bool) -> None:
    """Scores of several systems, for `eval` and `ensemble`; an asterisk marks the metric a task is judged by."""
    from bertvision import console

    if as_json:
        console.emit_json([row.to_json() for row in rows])
        return
    cells = []
    for row in rows:
        task, scores = row.task, {}
        for name in dict.fromkeys((*task.selecting, *task.metrics)):
            if name in row.scores:
                scores[task.title(name) + " *" * (name == task.metric)] = task.metrics[name].text(
                    row.scores[name]
                )
        if row.oracle != row.scores[task.metric]:
            scores[f"best {task.title(task.metric)}"] = task.metrics[task.metric].text(row.oracle)
        cells.append({"system": row.system} | scores)
    title = f"{rows[0].examples:,} examples; * what the task is judged by"
    if any(name.startswith("best ") for row in cells for name in row):
        title += "; best: with the tuning that suits this very data best"
    console.table(cells, title=title)
    for row in rows:
        if row.wordpiece is not None:
            scores = "  ".join(f"{key} {value:.2f}" for key, value in row.wordpiece.items())
            console.emit(f"{row.system} on word pieces: {scores}")
