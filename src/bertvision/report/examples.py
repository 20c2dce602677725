"""Examples on which the chosen head and its snapshot differ, with what each says marked in the context."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from bertvision import words
from bertvision.report.page import Example

Pieces = list[tuple[str, str]]

_CONTEXT = 640
"""Characters up to which a context is shown whole."""
_MARGIN = 160
"""Characters left around a mark in a longer one."""


def example(raw: Mapping[str, Any]) -> Example:
    """One of results["examples"] as the page shows it."""
    truth, said = raw.get("truth"), {who: raw.get(who) for who in ("head", "snapshot")}
    golds = truth if isinstance(truth, list) else [truth]
    context = str(raw.get("context") or "")
    marks = [(str(gold or ""), "truth") for gold in golds]
    marks += [(str(said[who] or ""), who) for who in ("snapshot", "head")]
    return Example(
        texts=[str(text) for text in raw.get("texts") or []],
        pieces=marked(context, marks) if context else [],
        answers=[
            ("truth", _answer(truth), None),
            *((who, _answer(value), raw.get(f"{who}_right")) for who, value in said.items()),
        ],
    )


def _answer(value: Any) -> str:
    if isinstance(value, list):
        return " · ".join(dict.fromkeys(map(_answer, value))) or "no answer"
    if isinstance(value, float):
        return words.number(value, percent=False)
    return words.UNKNOWN if value is None else str(value) or "no answer"


def marked(context: str, marks: Iterable[tuple[str, str]]) -> Pieces:
    """A context in pieces, each with the names of the texts it is part of; stretches without one are cut where long."""
    spans = []
    for text, name in marks:
        found = re.search(rf"(?<!\w){re.escape(text)}(?!\w)", context) if text else None
        if found:
            spans.append((found.start(), found.end(), name))
    cuts = sorted({0, len(context), *(cut for start, end, _ in spans for cut in (start, end))})
    pieces = []
    for start, end in pairwise(cuts):
        worn = dict.fromkeys(name for a, b, name in spans if a <= start and end <= b)
        pieces.append((context[start:end], " ".join(worn)))
    return pieces if len(context) <= _CONTEXT else _shortened(pieces)


def _shortened(pieces: Sequence[tuple[str, str]]) -> Pieces:
    """Marked text always stays; of the rest what is next to it."""
    if len(pieces) == 1:
        return [(pieces[0][0][:_CONTEXT] + " …", pieces[0][1])]
    shown = []
    for i, (text, worn) in enumerate(pieces):
        after, before = (_MARGIN if i > 0 else 0), (_MARGIN if i < len(pieces) - 1 else 0)
        if not worn and len(text) > after + before + 40:
            text = f"{text[:after]} … {text[len(text) - before :]}"
        shown.append((text, worn))
    return shown
