"""Answers as the three files that run_qa.py users know.

predictions.json        id -> text ("" for no answer)
nbest_predictions.json  id -> list of {start_logit, end_logit, text, probability}, best first
null_odds.json          id -> score of no answer minus score of the best candidate

`null_odds.json` is what `bertvision score --na-prob` reads.
"""

from pathlib import Path

from bertvision.artifacts import write_json_rows
from bertvision.tasks.span.answers import SpanAnswers

__all__ = ["write_answers"]


def write_answers(folder: Path, answers: SpanAnswers, *, threshold: float | None = None) -> None:
    """Write the three files into `folder`, each in one step; `threshold` as in `SpanAnswers.predictions`."""
    write_json_rows(folder / "nbest_predictions.json", answers.nbest)
    write_json_rows(folder / "null_odds.json", answers.null_odds)
    write_json_rows(folder / "predictions.json", answers.predictions(threshold))
