"""Published sets that are known by name: GLUE's nine tasks with their diagnostic set AX, and the sets of CS224N.

Each set is a row of a table that says how its files are written and what it is judged by. Classes have the order they
have on the Hub. Metrics are GLUE's own: Matthews' correlation for CoLA, Pearson's for STS-B, F1 for MRPC and QQP,
else accuracy. A row is called by its index column, or by its number from 0 on.

    GLUE     tab-separated without quoting; CoLA's train and dev files have no header. The form {"0": {"text_a": ...,
             "text_b": ..., "label": ...}, ...} of published samples and the copy on the Hub are read too.
    CS224N   called .csv and tab-separated, with cells in double quotes where they hold some; test files have one more
             column in front, and a part of Quora's training set has no header.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from bertvision.artifacts import write_text
from bertvision.data.checks import parse_json, read_text, shorten
from bertvision.data.examples import Metric, TextData, TextKind
from bertvision.data.tables import Row, Table, named_rows, read_cells
from bertvision.data.texts import IDS, Columns, read_texts
from bertvision.errors import ConfigError, DataError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class NamedSet:
    """How the files of one set are written and what it is judged by."""

    name: str
    texts: tuple[str, ...]
    """Columns of the one text or the two."""
    label: str = "label"
    """Column of the label."""
    classes: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    """What the files write for each class; empty: the names themselves."""
    metric: Metric = "accuracy"
    no_header: tuple[str, ...] = ()
    """Columns of a file without a header line."""
    hub_texts: tuple[str, ...] = ()
    """Columns of the texts on the Hub, where they differ."""
    lenient: bool = False
    """The files with labels hold a few broken rows, which are left out with a warning."""

    @property
    def key(self) -> str:
        """Its name in lower case without hyphens, as on the Hub."""
        return _key(self.name)

    @property
    def kind(self) -> TextKind:
        return "label" if self.classes else "score"


def _key(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


@dataclass(frozen=True)
class Collection:
    """Sets that are written alike."""

    name: str
    member: str
    """What one of its sets is called."""
    sets: tuple[NamedSet, ...]
    quoted: bool = False
    """Whether cells may stand in double quotes."""
    hub: str = ""
    """Name of their copy on the Hub, where there is one; labels are numbers there."""

    def find(self, name: str) -> NamedSet:
        """The set of this name, in any case, with or without its hyphen."""
        found = next((one for one in self.sets if one.key == _key(name)), None)
        if found is None:
            raise ConfigError(
                f"{self.name} has no {self.member} {name!r}; "
                f"choose one of {', '.join(one.name for one in self.sets)}"
            )
        return found


_ONE, _TWO, _PREMISE = ("sentence",), ("sentence1", "sentence2"), ("premise", "hypothesis")
_ENTAILED = ("entailment", "not_entailment")
_NLI = ("entailment", "neutral", "contradiction")
_FIVE = ("very negative", "negative", "neutral", "positive", "very positive")
_01 = ("0", "1")

GLUE = Collection("GLUE", "task", (
    NamedSet("CoLA", _ONE, "label", ("unacceptable", "acceptable"), _01, "mcc",
             no_header=("source", "label", "mark", "sentence")),
    NamedSet("SST-2", _ONE, "label", ("negative", "positive"), _01),
    NamedSet("MRPC", ("#1 String", "#2 String"), "Quality", ("not_equivalent", "equivalent"), _01, "f1",
             hub_texts=_TWO),
    NamedSet("QQP", ("question1", "question2"), "is_duplicate", ("not_duplicate", "duplicate"), _01, "f1",
             lenient=True),
    NamedSet("STS-B", _TWO, "score", metric="pearson"),
    NamedSet("MNLI", _TWO, "gold_label", _NLI, hub_texts=_PREMISE),
    NamedSet("QNLI", ("question", "sentence"), "label", _ENTAILED),
    NamedSet("RTE", _TWO, "label", _ENTAILED),
    NamedSet("WNLI", _TWO, "label", ("not_entailment", "entailment"), _01),
    NamedSet("AX", _TWO, "label", _NLI, hub_texts=_PREMISE),
), hub="nyu-mll/glue")  # fmt: skip
CS224N = Collection("CS224N", "set", (
    NamedSet("sst", _ONE, "sentiment", _FIVE, ("0", "1", "2", "3", "4")),
    NamedSet("cfimdb", _ONE, "sentiment", ("negative", "positive"), _01),
    NamedSet("sts", _TWO, "similarity", metric="pearson"),
    NamedSet("quora", _TWO, "is_duplicate", ("not_duplicate", "duplicate"), _01,
             no_header=("", "id", *_TWO, "is_duplicate"), lenient=True),
), quoted=True)  # fmt: skip
_NUMBER = "#"
"""Where the number of a row stands, which is its id in files without a column of ids."""
COLLECTIONS = {"glue": GLUE, "cs224n": CS224N}
"""By what stands in front of a source."""


def read_named(
    scheme: str,
    rest: str,
    *,
    classes: tuple[str, ...] | None = None,
    labels_required: bool = True,
    max_examples: int | None = None,
) -> TextData:
    """Read NAME:FILE or NAME:hub:SPLIT of a collection.

    Args:
        classes: Those of the training set, where it was another one; numbers then follow their order.
        labels_required: False for the test files, which have no labels.
        max_examples: Read only the first so many rows.
    """
    collection = COLLECTIONS[scheme]
    name, _, where = rest.partition(":")
    known = collection.find(name)
    if not where:
        raise ConfigError(
            f"{scheme}:{known.name} needs a file, for example {scheme}:{known.name}:{known.name}/train.tsv"
        )
    values = known.values or known.classes
    sample = where.lower().endswith(".json")
    if collection.hub and where.startswith("hub:"):
        values = tuple(map(str, range(len(known.classes))))
        table, columns = _hub(f"{scheme}:{known.name}:{where}", collection.hub, known, where[4:] or "train")
    elif sample:
        table, columns = _sample(known, Path(where).expanduser())
    else:
        table, columns = _file(collection, known, Path(where).expanduser(), labels_required=labels_required)
    return read_texts(
        table,
        columns,
        known.kind,
        classes=(known.classes if classes is None else classes) if known.classes else None,
        names=dict(zip(values, known.classes, strict=True)),
        labels_required=labels_required,
        empty_texts=not sample,  # a few rows of the whole sets have an empty text, no sample does
        max_examples=max_examples,
        metric=known.metric,
        positive=1,
    )


def _columns(name: str, has: Sequence[str], known: NamedSet, texts: Sequence[str], label: str) -> Columns:
    """The columns of a set; the label's where there is one."""
    missing = [column for column in texts if column not in has]
    if missing:
        raise DataError(f"{name} has no column {' and '.join(missing)}; is it a file of {known.name}?")
    id = next((column for column in IDS if column in has), _NUMBER)
    return Columns(*texts, *[""] * (2 - len(texts)), label=label if label in has else "", id=id)


def _file(
    collection: Collection, known: NamedSet, path: Path, *, labels_required: bool
) -> tuple[Table, Columns]:
    # Not strict: a few texts of CS224N hold a quote behind the one that closes their cell.
    cells = read_cells(path, delimiter="\t", quoted=collection.quoted, strict=False)
    line, header = next(cells, (1, []))
    if known.texts[0] not in header and len(header) == len(known.no_header):
        cells, header = chain([(line, header)], cells), list(known.no_header)
    columns = _columns(str(path), header, known, [*known.texts], known.label)
    if labels_required and not columns.label:
        raise DataError(f"{path} has no column {known.label}: test files can only be predicted on")
    left_out: list[int] = []

    def whole_rows() -> Iterator[tuple[int, list[str]]]:
        at = header.index(columns.label) if columns.label else 0
        for line, row in cells:
            # In a file without labels, a test set, no row is left out: the submission needs them all.
            broken = len(row) != len(header) or (labels_required and not row[at].strip())
            if known.lenient and columns.label and broken:
                left_out.append(line)
            else:
                yield line, row

    def read(_: Sequence[str]) -> Iterator[Row]:
        for i, (line, row) in enumerate(named_rows(path, header, whole_rows())):
            texts = {name: row[name].strip() for name in known.texts}
            yield line, {_NUMBER: str(i)} | row | texts
        if left_out:
            logger.warning("%s: %d rows are left out: they lack cells or a label (lines %s)",
                           path, len(left_out), ", ".join(map(str, left_out[:10])))  # fmt: skip

    return Table(str(path), header, read, lines=True), columns


def _sample(known: NamedSet, path: Path) -> tuple[Table, Columns]:
    content = parse_json(read_text(path), path)
    whole = isinstance(content, dict) and all(isinstance(row, dict) for row in content.values())
    if not whole:
        raise DataError(f'{path} must be {{"0": {{"text_a": ..., "text_b": ..., "label": ...}}, ...}}')
    rows = [{**row, "id": key} for key, row in content.items()]
    columns = Columns("text_a", "text_b" if len(known.texts) == 2 else "", "label", "id")
    return Table(str(path), ("text_a", "text_b", "label", "id"), lambda _: enumerate(rows, start=1)), columns


def _hub(source: str, name: str, known: NamedSet, split: str) -> tuple[Table, Columns]:
    from bertvision.data.hub import hub_table

    # "dev" is what the files are called, "validation" what the Hub calls it.
    table = hub_table(source, name, split.replace("dev", "validation"), subset=known.key)
    return table, _columns(source, table.columns, known, known.hub_texts or known.texts, "label")


# ---- submissions


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
    """Write the file the benchmark takes for one test set, `index prediction` for each row, and return its path.

    CoLA.tsv SST-2.tsv MRPC.tsv QQP.tsv WNLI.tsv            0 or 1
    STS-B.tsv                                               a score from 0 to 5
    MNLI-m.tsv MNLI-mm.tsv QNLI.tsv RTE.tsv AX.tsv          the class in words

    Args:
        task: Name of the task; MNLI-m and MNLI-mm, or MNLI, whose part is then read off the name of the data.
        data: The test set as it was read; its classes give `predicted` their meaning.
        predicted: Number of the class, or the score, of each example.
    """
    known = submission_task(task)
    name = known.name
    if name == "MNLI":
        second = "mismatched" in Path(data.name).name if task.lower() == "mnli" else task.lower() == "mnli-mm"
        name = "MNLI-mm" if second else "MNLI-m"
    check_rows(task, data)
    other = [one for one in data.classes if one not in known.classes]
    if known.kind == "label" and other:
        raise DataError(
            f"{data.name}: {shorten(other[0])} is no class of GLUE's {known.name}; give its own test file"
        )
    written = dict(zip(known.classes, known.values or known.classes, strict=True))
    lines = ["index\tprediction"]
    for example, value in zip(data.examples, predicted, strict=True):
        score = known.kind == "score"
        shown = f"{min(5.0, max(0.0, float(value))):.3f}" if score else written[data.classes[int(value)]]
        lines.append(f"{example.id}\t{shown}")
    path = Path(folder) / f"{name}.tsv"
    write_text(path, "\n".join(lines) + "\n")
    return path
