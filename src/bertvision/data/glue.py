"""The files of a GLUE submission: a line `index prediction` for each row of a test file.

CoLA.tsv SST-2.tsv MRPC.tsv QQP.tsv WNLI.tsv            0 or 1
STS-B.tsv                                               a score from 0 to 5
MNLI-m.tsv MNLI-mm.tsv QNLI.tsv RTE.tsv AX.tsv          the class in words
"""

from collections.abc import Sequence
from pathlib import Path

from bertvision.artifacts import write_text
from bertvision.data.building import shorten
from bertvision.data.named_sets import GLUE, NamedSet
from bertvision.data.texts import TextData
from bertvision.errors import DataError


def submission_task(name: str) -> NamedSet:
    """The task a submission is for; MNLI-m and MNLI-mm are the two test sets of one."""
    return GLUE.find("MNLI" if name.lower() in ("mnli-m", "mnli-mm") else name)


def check_rows(task: str, data: TextData) -> None:
    """Refuse data without the numbers of rows that a submission's lines name."""
    for example in data.examples:
        if not example.id.isdecimal():
            raise DataError(
                f"{data.name}: the row {shorten(example.id)} has no number a submission could name; "
                f"give the test file of GLUE's {submission_task(task).name}"
            )


def write_submission(task: str, data: TextData, predicted: Sequence[float], folder: str | Path) -> Path:
    """Write the file the benchmark takes for one test set, and return its path.

    Args:
        task: Name of the task; MNLI-m and MNLI-mm, or MNLI, whose part is then read off the name of the data.
        data: The test set as it was read; its classes give `predicted` their meaning.
        predicted: Number of the class, or the score, of each example.
    """
    meant = submission_task(task)
    name = meant.name
    if task.lower() in ("mnli-m", "mnli-mm"):
        name = f"MNLI-{task.lower()[5:]}"
    elif name == "MNLI":
        name = "MNLI-mm" if "mismatched" in Path(data.name).name else "MNLI-m"
    if len(predicted) != len(data):
        raise ValueError(f"{len(predicted)} predictions for {len(data)} examples")
    check_rows(task, data)
    lines = ["index\tprediction"]
    for example, value in zip(data.examples, predicted, strict=True):
        lines.append(f"{example.id}\t{_written(meant, data, value)}")
    path = Path(folder) / f"{name}.tsv"
    write_text(path, "\n".join(lines) + "\n")
    return path


def _written(task: NamedSet, data: TextData, value: float) -> str:
    """A prediction as the submission writes it."""
    if task.kind == "score":
        return f"{min(5.0, max(0.0, float(value))):.3f}"
    name = data.classes[int(value)]
    if name not in task.classes:
        raise DataError(
            f"{data.name}: {shorten(name)} is no class of GLUE's {task.name}; give its own test file"
        )
    return (task.values or task.classes)[task.classes.index(name)]
