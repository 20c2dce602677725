"""One way in: a source as the user writes it becomes a `SpanData` or a `TextData`.

A source is a SQuAD file, the demo set, anything that opens as a `Table` (its columns decide whether it holds questions
over paragraphs or texts with labels or scores), or a published set that is known by name: GLUE's nine tasks with their
diagnostic set AX, and the sets of CS224N. These are rows of a table that says how their files are written and what they
are judged by (GLUE's own metrics). Classes have the order they have on the Hub; a row is called by its index column,
or by its number from 0 on.

    GLUE     tab-separated without quoting; CoLA's train and dev files have no header. The copy on the Hub is read too.
    CS224N   called .csv and tab-separated, with cells in double quotes where they hold some; test files have one more
             column in front, and a part of Quora's training set has no header.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

from bertvision.artifacts import write_text
from bertvision.data.demo import demo_data
from bertvision.data.examples import (
    ANSWERABLE,
    Metric,
    SpanData,
    TextData,
    TextKind,
    answerable,
    read_squad,
    spans_of_table,
)
from bertvision.data.tables import Row, Table, hub_table, named_row, open_table, read_cells, shorten
from bertvision.data.texts import IDS, Columns, read_texts
from bertvision.errors import ConfigError, DataError

logger = logging.getLogger(__name__)


def load_span_data(
    source: str, *, max_examples: int | None = None, answers_required: bool = True
) -> SpanData:
    data = load_data(source, task="span", max_examples=max_examples, answers_required=answers_required)
    assert isinstance(data, SpanData)
    return data


def load_data(
    source: str,
    *,
    columns: Columns = Columns(),  # noqa: B008 (frozen)
    task: Literal["auto", "span", "label", "score"] = "auto",
    classes: tuple[str, ...] | None = None,
    max_examples: int | None = None,
    answers_required: bool = True,
) -> SpanData | TextData:
    """Load questions over paragraphs, or texts with labels or scores, from one of `tables.SOURCES`.

    Args:
        task: auto takes a table with the columns question and context for questions, any other for labels; scores
            must be asked for, except in sets whose task is known.
        classes: Those of the training set: labels get the same numbers, and any other label is refused.
        max_examples: Read only the first so many examples; classes that come later are not known then.
        answers_required: False where the data is only predicted on; labels or answers may then be missing,
            and labels in a table of texts are not read.
    """
    if max_examples is not None and max_examples < 1:
        raise ConfigError(f"--max-...-examples must be at least 1, not {max_examples}; leave it out for all")
    scheme, _, rest = source.partition(":")
    path = Path(source).expanduser()
    if scheme == "answerable" or scheme in COLLECTIONS:
        if columns.named:
            raise ConfigError(f"{scheme}: knows its columns; leave out {columns.prefix}.text and the like")
        if scheme == "answerable":
            if classes not in (None, ANSWERABLE):
                ours, theirs = " and ".join(ANSWERABLE), ", ".join(classes)
                raise DataError(f"{source} has the classes {ours}, not {theirs}; give data of that task")
            spans = load_span_data(rest, max_examples=max_examples, answers_required=answers_required)
            data = answerable(spans, answers_required=answers_required)
        else:
            data = read_named(
                scheme, rest, classes, labels_required=answers_required, max_examples=max_examples
            )
        if task not in ("auto", data.kind):
            raise ConfigError(f"{source} is a {data.kind} task, not {task}; leave out --text.task")
        return data
    if scheme == "demo" or (path.suffix.lower() == ".json" and not path.is_dir()):
        if task in ("label", "score"):
            raise ConfigError(
                f"{source} can only hold questions over paragraphs; leave out --text.task {task}, write "
                f"answerable:{source} for answer / no answer, or give a table with columns of texts and labels"
            )
        data = demo_data(rest) if scheme == "demo" else read_squad(path, answers_required=answers_required)
        return data.take(range(len(data))[:max_examples])
    table = open_table(source)
    questions = task == "auto" and not columns.named and {"question", "context"} <= {*table.columns}
    if task == "span" or questions:
        return spans_of_table(table, answers_required=answers_required, max_examples=max_examples)
    kind = "score" if task == "score" else "label"
    if not table.columns:
        raise DataError(f"{table.name} has no rows; give a file with column names and texts below them")
    found = columns.find(table, kind=kind, labels_required=answers_required)
    declared = table.classes.get(found.label) if kind == "label" else None
    return read_texts(
        table,
        found,
        kind,
        classes=declared if classes is None else classes,
        names=None if declared is None else {str(i): name for i, name in enumerate(declared)},
        labels_required=answers_required,
        max_examples=max_examples,
        positive=None if classes is None else 1,
    )


# ---- published sets


@dataclass(frozen=True)
class NamedSet:
    name: str
    texts: tuple[str, ...]  # columns of the one text or the two
    label: str = "label"
    classes: tuple[str, ...] = ()
    values: tuple[str, ...] = ()  # what the files write for each class; empty: the names themselves
    metric: Metric = "accuracy"
    no_header: tuple[str, ...] = ()  # columns of a file without a header line
    hub_texts: tuple[str, ...] = ()  # columns of the texts on the Hub, where they differ
    lenient: bool = False  # the files with labels hold a few broken rows, which are left out with a warning

    @property
    def kind(self) -> TextKind:
        return "label" if self.classes else "score"


_ONE, _TWO, _PREMISE = ("sentence",), ("sentence1", "sentence2"), ("premise", "hypothesis")
_ENTAILED = ("entailment", "not_entailment")
_NLI = ("entailment", "neutral", "contradiction")
_FIVE = ("very negative", "negative", "neutral", "positive", "very positive")
_01 = ("0", "1")

GLUE = (
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
)  # fmt: skip
CS224N = (
    NamedSet("sst", _ONE, "sentiment", _FIVE, ("0", "1", "2", "3", "4")),
    NamedSet("cfimdb", _ONE, "sentiment", ("negative", "positive"), _01),
    NamedSet("sts", _TWO, "similarity", metric="pearson"),
    NamedSet("quora", _TWO, "is_duplicate", ("not_duplicate", "duplicate"), _01,
             no_header=("", "id", *_TWO, "is_duplicate"), lenient=True),
)  # fmt: skip
COLLECTIONS = {"glue": GLUE, "cs224n": CS224N}  # by what stands in front of a source
_HUB = {"glue": "nyu-mll/glue"}  # names of their copies on the Hub; labels are numbers there
_NUMBER = "#"
"""Where the number of a row stands, which is its id in files without a column of ids."""


def _key(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def find_set(scheme: str, name: str) -> NamedSet:
    sets = COLLECTIONS[scheme]
    found = next((one for one in sets if _key(one.name) == _key(name)), None)
    if found is None:
        names = ", ".join(one.name for one in sets)
        raise ConfigError(f"{scheme} has no set {name!r}; choose one of {names}")
    return found


def read_named(
    scheme: str,
    rest: str,
    classes: tuple[str, ...] | None,
    *,
    labels_required: bool,
    max_examples: int | None,
) -> TextData:
    """Read NAME:FILE or NAME:hub:SPLIT of a collection; the options are those of `read_texts`."""
    name, _, where = rest.partition(":")
    known = find_set(scheme, name)
    if not where:
        raise ConfigError(f"{scheme}:{known.name} needs a file: {scheme}:{known.name}:{known.name}/train.tsv")
    values = known.values or known.classes
    if scheme in _HUB and where.startswith("hub:"):
        values = tuple(map(str, range(len(known.classes))))
        # "dev" is what the files are called, "validation" what the Hub calls it.
        split = (where[4:] or "train").replace("dev", "validation")
        table = hub_table(f"{scheme}:{known.name}:{where}", _HUB[scheme], split, subset=_key(known.name))
        columns = _columns(table.name, table.columns, known, known.hub_texts or known.texts, "label")
    else:
        table, columns = _file(scheme, known, Path(where).expanduser(), labels_required=labels_required)
    return read_texts(
        table,
        columns,
        known.kind,
        classes=(known.classes if classes is None else classes) if known.classes else None,
        names=dict(zip(values, known.classes, strict=True)),
        labels_required=labels_required,
        empty_texts=True,  # as in a few rows of the published files
        max_examples=max_examples,
        metric=known.metric,
        positive=1,
    )


def _columns(name: str, has: Sequence[str], known: NamedSet, texts: Sequence[str], label: str) -> Columns:
    missing = [column for column in texts if column not in has]
    if missing:
        raise DataError(f"{name} has no column {' and '.join(missing)}; is it a file of {known.name}?")
    id = next((column for column in IDS if column in has), _NUMBER)
    return Columns(*texts, *[""] * (2 - len(texts)), label=label if label in has else "", id=id)


def _file(scheme: str, known: NamedSet, path: Path, *, labels_required: bool) -> tuple[Table, Columns]:
    # Not strict: a few texts of CS224N hold a quote behind the one that closes their cell.
    cells = read_cells(path, delimiter="\t", quoted=scheme == "cs224n", strict=False)
    line, header = next(cells, (1, []))
    if known.texts[0] not in header and len(header) == len(known.no_header):
        cells, header = chain([(line, header)], cells), list(known.no_header)
    columns = _columns(str(path), header, known, known.texts, known.label)
    if labels_required and not columns.label:
        raise DataError(f"{path} has no column {known.label}: test files can only be predicted on")
    label = header.index(columns.label) if columns.label else 0

    def read(_: Sequence[str]) -> Iterator[Row]:
        number, left_out = 0, []
        for line, row in cells:
            # In a file without labels, a test set, no row is left out: the submission needs them all.
            broken = len(row) != len(header) or (labels_required and not row[label].strip())
            if known.lenient and columns.label and broken:
                left_out.append(line)
                continue
            named = named_row(path, line, header, row)
            yield line, {_NUMBER: str(number)} | named | {name: named[name].strip() for name in known.texts}
            number += 1
        if left_out:
            what = f"{len(left_out)} rows are left out: they lack cells or a label"
            logger.warning("%s: %s (lines %s)", path, what, ", ".join(map(str, left_out[:10])))

    return Table(str(path), header, read, lines=True), columns


# ---- submissions


def submission_task(name: str) -> NamedSet:
    return find_set("glue", "MNLI" if name.lower() in ("mnli-m", "mnli-mm") else name)


def check_rows(task: str, data: TextData) -> None:
    """Refuse data without the numbers of rows that a submission's lines name."""
    other = next((example.id for example in data.examples if not example.id.isdecimal()), None)
    if other is not None:
        name = submission_task(task).name
        raise DataError(f"{data.name}: the row {shorten(other)} has no number; give a test file of {name}")


def write_submission(task: str, data: TextData, predicted: Sequence[float], folder: str | Path) -> Path:
    """Write the file the benchmark takes for one test set, `index prediction` for each row, and return its path.

    CoLA.tsv SST-2.tsv MRPC.tsv QQP.tsv WNLI.tsv            0 or 1
    STS-B.tsv                                               a score from 0 to 5
    MNLI-m.tsv MNLI-mm.tsv QNLI.tsv RTE.tsv AX.tsv          the class in words

    Which of MNLI's two test sets it is, the task says (MNLI-m, MNLI-mm) or else the name of the data.
    """
    known = submission_task(task)
    name = known.name
    if name == "MNLI":
        second = "mismatched" in Path(data.name).name if task.lower() == "mnli" else task.lower() == "mnli-mm"
        name = "MNLI-mm" if second else "MNLI-m"
    check_rows(task, data)
    other = [one for one in data.classes if one not in known.classes]
    if known.kind == "label" and other:
        raise DataError(f"{data.name}: {shorten(other[0])} is no class of {known.name}; give its test file")
    written = dict(zip(known.classes, known.values or known.classes, strict=True))
    lines = ["index\tprediction"]
    for example, value in zip(data.examples, predicted, strict=True):
        score = known.kind == "score"
        shown = f"{min(5.0, max(0.0, float(value))):.3f}" if score else written[data.classes[int(value)]]
        lines.append(f"{example.id}\t{shown}")
    path = Path(folder) / f"{name}.tsv"
    write_text(path, "\n".join(lines) + "\n")
    return path
