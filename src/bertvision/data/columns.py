"""Columns of a table of texts: found by the names they usually have, or named by flags."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from bertvision.data.building import shorten
from bertvision.data.texts import TextKind
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
