"""What `bertvision eval` and `bertvision ensemble` do with systems of labels and scores."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bertvision.data.columns import Columns
from bertvision.data.texts import TextData
from bertvision.errors import ConfigError, DataError
from bertvision.tasks.text.task import TextTask

if TYPE_CHECKING:
    from bertvision.cli.eval import EvalArgs
    from bertvision.tasks.text.logits import TextLogits
    from bertvision.train.splits import Split
    from bertvision.train.trained import Trained

__all__ = ["eval_texts", "load_labelled", "row_of", "show_texts", "text_task"]


def eval_texts(args: "EvalArgs", names: Sequence[str], systems: "Sequence[Trained]") -> None:
    """Score systems that give a label or a score, those of one task in one call."""
    from bertvision.report.text_heads import write_text_results
    from bertvision.train.trained import logits_of_trained

    if args.scorer != "official":
        raise ConfigError(f"--scorer {args.scorer} is for spans: leave it out for labels and scores")
    if args.second_best:
        raise ConfigError("--second-best is for spans: leave it out for labels and scores")
    if args.text_merge != "stored":
        systems = [replace(s, task=replace(text_task(s), merge=args.text_merge)) for s in systems]
    rows: dict[str, dict[str, Any]] = {}
    for task in dict.fromkeys(text_task(system) for system in systems):
        own = {name: system for name, system in zip(names, systems, strict=True) if system.task == task}
        data = load_labelled(args.data, task, columns=args.text, max_examples=args.max_examples)
        results = logits_of_trained(
            list(own.values()),
            data,
            encoder=args.encoder,
            other_encoder=args.other_encoder,
            device=args.device,
            precision=args.precision,
            states=args.states,
        )
        for name, (split, logits) in zip(own, results, strict=True):
            rows[name] = row_of(name, split, logits)
            if args.out is not None:
                write_text_results(args.out / name, {"eval": (split, logits)})
    show_texts([rows[name] for name in names], as_json=args.json)


def text_task(system: "Trained") -> TextTask:
    assert isinstance(system.task, TextTask)
    return system.task


def load_labelled(source: str, task: TextTask, *, columns: Columns, max_examples: int | None) -> TextData:
    """Data with the labels of `task`; questions for answer / no answer may go without their prefix."""
    from bertvision.data.load import load_data

    if task.asks and not source.startswith("answerable:"):
        source = f"answerable:{source}"
    data = load_data(
        source, columns=columns, task=task.kind, classes=task.classes or None, max_examples=max_examples
    )
    if not isinstance(data, TextData) or (data.spans is not None) != task.asks:
        raise DataError(
            f"{source} holds other data than the heads were fitted on: give texts with a {task.kind}"
        )
    return data


def row_of(name: str, split: "Split", logits: "TextLogits") -> dict[str, Any]:
    """All metrics of a system, and of labels the examples of each class (rows) by their predicted class."""
    from bertvision.tasks.text import answer, confusion, score_texts

    task = split.text_task
    answers = answer(split.windows, logits, split.texts, task)
    row: dict[str, Any] = {"system": name, "metric": task.metric, "examples": len(answers)}
    row |= score_texts(answers, split.texts)
    if task.kind == "label":
        row["classes"] = list(task.classes)
        row["confusion"] = confusion(answers, split.texts).tolist()
    return row


def show_texts(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    """Metrics of several systems, as JSON or as a table; an asterisk marks what a task is judged by."""
    from bertvision import console
    from bertvision.report.text_words import TITLES

    if as_json:
        console.emit_json(rows)
        return
    metrics = [key for key in TITLES if any(key in row for row in rows)]
    judged = {row["metric"] for row in rows}
    columns = ["system", *(TITLES[key] + (" *" if key in judged else "") for key in metrics)]
    cells = [[row["system"], *(f"{row[key]:.4f}" if key in row else "" for key in metrics)] for row in rows]
    console.table(f"{rows[0]['examples']:,} examples; * what the task is judged by", columns, cells)
