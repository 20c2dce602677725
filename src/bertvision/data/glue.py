"""GLUE's published files and its copy on the Hub, and the files of a submission.

The files are tab-separated without quoting. CoLA's train and dev files have no header. The form {"0": {"text_a": ...,
"text_b": ..., "label": ...}, ...} of published samples is read too. A row is called by its index column, or by its
number from 0 on; a submission has a line `index prediction` for each row of a test file:

    CoLA.tsv SST-2.tsv MRPC.tsv QQP.tsv WNLI.tsv            0 or 1
    STS-B.tsv                                               a score from 0 to 5
    MNLI-m.tsv MNLI-mm.tsv QNLI.tsv RTE.tsv AX.tsv          the class in words
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from bertvision.artifacts import write_text
from bertvision.data.building import shorten
from bertvision.data.glue_tasks import GlueTask, glue_task
from bertvision.data.squad import read_text
from bertvision.data.tabular import named_rows, plain_cells
from bertvision.data.text_building import TextBuilder, TextRow, collect, warn_left_out
from bertvision.data.texts import TextData
from bertvision.errors import ConfigError, DataError

__all__ = ["check_rows", "read_glue", "submission_task", "write_submission"]


_IDS = ("index", "id", "idx")


def read_glue(
    task: GlueTask, where: str, *, classes: tuple[str, ...] | None = None, labels_required: bool = True
) -> TextData:
    """Read one file of a task, or hub:SPLIT of it.

    Args:
        where: A .tsv file, a .json file of published samples, or hub:train, hub:validation, hub:test.
        classes: Those of the training set, where it was another one; numbers then follow their order.
        labels_required: False for the test files, which have no labels.
    """
    if not where:
        raise ConfigError(
            f"glue:{task.name} needs a file, for example glue:{task.name}:{task.name}/train.tsv"
        )
    classes = (task.classes if classes is None else classes) if task.kind == "label" else None
    names = task.names if task.kind == "label" else None
    if where.startswith("hub:"):
        source = f"glue:{task.name}:{where}"
        rows = _hub_rows(task, where.removeprefix("hub:") or "train", source)
    else:
        path = Path(where).expanduser()
        source = str(path)
        if path.suffix.lower() == ".json":
            rows = _sample_rows(task, path)
        else:
            rows = _file_rows(task, path, labels_required=labels_required)
    builder = TextBuilder(
        source,
        task.kind,
        classes=classes,
        names=names,
        labels_required=labels_required,
        empty_texts=not source.lower().endswith(
            ".json"
        ),  # as a few rows of the whole sets have, and no sample
    )
    return collect(builder, rows, metric=task.metric)


def _file_rows(task: GlueTask, path: Path, *, labels_required: bool) -> Iterator[TextRow]:
    cells = plain_cells(path)
    line, header = next(cells, (0, []))
    if not header:
        raise DataError(f"{path} is empty; give a file of GLUE's {task.name}")
    if task.texts[0] not in header and task.no_header and len(header) == len(task.no_header):
        cells, header = plain_cells(path), list(task.no_header)
    wanted = [*task.texts, task.label] if labels_required else list(task.texts)
    missing = [name for name in wanted if name not in header]
    if missing:
        hint = (
            "; test files have no labels and can only be predicted on" if missing == [task.label] else
            f"; is it a file of GLUE's {task.name}?"
        )  # fmt: skip
        raise DataError(
            f"{path}:{line} has no column {' and '.join(missing)} (it has {', '.join(header)}){hint}"
        )
    # Not in a file without labels: a test set, of which every row must be in the submission.
    if task.lenient and task.label in header:
        label = header.index(task.label) if labels_required else None
        cells = _whole_rows(path, header, cells, label=label)
    id = next((name for name in _IDS if name in header), None)
    for number, (line, row) in enumerate(named_rows(path, header, cells, quoted=False)):
        texts = [row[name].strip() for name in task.texts]
        second = texts[1] if len(texts) == 2 else None
        yield f"{path}:{line}", row[id] if id else str(number), texts[0], second, row.get(task.label)


def _whole_rows(
    path: Path, header: list[str], cells: Iterator[tuple[int, list[str]]], *, label: int | None
) -> Iterator[tuple[int, list[str]]]:
    """Rows that have all their cells, and something in the cell `label`; the others are left out with a warning."""
    cut: list[int] = []
    unlabelled: list[int] = []
    for line, row in cells:
        if len(row) != len(header):
            cut.append(line)
        elif label is not None and not row[label].strip():
            unlabelled.append(line)
        else:
            yield line, row
    warn_left_out(path, cut, why=f"without the {len(header)} cells of the header")
    warn_left_out(path, unlabelled)


def _sample_rows(task: GlueTask, path: Path) -> Iterator[TextRow]:
    wanted = ("text_a", "text_b")[: len(task.texts)]
    try:
        content = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno} is not valid JSON ({error.msg}); correct it") from None
    if not isinstance(content, dict):
        raise DataError(
            f'{path} must be {{"0": {{"text_a": ..., "text_b": ..., "label": ...}}, ...}}; give a .tsv'
        )
    for key, row in content.items():
        place = f"{path}: row {shorten(key)}"
        for name in wanted:
            if not isinstance(row, dict) or row.get(name) is None:
                raise DataError(f"{place} has no {name}; bring it into the form of the other rows")
        yield place, key, row["text_a"], row["text_b"] if len(wanted) == 2 else None, row.get("label")


def _hub_rows(task: GlueTask, split: str, source: str) -> Iterator[TextRow]:
    from bertvision.data.hub import hub_table, iterate

    # "dev" is what the files are called, "validation" what the Hub calls it.
    table = hub_table("nyu-mll/glue", split=split.replace("dev", "validation"), subset=task.key)
    texts = task.hub_texts or task.texts
    names = ["idx", *texts, "label"]
    missing = [name for name in names if name not in table.column_names]
    if missing:
        raise DataError(f"{source} has no column {' and '.join(missing)}; it is not GLUE's {task.name}")
    for number, row in iterate(table, names):
        label = row["label"]
        if task.kind == "label" or label == -1:
            # The Hub writes -1 where there is no label.
            label = None if label is None or label < 0 else task.classes[label]
        second = row[texts[1]] if len(texts) == 2 else None
        yield f"{source}: row {number}", row["idx"], row[texts[0]], second, label


def submission_task(name: str) -> GlueTask:
    """The task a submission is for; MNLI-m and MNLI-mm are the two test sets of one."""
    return glue_task("MNLI" if name.lower() in ("mnli-m", "mnli-mm") else name)


def check_rows(task: str, data: TextData) -> None:
    """Refuse data a submission cannot be made of: its lines name rows by their numbers."""
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
        data: The test set, as `read_glue` read it; its classes give `predicted` their meaning.
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


def _written(task: GlueTask, data: TextData, value: float) -> str:
    """A prediction as the submission writes it."""
    if task.kind == "score":
        return f"{min(5.0, max(0.0, float(value))):.3f}"
    name = data.classes[int(value)]
    if name not in task.classes:
        raise DataError(
            f"{data.name}: {shorten(name)} is no class of GLUE's {task.name}; give its own test file"
        )
    return (task.values or task.classes)[task.classes.index(name)]
