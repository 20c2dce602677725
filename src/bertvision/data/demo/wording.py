"""What the demo set may say, read from `wording.json`: topics, and for each part its words, sentences and questions.

    topics  TOPIC: noun, plural, called ({} = the thing's own name), kinds (attribute -> kind of its value)
    parts   PART: words (kind -> words), joins, intros ({X}, {Y} of the kind {P}), asides,
            topics (TOPIC: ATTRIBUTE: clauses that state the value {A} of the thing {S}, questions about it)

No two parts share a name, a sentence form or a question template. {S} in a clause may become "it", so no form may
need a genitive or a plural of it. Invented names are two word pieces long for an uncased BERT vocabulary and given
names are one, so a full name has two to four pieces and the encoder knows none of them.
"""

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["Attribute", "Topic", "Wording", "read_topics", "read_wording", "stems"]

_COMMON = r"(?:a|an|the|of|in|on|at|by|to|for|with|from|is|are|was|were|did|does|do|has|have|had)"


@dataclass(frozen=True)
class Topic:
    """A kind of thing a passage compares two of."""

    noun: str
    plural: str
    called: list[str]
    """What such a thing is called; {} is its own name."""
    kinds: dict[str, str]
    """Attribute -> kind of its value."""


@dataclass(frozen=True)
class Attribute:
    clauses: list[str]
    questions: list[str]


@dataclass(frozen=True)
class Wording:
    """Everything one part may say."""

    words: dict[str, list[str]]
    """Kind of word -> the words of this part."""
    joins: dict[str, list[str]]
    """What joins two clauses about the `same` thing, or about two things (`other`)."""
    intros: list[str]
    asides: list[str]
    attributes: dict[tuple[str, str], Attribute]
    """By (topic, attribute)."""


@cache
def _content() -> dict[str, Any]:
    return json.loads((Path(__file__).parent / "wording.json").read_text(encoding="utf-8"))


@cache
def read_topics() -> dict[str, Topic]:
    return {name: Topic(**topic) for name, topic in _content()["topics"].items()}


@cache
def read_wording(part: str) -> Wording:
    """The wording of one part: train, dev or test."""
    content = dict(_content()["parts"][part])
    topics = content.pop("topics")
    attributes = {
        (name, key): Attribute(**topics[name][key])
        for name, topic in read_topics().items()
        for key in topic.kinds
    }
    return Wording(**content, attributes=attributes)


def stems(text: str) -> list[str]:
    """Words of a text except the commonest, each cut to five letters: "designed" matches "designer"."""
    return [word[:5] for word in re.findall(rf"\b(?!{_COMMON}\b)\w+", text.lower())]
