"""Labels and scores of texts: loss, merging of windows, metrics and comparisons.

Flow: logits (`TextLogits`) -> `answer` -> `TextAnswers` -> `score_texts`, `answers_metric`, `confusion`; beside it
`joined_logits` for ensembles, `fit_temperature` for honest probabilities, `paired_difference` and `mcnemar` for
comparisons. Only `text_loss` needs torch, and is imported when it is first used.
"""

from typing import TYPE_CHECKING, Any

from bertvision.tasks.text.answers import TextAnswers, answer, class_logits, joined_logits
from bertvision.tasks.text.calibration import calibration_curve, calibration_error, fit_temperature
from bertvision.tasks.text.compare import Difference, mcnemar, paired_difference
from bertvision.tasks.text.files import write_text_answers
from bertvision.tasks.text.logits import TextLogits
from bertvision.tasks.text.score import (
    answers_metric,
    confusion,
    label_counts,
    metric,
    score_errors,
    score_texts,
    truth,
)
from bertvision.tasks.text.task import Merge, TextLoss, TextTask, task_of

if TYPE_CHECKING:
    from bertvision.tasks.text.loss import text_loss

__all__ = [
    "Difference",
    "Merge",
    "TextAnswers",
    "TextLogits",
    "TextLoss",
    "TextTask",
    "answer",
    "answers_metric",
    "calibration_curve",
    "calibration_error",
    "class_logits",
    "confusion",
    "fit_temperature",
    "joined_logits",
    "label_counts",
    "mcnemar",
    "metric",
    "paired_difference",
    "score_errors",
    "score_texts",
    "task_of",
    "text_loss",
    "truth",
    "write_text_answers",
]


def __getattr__(name: str) -> Any:
    if name == "text_loss":
        from bertvision.tasks.text.loss import text_loss

        return text_loss
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
