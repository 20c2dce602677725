"""What every reader of labelled texts shares: rows in, a validated `TextData` out.

As with `SpanBuilder`, a reader knows where a row stands and this module what is wrong with it: `add` raises a `Flaw`,
and `collect` puts the place in front of it.
"""

import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertvision.data.building import Flaw, check_text, shorten
from bertvision.data.texts import Metric, TextData, TextExample, TextKind
from bertvision.errors import DataError

__all__ = ["TextBuilder", "TextRow", "class_name", "collect", "warn_left_out"]

logger = logging.getLogger(__name__)

TextRow = tuple[str, Any, Any, Any, Any]
"""Where it stands, id, first text, second text (None for a single text), label as it is written."""

_WHOLE = re.compile(r"(-?\d+)\.0+")


class TextBuilder:
    """Collects checked examples; classes that are not given are those found, in order."""

    def __init__(
        self,
        name: str,
        kind: TextKind,
        *,
        classes: tuple[str, ...] | None = None,
        names: Mapping[str, str] | None = None,
        labels_required: bool = True,
        empty_texts: bool = False,
    ) -> None:
        """
        Args:
            classes: Names of the classes by number; any other is refused. None: all that occur.
            names: The class each label of the file stands for; None: labels are names of classes.
            labels_required: False where the texts are only predicted on; a label may then be missing.
            empty_texts: Whether a text may be empty, as in a few rows of published sets.
        """
        self.name, self.kind = name, kind
        self.classes, self.names = classes, names
        self.labels_required, self.empty_texts = labels_required, empty_texts
        self.examples: list[TextExample] = []
        self._labels: list[str | None] = []
        self._ids: set[str] = set()

    def add(self, id: Any, first: Any, second: Any, label: Any) -> None:
        """Add one text or pair with its label as it is written; None or "" is no label."""
        id = str(id) if isinstance(id, int) else id
        if not isinstance(id, str) or not id:
            raise Flaw(f"the id must be a non-empty string, not {shorten(id)}")
        if id in self._ids:
            raise Flaw("the id was already used; give every row its own id")
        for text in (first,) if second is None else (first, second):
            if text != "" or not self.empty_texts:
                check_text(text, "text", "remove the row or write the text")
        known = label is not None and label != ""
        if not known and self.labels_required:
            raise Flaw("there is no label; write it or remove the row")
        value: float | None = None
        if self.kind == "score":
            value = _score(label) if known else None
            self._labels.append(None)
        else:
            self._labels.append(self._class(label) if known else None)
        self._ids.add(id)
        self.examples.append(TextExample(id, first, second, value))

    def _class(self, label: Any) -> str:
        name = class_name(label)
        if self.names is not None:
            if name not in self.names and name not in self.names.values():
                raise Flaw(f"the label {shorten(label)} is none of {', '.join(self.names)}; correct it")
            name = self.names.get(name, name)
        if self.classes is not None and name not in self.classes:
            raise Flaw(
                f"the label {shorten(name)} is none of the classes {', '.join(self.classes)}; "
                "correct it, or train on data that has it"
            )
        return name

    def build(self, *, metric: Metric | None = None, positive: int = 1) -> TextData:
        """All examples, their labels as numbers."""
        if not self.examples:
            raise Flaw("there is no text in it; give a file that holds at least one")
        if self.kind == "score":
            return TextData(self.examples, "score", (), self.name, metric or "pearson")
        found = {name for name in self._labels if name is not None}
        classes = self.classes if self.classes is not None else _in_order(found)
        if self.classes is None and self.names is None and _like_scores(found):
            raise Flaw(
                f"the labels look like scores ({', '.join(classes[:3])}, ...); add --text.task score, "
                "or name another column as the label"
            )
        numbers = {name: i for i, name in enumerate(classes)}
        examples = [
            example if name is None else replace(example, label=numbers[name])
            for example, name in zip(self.examples, self._labels, strict=True)
        ]
        return TextData(examples, "label", classes, self.name, metric or "accuracy", positive)


def collect(
    builder: TextBuilder, rows: Iterable[TextRow], *, metric: Metric | None = None, positive: int = 1
) -> TextData:
    """Add all `rows`; what is wrong with one is told with its place."""
    for place, *row in rows:
        try:
            builder.add(*row)
        except Flaw as flaw:
            raise DataError(f"{place}: {flaw}") from None
    try:
        return builder.build(metric=metric, positive=positive)
    except Flaw as flaw:
        raise DataError(f"{builder.name}: {flaw}") from None


def warn_left_out(path: Path, lines: Sequence[int], *, why: str = "without a label") -> None:
    """Say which rows of a published file are left out, and what is wrong with them."""
    if lines:
        shown = ", ".join(map(str, lines[:10])) + (", ..." if len(lines) > 10 else "")
        logger.warning(
            "%s: %d %s %s %s left out (line %s)",
            path, len(lines), "row" if len(lines) == 1 else "rows", why, "is" if len(lines) == 1 else "are", shown,
        )  # fmt: skip


def class_name(label: Any) -> str:
    """A label as the name of a class: true, 1 and 1.0 are "true", "1" and "1"."""
    if isinstance(label, bool):
        return "true" if label else "false"
    if isinstance(label, int | float | str):
        name = str(label).strip()
        whole = _WHOLE.fullmatch(name)
        return whole[1] if whole else name
    raise Flaw(f"a label must be a text or a number, not {shorten(label)}; correct it")


def _score(label: Any) -> float:
    try:
        value = (
            float(label) if isinstance(label, int | float | str) and not isinstance(label, bool) else math.nan
        )
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise Flaw(f"a score must be a number, not {shorten(label)}; correct it")
    return value


def _in_order(names: set[str]) -> tuple[str, ...]:
    """Whole numbers by size, anything else by the alphabet: the order of rows decides nothing."""
    if all(re.fullmatch(r"-?\d+", name) for name in names):
        return tuple(sorted(names, key=int))
    return tuple(sorted(names))


def _like_scores(names: set[str]) -> bool:
    """Whether all are numbers and one of them is not whole."""
    return any("." in name for name in names) and all(re.fullmatch(r"-?\d*\.?\d+", name) for name in names)
