"""Answers as files.

predictions.json     id -> name of the class, or the score
probabilities.json   id -> {class: probability}; label tasks alone
"""

from pathlib import Path

from bertvision.artifacts import write_json_rows
from bertvision.tasks.text.answers import TextAnswers

__all__ = ["write_text_answers"]


def write_text_answers(folder: Path, answers: TextAnswers) -> None:
    """Write the files into `folder`, each in one step."""
    if answers.probabilities is not None:
        names = answers.task.classes
        rows = (dict(zip(names, row, strict=True)) for row in answers.probabilities.tolist())
        write_json_rows(folder / "probabilities.json", dict(zip(answers.ids, rows, strict=True)))
    write_json_rows(folder / "predictions.json", answers.predictions)
