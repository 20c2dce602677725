"""Labelled texts from a table: its columns found, every row checked, classes numbered, a `TextData` out."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, ClassVar

from bertvision.data.checks import Flaw, at, check_id, check_text, shorten
from bertvision.data.examples import Metric, TextData, TextExample, TextKind, positive_class
from bertvision.data.tables import Table
from bertvision.errors import DataError

_PAIRS = (
    ("sentence1", "sentence2"), ("question1", "question2"), ("premise", "hypothesis"), ("first", "second"),
    ("text1", "text2"), ("text_a", "text_b"), ("text", "pair"), ("text", "text_pair"), ("question", "sentence"),
)  # fmt: skip
_TEXTS = (
    "text", "sentence", "first", "sentence1", "question1", "premise", "text1", "text_a", "review", "content",
)  # fmt: skip
_LABELS = ("label", "gold_label", "class", "category", "sentiment", "is_duplicate")
_SCORES = ("score", "similarity", "rating")
IDS = ("id", "index", "idx", "guid")

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_INTEGER = re.compile(r"-?\d{1,18}")
_WHOLE = re.compile(r"(-?\d+)\.0+")
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)


@dataclass(frozen=True)
class Columns:
    """Names of the columns in a table of texts; where none is given, the usual names are looked for."""

    prefix: ClassVar[str] = "--text"
    """What stands in front of these flags on the command line; messages name them so."""

    text: str = ""
    """Column of the text, or of the first text of a pair."""
    pair: str = ""
    """Column of the second text of a pair."""
    label: str = ""
    """Column of the class or score."""
    id: str = ""
    """Column of the id; without one a row is called by its number."""

    @property
    def named(self) -> bool:
        """Whether any column was named."""
        return any((self.text, self.pair, self.label, self.id))

    def find(self, table: Table, *, kind: TextKind, labels_required: bool) -> "Columns":
        """The columns to read of a table; "" where there is none.

        Where labels are not required their column is not read: it may hold anything, such as labels of another task.
        """
        names = table.columns

        def refused(what: str, *flags: str) -> DataError:
            has = ", ".join(map(shorten, names)) or "none"
            named = " or ".join(f"{self.prefix}.{flag}" for flag in flags)
            return DataError(f"{table.name} has no column {what} (it has {has}); name it with {named}")

        for flag in ("text", "pair", "label", "id"):
            asked = getattr(self, flag)
            if asked and asked not in names and (flag != "label" or labels_required):
                raise refused(shorten(asked), flag)
        text, pair = self.text, self.pair
        if not text and not pair:
            text, pair = next((both for both in _PAIRS if both[0] in names and both[1] in names), ("", ""))
        text = text or _first([name for name in _TEXTS if name != pair], names)
        if not text:
            raise refused("of texts", "text")
        label = ""
        if labels_required:
            usual = (*_SCORES, *_LABELS) if kind == "score" else (*_LABELS, *_SCORES)
            # The answer must never be in the input.
            label = self.label or _first([name for name in usual if name not in (text, pair)], names)
            if not label:
                raise refused("of labels", "label")
            if label in (text, pair):
                raise refused(
                    f"of labels beside its texts: {shorten(label)} is both", "label", "text", "pair"
                )
        return replace(self, text=text, pair=pair, label=label, id=self.id or _first(IDS, names))


def _first(wanted: Iterable[str], names: Sequence[str]) -> str:
    return next((name for name in wanted if name in names), "")


def read_texts(
    table: Table,
    columns: Columns,
    kind: TextKind,
    *,
    classes: tuple[str, ...] | None = None,
    names: Mapping[str, str] | None = None,
    labels_required: bool = True,
    empty_texts: bool = False,
    max_examples: int | None = None,
    metric: Metric | None = None,
    positive: int | None = None,
) -> TextData:
    """Check the rows and give their labels numbers; what is wrong with a row is reported with its place.

    Args:
        columns: Those to read; no label: none is read.
        classes: Names of the classes by number; any other is refused. None: all that occur, in order.
        names: The class each label of the source stands for; None: labels are names of classes.
        labels_required: False where the texts are only predicted on; a label may then be missing.
        empty_texts: Whether a text may be empty, as in a few rows of published sets.
        metric: What the set is judged by; None: accuracy, and Pearson's correlation for scores.
        positive: Of two classes, the one F1 is about; None: the rarer one, where classes have names.
    """
    texts = [name for name in (columns.text, columns.pair) if name]
    read: list[tuple[str, str, str | None]] = []
    labels: list[Any] = []
    ids: set[str] = set()
    wanted = [*texts, *(name for name in (columns.label, columns.id) if name)]
    for number, row in islice(table.read(wanted), max_examples):
        with at(table.place(number)):
            # A column may have no name, such as the row numbers pandas writes.
            id = row.get(columns.id) if columns.id else None
            id = check_id(f"row-{number}" if id is None or id == "" else id, ids)
            for name in texts:
                if row.get(name) is None:
                    raise Flaw(f"there is nothing under {shorten(name)}; write the text or remove the row")
                if row[name] != "" or not empty_texts:
                    check_text(row[name], "text")
            label = row.get(columns.label) if columns.label else None
            if label is None or label == "" or (names is not None and label == -1):
                if labels_required:
                    raise Flaw("there is no label; write it or remove the row")
                label = None
            else:
                label = _score(label) if kind == "score" else _class(label, names, classes)
            read.append((id, row[columns.text], row[columns.pair] if columns.pair else None))
            labels.append(label)
    if not read:
        raise DataError(f"{table.name}: there is no text in it; give a file that holds at least one")
    if kind == "label":
        counts = Counter(label for label in labels if label is not None)
        classes = _in_order(counts, table.name) if classes is None else classes
        positive = positive_class(classes, counts) if positive is None else positive
        numbers = {name: i for i, name in enumerate(classes)}
        labels = [numbers.get(label) for label in labels]
    examples = [TextExample(*texts, label) for texts, label in zip(read, labels, strict=True)]
    metric = metric or ("accuracy" if kind == "label" else "pearson")
    return TextData(examples, kind, classes or (), table.name, metric, 1 if positive is None else positive)


def class_name(label: Any) -> str:
    """A label as the name of a class: true, 1 and 1.0 are "true", "1" and "1"."""
    if isinstance(label, bool):
        return "true" if label else "false"
    if isinstance(label, int | float | str):
        name = str(label).strip()
        whole = _WHOLE.fullmatch(name)
        return whole[1] if whole else name
    raise Flaw(f"a label must be a text or a number, not {shorten(label)}; correct it")


def _class(label: Any, names: Mapping[str, str] | None, classes: tuple[str, ...] | None) -> str:
    name = class_name(label)
    if names is None and _NOT_FINITE.fullmatch(name):
        raise Flaw(f"the label is {shorten(name)}, which is no class; write its name or remove the row")
    if names is not None:
        if name not in names and name not in names.values():
            raise Flaw(f"the label {shorten(label)} is none of {', '.join(names)}; correct it")
        name = names.get(name, name)
    if classes is not None and name not in classes:
        raise Flaw(
            f"the label {shorten(name)} is none of the classes {', '.join(classes)}; "
            "correct it, or train on data that has it"
        )
    return name


def _score(label: Any) -> float:
    try:
        if isinstance(label, int | float | str) and not isinstance(label, bool):
            value = float(label)
            if math.isfinite(value):
                return value
    except (ValueError, OverflowError):
        pass
    raise Flaw(f"a score must be a number, not {shorten(label)}; correct it")


def _in_order(found: Iterable[str], source: str) -> tuple[str, ...]:
    """The classes, whole numbers by size, anything else by the alphabet: the order of rows decides nothing."""
    names = list(found)
    if all(map(_NUMBER.fullmatch, names)) and any("." in name or "e" in name.lower() for name in names):
        raise DataError(
            f"{source}: the labels look like scores ({', '.join(names[:3])}, ...); add --text.task score, "
            "or name another column as the label"
        )
    return tuple(sorted(names, key=int if all(map(_INTEGER.fullmatch, names)) else None))
