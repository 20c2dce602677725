"""The results of a label or score task, as `results.json` holds them: checked, gaps filled.

They share the form of span results (schema.py) where they can; the key "task" tells the two apart.

    schema, bertvision, created, environment, encoder, systems   as for spans
    task      TextTask as a mapping: kind, classes, loss, metric, positive, merge, ...
    data      {part: {"name", "examples", "windows", "tokens", "classes": {name: examples} or
              "scores": {"low", "mean", "high", "spread"}}}
    systems   [{"name", "kind", "label", "snapshot", "parameters", ..., "scores", "versus"}]
              scores.<split>  {"mean": {metric: number}, "spread": {metric: number} | null,
                               "per_seed": [{"seed", metric: number}] | null}
              versus          {"baseline", "split", "metric", "difference", "low", "high", "mcnemar_p" | null} | null
    curves    {"finetune": [{"step", "epoch", "loss", "lr"}], "fit": {system: [{"epoch", "loss", "dev_score"}]}}
    details   {system: {...}} of the chosen head and its snapshot, one member each, on the part the claims are about
              labels  {"seed", "confusion": (C, C) rows truth, "calibration": [{"low", "high", "count",
                       "confidence", "accuracy"}]}
              scores  {"seed", "points": [[true, predicted]] (a draw), "errors": {"edges", "counts"}}
    sweep     results of a sweep over the heads (train/sweep.py), where there was one
    examples  [{"id", "first", "second" | null, "truth", "snapshot", "head"}]; class names or scores

All metrics are between 0 and 1 (mse and mae in units of the score), never percent; null or NaN is not known.
"""

from collections.abc import Mapping
from typing import Any

from bertvision.errors import ArtifactError
from bertvision.report import schema

__all__ = ["LABEL_METRICS", "SCORE_METRICS", "about_texts", "metrics_of", "validate_texts"]

LABEL_METRICS = ("accuracy", "f1", "mcc", "log_loss", "calibration_error")
SCORE_METRICS = ("pearson", "spearman", "mse", "mae")
"""In the order of the table's columns."""


def about_texts(results: Any) -> bool:
    """Whether these are results of a label or score task."""
    return isinstance(results, Mapping) and isinstance(results.get("task"), Mapping)


def metrics_of(results: Mapping[str, Any]) -> tuple[str, ...]:
    """The metrics of the task, its own first."""
    task = results["task"]
    known = SCORE_METRICS if task["kind"] == "score" else LABEL_METRICS
    return (task["metric"], *(name for name in known if name != task["metric"]))


def validate_texts(results: Any, source: str = schema.RESULTS_FILE) -> dict[str, Any]:
    """A copy of `results` with every optional part present; `source` names the file in messages."""
    if not about_texts(results):
        raise ArtifactError(f"{source}: key task is missing; these are no results of a label or score task")
    task = results["task"]
    for key in ("kind", "metric", "classes"):
        if key not in task:
            raise ArtifactError(f"{source}: key task.{key} is missing; repeat the run to write it again")

    def check_scores(parts: Mapping[str, Any], where: str) -> None:
        if task["metric"] not in (parts.get("mean") or {}):
            raise ArtifactError(f"{where}.mean.{task['metric']} is missing; repeat the run")

    checked = schema.check_results(results, source, check_scores)
    checked["details"] = results.get("details") or {}
    checked["sweep"] = results.get("sweep") or None
    return checked
