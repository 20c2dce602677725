"""The verbs that train and score: run, finetune, multitask, triplet, fit, sweep, eval, ensemble.

Each calls the function of pipeline/ that has its settings, and prints the result as a table.
"""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertvision.cli.flags import Result, command_line
from bertvision.pipeline.config import (
    EnsembleArgs,
    EvalArgs,
    FinetuneArgs,
    FitArgs,
    MultitaskArgs,
    RunArgs,
    SweepArgs,
    TripletArgs,
)

if TYPE_CHECKING:
    from bertvision.pipeline.evaluate import Scored
    from bertvision.pipeline.train import Fitted

_SYSTEMS, _METRICS = 10, 4  # candidates of a sweep, and metrics of a run, that are shown on the terminal


def run(args: RunArgs) -> Result:
    from bertvision.pipeline.run import run

    results = run(args, command=command_line())
    report = args.out / "report.html"
    kept = ("task", "metrics", "encoder", "data", "systems", "seconds")
    return {"report": str(report)} | {key: results[key] for key in kept}, lambda: _show_run(results, report)


def finetune(args: FinetuneArgs) -> Result:
    from bertvision.pipeline.train import compare_policies, finetune

    if args.compare:
        rows = compare_policies(args)
        return rows, lambda: show_policies(rows)
    tuned = finetune(args, command=command_line())
    return tuned, lambda: _show_tuned(tuned)


def multitask(args: MultitaskArgs) -> Result:
    from bertvision.pipeline.train import multitask

    tuned = multitask(args, command=command_line())
    return tuned, lambda: _show_tuned(tuned)


def triplet(args: TripletArgs) -> Result:
    from bertvision.pipeline.train import triplet

    tuned = triplet(args, command=command_line())
    return tuned, lambda: _show_tuned(tuned, metrics=5)


def fit(args: FitArgs) -> Result:
    from bertvision.pipeline.train import fit_heads

    fitted = fit_heads(args, command=command_line())
    return fitted.to_json(), lambda: _show_fitted(fitted, args.out)


def sweep(args: SweepArgs) -> Result:
    from bertvision.pipeline.sweep import sweep

    results = sweep(args, command=command_line())
    return results, lambda: _show_sweep(results, args.out)


def eval(args: EvalArgs) -> Result:
    from bertvision.pipeline.evaluate import evaluate

    rows = evaluate(args, command=command_line())
    return [row for _, row in rows], lambda: _show_scores(rows)


def ensemble(args: EnsembleArgs) -> Result:
    from bertvision.pipeline.evaluate import ensemble

    rows = ensemble(args, command=command_line())
    return [row for _, row in rows], lambda: _show_scores(rows)


# ---- tables


def _show_run(results: Mapping[str, Any], report: Path) -> None:
    """The systems by kind, best first, with the first metrics and the difference to their snapshot."""
    from bertvision import console
    from bertvision.report.results import View, check

    view = View(check(results))
    metrics = list(results["metrics"])[:_METRICS]
    rows = []
    for system in view.systems:
        found = view.difference(system)
        change = f"{found.text} ({found.ends})" if found else ""
        rows.append(
            {
                "system": view.name(system) + " *" * system["best"],
                **{view.title(metric): view.mean_text(system, metric) for metric in metrics},
                f"{view.title()} vs snapshot (95 %)": change,
                "parameters": f"{system['parameters']:,}" if system["parameters"] else "",
            }
        )
    console.table(rows, title=f"scores on {view.split}", optional=("parameters",))
    best = "* best on dev.  " if any(system["best"] for system in view.systems) else ""
    console.emit(f"{best}Report: {report}  ({results['seconds']:.0f} s)")


def _show_tuned(results: Mapping[str, Any], metrics: int = 3) -> None:
    """The snapshots with their scores."""
    from bertvision import console
    from bertvision.encoder.policy import counts_text
    from bertvision.tasks.base import task_from_config

    console.emit(f"{results['policy']}: {counts_text(results['trainable'], results['parameters'])}")
    tasks = {name: task_from_config(task, "tuning") for name, task in results["tasks"].items()}
    rows = []
    for path in results["snapshots"]:
        scores = results["scores"].get(Path(path).name, {})
        for name, task in tasks.items():
            found = scores.get(name, {}) if len(tasks) > 1 else scores
            rows.append({"snapshot": path} | ({"task": name} if name else {}) | task.cells(found, metrics))
    own = {task.title(task.metric) for task in tasks.values()}
    names = dict.fromkeys(name for row in rows for name in row)
    console.table(rows, optional=[name for name in names if name not in {"snapshot", "task", *own}])
    if "inference_seconds" in results:
        console.emit(f"answering dev took {results['inference_seconds']:.2f} s")


def show_policies(rows: Sequence[Mapping[str, Any]]) -> None:
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
    others = [task.title(name) for name in task.metrics if name != task.metric]
    console.table(cells, optional=(*others, "of all"))
    legend = "memory: the most held while training; answer s: seconds to answer all of dev"
    if "efficiency" in rows[0]:
        legend = f"eff.: efficiency, (F1 - 50) / log10(trainable parameters); {legend}"
    for line in textwrap.wrap(legend, console.terminal_width()):
        console.emit(line)


def _show_fitted(fitted: "Fitted", out: Path) -> None:
    """The heads, best first, and below them those that diverged."""
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
    console.emit(_profile_text(fitted.results["profile"]))


def _profile_text(profile: Mapping[str, float]) -> str:
    """Where the time of a fit went; a store's threads read beside it."""
    names = {"encoder": "encoder", "heads": "heads", "waiting": "waiting for states"}
    names |= {"writing": "writing a store", "other": "other"}
    total = max(profile["total"], 1e-9)
    parts = [
        f"{name} {profile[key]:.1f} s ({profile[key] / total:.1%})"
        for key, name in names.items()
        if profile[key] or key != "writing"
    ]
    beside = f"; reading {profile['reading']:.1f} s, beside it" if profile["reading"] else ""
    return f"{total:.1f} s of fitting: {', '.join(parts)}{beside}"


def _show_sweep(results: Mapping[str, Any], out: Path) -> None:
    """The best candidates, and what to do next."""
    from bertvision import console, words
    from bertvision.report.results import View, check

    view = View(check(results))
    cells = [
        {
            "head": system["label"],
            "trial": str(int(system["name"])),
            f"dev {view.title()}": view.mean_text(system),
            "epochs": str(system["epochs"]),
            "parameters": words.count(system["parameters"]),
            "seconds": words.number(system["seconds"], percent=True),
            "status": system["status"],
        }
        for system in view.systems[:_SYSTEMS]
    ]
    console.table(cells, optional=("parameters", "seconds", "epochs"))
    statuses = [system["status"] for system in view.systems]
    counts = ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))
    unit = "heads" if view.results["sweep"]["mode"] == "grid" else "trials"
    console.emit(f"{len(statuses)} {unit}: {counts}; {out / 'report.html'}")
    if (best := view.head) is not None and best["best"]:
        console.emit(f"best: --heads {best['label']}, in {out / best['folder']}")


def _show_scores(rows: "Sequence[Scored]") -> None:
    """Scores of several systems; an asterisk marks the metric a task is judged by."""
    from bertvision import console

    cells = []
    for task, row in rows:
        own = task.metrics[task.metric]
        names = [name for name in dict.fromkeys((*task.selecting, *task.metrics)) if name in row["scores"]]
        scores = {
            task.title(name) + " *" * (name == task.metric): task.metrics[name].text(row["scores"][name])
            for name in names
        }
        if row["oracle"] != row["scores"][task.metric]:
            scores[f"best {task.title(task.metric)}"] = own.text(row["oracle"])
        cells.append({"system": row["system"]} | scores)
    title = f"{rows[0][1]['examples']:,} examples; * what the task is judged by"
    if any(name.startswith("best ") for row in cells for name in row):
        title += "; best: with the tuning that suits this very data best"
    console.table(cells, title=title)
    for _, row in rows:
        if "wordpiece" in row:
            scores = "  ".join(f"{key} {value:.2f}" for key, value in row["wordpiece"].items())
            console.emit(f"{row['system']} on word pieces: {scores}")
