"""Labelled texts from a table: columns found, rows checked, classes numbered; prompts and templates around them."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from string import Formatter
from typing import Any, ClassVar, Literal

from bertvision.config import part_of
from bertvision.data.examples import Metric, TextData, TextExample, TextKind, positive_class
from bertvision.data.tables import Flaw, Table, at, check_id, check_text, shorten
from bertvision.errors import ConfigError, DataError

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
_WHOLE = re.compile(r"^(-?\d+)\.0+$")
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)


@dataclass(frozen=True)
class Columns:
    """Names of the columns in a table of texts; where none is given, the usual names are looked for."""

    prefix: ClassVar[str] = "--text"  # in front of these flags on the command line

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
        return any((self.text, self.pair, self.label, self.id))

    def find(self, table: Table, *, kind: TextKind, labels_required: bool) -> "Columns":
        """The columns to read of a table; "" where there is none. Where labels are not required their column is not
        read: it may hold anything, such as labels of another task."""
        names = table.columns

        def first(*wanted: str) -> str:
            return next((name for name in wanted if name in names), "")

        def refused(what: str, *flags: str) -> DataError:
            has = ", ".join(map(shorten, names)) or "none"
            named = " or ".join(f"{self.prefix}.{flag}" for flag in flags)
            return DataError(f"{table.name} has no column {what} (it has {has}); name it with {named}")

        for flag in ("text", "pair", "label", "id"):
            asked = getattr(self, flag)
            if asked and asked not in names and (flag != "label" or labels_required):
                raise refused(shorten(asked), flag)
        text, pair, label = self.text, self.pair, ""
        if not text and not pair:
            text, pair = next((both for both in _PAIRS if {*both} <= {*names}), ("", ""))
        text = text or first(*(name for name in _TEXTS if name != pair))
        if not text:
            raise refused("of texts", "text")
        if labels_required:
            usual = (*_SCORES, *_LABELS) if kind == "score" else (*_LABELS, *_SCORES)
            # The answer must never be in the input.
            label = self.label or first(*(name for name in usual if name not in (text, pair)))
            if not label:
                raise refused("of labels", "label")
            if label in (text, pair):
                what = f"of labels beside its texts: {shorten(label)} is both"
                raise refused(what, "label", "text", "pair")
        return Columns(text, pair, label, self.id or first(*IDS))


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
        classes: Names of the classes by number; any other is refused. None: all that occur, in order.
        names: The class each label of the source stands for; None: labels are names of classes.
        empty_texts: Whether a text may be empty, as in a few rows of published sets.
        metric: None: accuracy, and Pearson's correlation for scores.
        positive: Of two classes, the one F1 is about; None: the rarer one, where classes have names.
    """
    texts = [name for name in (columns.text, columns.pair) if name]
    wanted = [*texts, *(name for name in (columns.label, columns.id) if name)]
    examples: list[TextExample] = []
    labels: list[Any] = []
    ids: set[str] = set()
    for number, row in islice(table.read(wanted), max_examples):
        with at(table.place(number)):
            # A column may have no name, such as the row numbers pandas writes.
            id = row.get(columns.id) if columns.id else None
            id = check_id(f"row-{number}" if id in (None, "") else id, ids)
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
            labels.append(label)
            examples.append(TextExample(id, *(row[name] for name in texts)))
    if not examples:
        raise DataError(f"{table.name}: there is no text in it; give a file that holds at least one")
    if kind == "label":
        counts = Counter(label for label in labels if label is not None)
        classes = _in_order(counts, table.name) if classes is None else classes
        positive = positive_class(classes, counts) if positive is None else positive
        numbers = {name: i for i, name in enumerate(classes)}
        labels = [numbers.get(label) for label in labels]
    examples = [replace(e, label=label) for e, label in zip(examples, labels, strict=True)]
    metric = metric or ("accuracy" if kind == "label" else "pearson")
    return TextData(examples, kind, classes or (), table.name, metric, 1 if positive is None else positive)


def _class(label: Any, names: Mapping[str, str] | None, classes: tuple[str, ...] | None) -> str:
    """The name of a label's class: True, 1 and 1.0 are "true", "1" and "1"."""
    if not isinstance(label, int | float | str):
        raise Flaw(f"a label must be a text or a number, not {shorten(label)}; correct it")
    name = str(label).lower() if isinstance(label, bool) else str(label).strip()
    name = _WHOLE.sub(r"\1", name)
    if names is not None:
        if name not in names and name not in names.values():
            raise Flaw(f"the label {shorten(label)} is none of {', '.join(names)}; correct it")
        name = names.get(name, name)
    elif _NOT_FINITE.fullmatch(name):
        raise Flaw(f"the label is {shorten(name)}, which is no class; write its name or remove the row")
    if classes is not None and name not in classes:
        known = ", ".join(classes)
        raise Flaw(f"the label {shorten(name)} is none of the classes {known}; correct it, or train on it")
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


# ---- prompts and templates

_USAGE = "write {first} and {second} where the texts belong"
_DEFAULT = "First sentence: {first} Second sentence: {second}"


@dataclass(frozen=True)
class Reframe:
    """How texts are rewritten before a tokenizer sees them (Q&ABERT). The prompt becomes the first text of a pair and
    the filled context the second; without one that is a single text."""

    prompt: str = ""
    """A question put in front of every example as its first text; none: no question."""
    context: str = ""
    """The texts as one, with {first} and {second} in their places; none: the texts as they are, and behind a prompt
    "First sentence: {first} Second sentence: {second}" where there are two."""

    def __post_init__(self) -> None:
        if "{" in self.prompt or "}" in self.prompt:
            raise ConfigError("--text.prompt takes no {...}: put the texts into --text.context")
        if self.context:
            _parse(self.context)


@dataclass(frozen=True)
class TableConfig(Columns, Reframe):
    """How texts with labels or scores are read; datasets that are known by name need none of it."""

    task: Literal["auto", "span", "label", "score"] = "auto"
    """What a table is: auto = spans where it has questions and contexts, else labels; scores must be asked for."""

    @property
    def columns(self) -> Columns:
        return part_of(Columns, self)

    @property
    def reframe(self) -> Reframe:
        return part_of(Reframe, self)


def reframe(data: TextData, how: Reframe) -> TextData:
    """Rewrite the texts as `how` says; labels, ids and order stay."""
    if not how.prompt and not how.context:
        return data
    if data.spans is not None:
        raise ConfigError(f"{data.name} is made of questions: leave out --text.prompt and --text.context")
    parts = _parse(how.context or (_DEFAULT if data.pairs else "{first}"))
    if not data.pairs and any(field == "second" for _, field in parts):
        raise ConfigError(f"{data.name} has single texts: leave {{second}} out of --text.context")

    examples = []
    for example in data.examples:
        texts = {"first": example.first, "second": example.second or "", "": ""}
        # Not str.format: a text with braces of its own is no template.
        context = "".join(plain + texts[field] for plain, field in parts)
        first, second = (how.prompt, context) if how.prompt else (context, None)
        examples.append(replace(example, first=first, second=second))
    return replace(data, examples=examples)


def _parse(template: str) -> list[tuple[str, str]]:
    """The template as pieces of plain text, each with the field behind it ("" at the end)."""
    try:
        found = list(Formatter().parse(template))
    except ValueError as error:
        raise ConfigError(f"--text.context {template!r} has a stray brace ({error}): {_USAGE}") from None
    for _, field, form, conversion in found:
        if field is not None and (field not in ("first", "second") or form or conversion):
            raise ConfigError(f"--text.context {template!r}: {_USAGE}, and nothing else; the label never")
    if not any(field for _, field, _, _ in found):
        raise ConfigError(f"--text.context {template!r} holds none of the texts: {_USAGE}")
    return [(plain, field or "") for plain, field, _, _ in found]
