"""Labelled texts from rows: every label checked, classes numbered, a validated `TextData` out."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from bertvision.data.checks import Flaw, check_text, shorten
from bertvision.data.examples import Metric, TextData, TextExample, TextKind, positive_class
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

    def find(self, names: Sequence[str], place: str, *, kind: TextKind, labels_required: bool) -> "Columns":
        """The columns to read among `names`, those of a table; "" where there is none.

        Where labels are not required their column is not read: it may hold anything, such as labels of another task.
        """
        for flag in ("text", "pair", "label", "id"):
            asked = getattr(self, flag)
            if asked and asked not in names and (flag != "label" or labels_required):
                raise DataError(
                    f"{place} has no column {shorten(asked)} (it has {_list(names)}); correct {self.prefix}.{flag}"
                )
        text, pair = self.text, self.pair
        if not text and not pair:
            text, pair = next((both for both in _PAIRS if both[0] in names and both[1] in names), ("", ""))
        text = text or next((name for name in _TEXTS if name in names and name != pair), "")
        if not text:
            raise DataError(
                f"{place} has no column of texts (it has {_list(names)}); "
                f"name it with {self.prefix}.text, and the other of a pair with {self.prefix}.pair"
            )
        usual = (*_SCORES, *_LABELS) if kind == "score" else (*_LABELS, *_SCORES)
        # The answer must never be in the input.
        label = self.label or next((name for name in usual if name in names and name not in (text, pair)), "")
        if label and label in (text, pair):
            raise DataError(
                f"{place}: {shorten(label)} is the column of the label and of a text, which would hold the answer; "
                f"name another one with {self.prefix}.label or {self.prefix}.{'text' if label == text else 'pair'}"
            )
        if not label and labels_required:
            raise DataError(
                f"{place} has no column of labels (it has {_list(names)}); name it with {self.prefix}.label"
            )
        id = self.id or next((name for name in IDS if name in names), "")
        return replace(self, text=text, pair=pair, label=label if labels_required else "", id=id)


def _list(names: Sequence[str]) -> str:
    return ", ".join(shorten(name) for name in names) or "none"


def holds_questions(names: Iterable[str]) -> bool:
    """Whether a table with these columns is one of questions over paragraphs."""
    return {"question", "context"} <= set(names)


TextRow = tuple[str, Any, Any, Any, Any]
"""Place, id, first text, second text (None for a single text), label as it is written (None or "" for none)."""

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_INTEGER = re.compile(r"-?\d{1,18}")
_WHOLE = re.compile(r"(-?\d+)\.0+")
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)


def build_texts(
    rows: Iterable[TextRow],
    name: str,
    kind: TextKind,
    *,
    classes: tuple[str, ...] | None = None,
    names: Mapping[str, str] | None = None,
    labels_required: bool = True,
    empty_texts: bool = False,
    metric: Metric | None = None,
    positive: int | None = 1,
) -> TextData:
    """Check all `rows` and give their labels numbers; what is wrong with a row is reported with its place.

    Args:
        classes: Names of the classes by number; any other is refused. None: all that occur, in order.
        names: The class each label of the source stands for; None: labels are names of classes.
        labels_required: False where the texts are only predicted on; a label may then be missing.
        empty_texts: Whether a text may be empty, as in a few rows of published sets.
        metric: What the set is judged by; None: accuracy, and Pearson's correlation for scores.
        positive: Of two classes, the one F1 is about; None: the rarer one, where classes have names.
    """
    checked: list[tuple[str, str, str | None, Any]] = []
    ids: set[str] = set()
    for place, id, first, second, label in rows:
        try:
            id = str(id) if isinstance(id, int) else id
            if not isinstance(id, str) or not id:
                raise Flaw(f"the id must be a non-empty string, not {shorten(id)}")
            if id in ids:
                raise Flaw("the id was already used; give every row its own id")
            for text in (first,) if second is None else (first, second):
                if text != "" or not empty_texts:
                    check_text(text, "text", "remove the row or write the text")
            known = label is not None and label != ""
            if labels_required and not known:
                raise Flaw("there is no label; write it or remove the row")
            value = None
            if known:
                value = _score(label) if kind == "score" else _class(label, names, classes)
            checked.append((id, first, second, value))
        except Flaw as flaw:
            raise DataError(f"{place}: {flaw}") from None
        ids.add(id)
    if not checked:
        raise DataError(f"{name}: there is no text in it; give a file that holds at least one")
    if kind == "score":
        examples = [TextExample(*row) for row in checked]
        return TextData(examples, "score", (), name, metric or "pearson")
    counts = Counter(row[3] for row in checked if row[3] is not None)
    if classes is None:
        classes = _in_order(counts)
        if _like_scores(classes):
            raise DataError(
                f"{name}: the labels look like scores ({', '.join(classes[:3])}, ...); add --text.task score, "
                "or name another column as the label"
            )
    if positive is None:
        positive = positive_class(classes, counts)
    numbers = {name: i for i, name in enumerate(classes)}
    examples = [
        TextExample(id, first, second, None if label is None else numbers[label])
        for id, first, second, label in checked
    ]
    return TextData(examples, "label", classes, name, metric or "accuracy", positive)


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


def _in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Whole numbers by size, anything else by the alphabet: the order of rows decides nothing."""
    names = list(names)
    return tuple(sorted(names, key=int if all(map(_INTEGER.fullmatch, names)) else None))


def _like_scores(names: Iterable[str]) -> bool:
    """Whether all are numbers and one of them is not whole."""
    names = list(names)
    return all(map(_NUMBER.fullmatch, names)) and any("." in name or "e" in name.lower() for name in names)
