"""Scores as cells of a table, whatever the task."""

from typing import Any

__all__ = ["told"]

_NAMES = ("accuracy", "f1", "mcc", "pearson", "spearman", "log_loss", "mse", "violation_rate")


def told(scores: dict[str, Any]) -> dict[str, str]:
    """Of spans EM and F1 in percent; of labels and scores what they are judged by, between 0 and 1."""
    if "exact" in scores:
        found = {"EM": f"{scores['exact']:.1f}", "F1": f"{scores['f1']:.1f}"}
        return found | {"tuned F1": f"{scores['tuned_f1']:.1f}"}
    return {name.replace("_", " "): f"{scores[name]:.4f}" for name in _NAMES if name in scores}
