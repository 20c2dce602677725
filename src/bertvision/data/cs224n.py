"""The sets of Stanford's CS224N project: SST with five classes, STS, Quora and CFIMDB.

The files are called .csv and are tab-separated, with cells in double quotes where they hold some. Columns are found
by their names, as the test files have one more in front; a part of Quora's training set has no header. Two rows of
Quora's dev set have no label: they are left out with a warning.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from bertvision.data.tabular import csv_cells, named_rows
from bertvision.data.text_building import TextBuilder, TextRow, collect, warn_left_out
from bertvision.data.texts import Metric, TextData, TextKind
from bertvision.errors import ConfigError, DataError

__all__ = ["CS224N", "read_cs224n"]


@dataclass(frozen=True)
class _Set:
    header: tuple[str, ...]
    """Columns; the texts stand between the id and the label."""
    classes: tuple[str, ...] = ()
    """Names of the labels 0, 1, ...; none for scores."""
    metric: Metric = "accuracy"
    lenient: bool = False
    """Whether rows without a label are left out."""

    @property
    def texts(self) -> tuple[str, ...]:
        return self.header[2:-1]

    @property
    def label(self) -> str:
        return self.header[-1]

    @property
    def kind(self) -> TextKind:
        return "label" if self.classes else "score"


_FIVE = ("very negative", "negative", "neutral", "positive", "very positive")
CS224N = {
    "sst": _Set(("", "id", "sentence", "sentiment"), _FIVE),
    "cfimdb": _Set(("", "id", "sentence", "sentiment"), ("negative", "positive")),
    "sts": _Set(("", "id", "sentence1", "sentence2", "similarity"), metric="pearson"),
    "quora": _Set(
        ("", "id", "sentence1", "sentence2", "is_duplicate"), ("not_duplicate", "duplicate"), lenient=True
    ),
}


def read_cs224n(
    name: str, where: str, *, classes: tuple[str, ...] | None = None, labels_required: bool = True
) -> TextData:
    """Read a file of the set `name`, or several joined by commas, as Quora's training set is in two.

    `labels_required=False` is for the test files, which have no labels.
    """
    part = CS224N.get(name.lower())
    if part is None:
        raise ConfigError(f"CS224N has no set {name!r}; choose one of {', '.join(CS224N)}")
    if not where:
        raise ConfigError(f"cs224n:{name} needs a file, for example cs224n:{name}:{name}-train.csv")
    paths = [Path(file).expanduser() for file in ([where] if Path(where).exists() else where.split(","))]
    names = {str(i): title for i, title in enumerate(part.classes)}
    builder = TextBuilder(
        ",".join(map(str, paths)),
        part.kind,
        classes=(part.classes if classes is None else classes) if part.classes else None,
        names=names or None,
        labels_required=labels_required,
        empty_texts=True,
    )
    rows = chain.from_iterable(_rows(part, name, path, labels_required=labels_required) for path in paths)
    return collect(builder, rows, metric=part.metric)


def _rows(part: _Set, name: str, path: Path, *, labels_required: bool) -> Iterator[TextRow]:
    # Not strict: a few texts hold a quote behind the one that closes their cell.
    cells = csv_cells(path, delimiter="\t", strict=False)
    line, header = next(cells, (0, []))
    if not header:
        raise DataError(f"{path} is empty; give a file of CS224N's {name}")
    if "id" not in header and len(header) == len(part.header):
        cells, header = csv_cells(path, delimiter="\t", strict=False), list(part.header)
    wanted = ["id", *part.texts, *([part.label] if labels_required else [])]
    missing = [column for column in wanted if column not in header]
    if missing:
        hint = (
            "test files have no labels and can only be predicted on"
            if missing == [part.label]
            else f"is it a file of CS224N's {name}?"
        )
        raise DataError(
            f"{path}:{line} has no column {' and '.join(missing)} (it has {', '.join(header)}); {hint}"
        )
    left_out: list[int] = []
    for line, row in named_rows(path, header, cells):
        if part.lenient and part.label in row and not row[part.label].strip():
            left_out.append(line)
            continue
        texts = [row[column].strip() for column in part.texts]
        yield (
            f"{path}:{line}",
            row["id"],
            texts[0],
            texts[1] if len(texts) == 2 else None,
            row.get(part.label),
        )
    warn_left_out(path, left_out)
