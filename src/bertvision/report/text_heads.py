"""What is kept beside a head of labels or scores: metrics.json and its answers.

metrics.json      metric, temperature (fitted on dev), and for every split all metrics of the task
SPLIT/            predictions.json  probabilities.json (labels alone), beside the logits they come from
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertvision.artifacts import write_json
from bertvision.tasks.text.answers import answer, class_logits
from bertvision.tasks.text.calibration import fit_temperature
from bertvision.tasks.text.files import write_text_answers
from bertvision.tasks.text.logits import TextLogits
from bertvision.tasks.text.score import score_texts
from bertvision.train.splits import Split

__all__ = ["write_text_results"]


def write_text_results(folder: Path, found: Mapping[str, tuple[Split, TextLogits]]) -> dict[str, Any]:
    """Write what a head scored and answered on each split; returns what metrics.json holds.

    The temperature that makes its probabilities honest is fitted on dev, on single windows; answers are written
    without it.
    """
    metrics: dict[str, Any] = {}
    for name, (split, logits) in found.items():
        task = split.text_task
        answers = answer(split.windows, logits, split.texts, task)
        write_text_answers(folder / name, answers)
        metrics[name] = score_texts(answers, split.texts)
        metrics["metric"] = task.metric
        if name == "dev" and task.kind == "label":
            wide = class_logits(logits.values, task)
            labels = split.windows.labels[:: task.group, 0]
            metrics["temperature"] = {"value": fit_temperature(wide, labels), "tuned_on": split.name}
    write_json(folder / "metrics.json", metrics)
    return metrics
