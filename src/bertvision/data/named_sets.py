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
from itertools import chain, islice
from pathlib import Path

from bertvision.artifacts import write_text
from bertvision.data.checks import parse_json, read_text, shorten
from bertvision.data.examples import Metric, TextData, TextKind
from bertvision.data.tables import named_rows, read_cells
from bertvision.data.texts import IDS, TextRow, build_texts
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
    required: tuple[str, ...] = ()
    """Columns every file must have, beside texts and label."""
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
), quoted=True, required=("id",))  # fmt: skip
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
    """Read NAME:FILE, several files joined by commas, or NAME:hub:SPLIT of a collection.

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
        source = f"{scheme}:{known.name}:{where}"
        values = tuple(map(str, range(len(known.classes))))
        rows = _hub_rows(collection.hub, known, where.removeprefix("hub:") or "train", source)
    elif sample:
        source = str(Path(where).expanduser())
        rows = _sample_rows(known, Path(source))
    else:
        files = [where] if Path(where).exists() else where.split(",")
        paths = [Path(file).expanduser() for file in files]
        source = ",".join(map(str, paths))
        rows = chain.from_iterable(
            _file_rows(collection, known, path, labels_required=labels_required) for path in paths
        )
    return build_texts(
        islice(rows, max_examples),
        source,
        known.kind,
        classes=(known.classes if classes is None else classes) if known.classes else None,
        names=dict(zip(values, known.classes, strict=True)) or None,
        labels_required=labels_required,
        empty_texts=not sample,  # a few rows of the whole sets have an empty text, no sample does
        metric=known.metric,
    )


def _file_rows(
    collection: Collection, known: NamedSet, path: Path, *, labels_required: bool
) -> Iterator[TextRow]:
    # Not strict: a few texts of CS224N hold a quote behind the one that closes their cell.
    cells = read_cells(path, delimiter="\t", quoted=collection.quoted, strict=False)
    line, header = next(cells, (0, []))
    if not header:
        raise DataError(f"{path} is empty; give a file of {collection.name}'s {known.name}")
    if known.texts[0] not in header and len(header) == len(known.no_header):
        cells, header = chain([(line, header)], cells), list(known.no_header)
    wanted = [*collection.required, *known.texts, *[known.label] * labels_required]
    missing = [name for name in wanted if name not in header]
    if missing:
        hint = (
            "test files have no labels and can only be predicted on" if missing == [known.label] else
            f"is it a file of {collection.name}'s {known.name}?"
        )  # fmt: skip
        raise DataError(
            f"{path}:{line} has no column {' and '.join(missing)} (it has {', '.join(header)}); {hint}"
        )
    # In a file without labels, a test set, no row is left out: the submission needs them all.
    lenient = known.lenient and known.label in header
    left_out: dict[str, list[int]] = {
        f"without the {len(header)} cells of the header": [],
        "without a label": [],
    }
    cut, unlabelled = left_out.values()

    def whole_rows() -> Iterator[tuple[int, list[str]]]:
        for line, row in cells:
            if lenient and len(row) != len(header):
                cut.append(line)
            elif lenient and labels_required and not row[header.index(known.label)].strip():
                unlabelled.append(line)
            else:
                yield line, row

    id = next((name for name in IDS if name in header), None)
    for number, (line, row) in enumerate(named_rows(path, header, whole_rows(), quoted=collection.quoted)):
        first, second = (*(row[name].strip() for name in known.texts), None)[:2]
        yield f"{path}:{line}", row[id] if id else str(number), first, second, row.get(known.label)
    for why, lines in left_out.items():
        if lines:
            rows = "row is" if len(lines) == 1 else "rows are"
            shown = ", ".join(map(str, lines[:10])) + ", ..." * (len(lines) > 10)
            logger.warning("%s: %d %s left out %s (line %s)", path, len(lines), rows, why, shown)


def _sample_rows(known: NamedSet, path: Path) -> Iterator[TextRow]:
    wanted = ("text_a", "text_b")[: len(known.texts)]
    content = parse_json(read_text(path), path)
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


def _hub_rows(name: str, known: NamedSet, split: str, source: str) -> Iterator[TextRow]:
    from bertvision.data.hub import hub_table

    # "dev" is what the files are called, "validation" what the Hub calls it.
    table = hub_table(name, split.replace("dev", "validation"), subset=known.key, source=source)
    texts = known.hub_texts or known.texts
    names = ["idx", *texts, "label"]
    missing = [name for name in names if name not in table.columns]
    if missing:
        raise DataError(f"{source} has no column {' and '.join(missing)}; it is not GLUE's {known.name}")
    for number, row in table.read(names):
        first, second = (*(row[name] for name in texts), None)[:2]
        # -1 is what the Hub writes where there is no label.
        label = None if row["label"] == -1 else row["label"]
        yield table.place(number), row["idx"], first, second, label


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
