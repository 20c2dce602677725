"""Questions over paragraphs: what the user wrote, before any tokenizer has seen it.

A `SpanData` keeps each paragraph once and lets examples point at it, because ten questions often ask about the same
paragraph and it is tokenised only once.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import ClassVar, Literal

from bertvision.errors import ConfigError


def content_hash(parts: Iterable[object]) -> str:
    """The fingerprint of every kind of data, from JSON values in their order."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(json.dumps(part).encode())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    start: int  # character offset of the text in the paragraph


@dataclass(frozen=True, slots=True)
class Example:
    id: str
    question: str
    paragraph: int  # index into `SpanData.paragraphs`
    answers: tuple[Answer, ...] = ()  # all accepted answers; empty when the paragraph does not hold one
    title: str = ""

    @property
    def answerable(self) -> bool:
        return bool(self.answers)


@dataclass(frozen=True)
class SpanData:
    kind: ClassVar = "span"
    paragraphs: list[str]
    examples: list[Example]
    name: str = "data"  # where it came from; never part of the fingerprint

    def __len__(self) -> int:
        return len(self.examples)

    def context(self, example: Example) -> str:
        return self.paragraphs[example.paragraph]

    def take(self, indices: Sequence[int]) -> "SpanData":
        return SpanData(self.paragraphs, [self.examples[i] for i in indices], self.name)

    @cached_property
    def fingerprint(self) -> str:
        rows = (
            [e.id, e.question, e.paragraph, [[a.text, a.start] for a in e.answers]] for e in self.examples
        )
        return content_hash(chain(self.paragraphs, rows))


TextKind = Literal["label", "score"]
Metric = Literal["accuracy", "f1", "mcc", "pearson", "spearman"]
"""What a task is judged and chosen by; all are better when higher."""


@dataclass(frozen=True, slots=True)
class TextExample:
    id: str
    first: str
    second: str | None = None  # the other text of a pair
    label: int | float | None = None  # number of the class, or the score; None where it is not known


@dataclass(frozen=True)
class TextData:
    examples: list[TextExample]  # in the order of the source; all single texts or all pairs
    kind: TextKind
    classes: tuple[str, ...] = ()  # names of the classes, in the order of their numbers; none for scores
    name: str = "data"  # where it came from; never part of the fingerprint
    metric: Metric = "accuracy"
    positive: int = 1  # of two classes, the one F1 is about
    spans: SpanData | None = None  # answer / no answer: the questions, in the order of the examples

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def pairs(self) -> bool:
        return bool(self.examples) and self.examples[0].second is not None

    @property
    def labelled(self) -> bool:
        return all(example.label is not None for example in self.examples)

    def take(self, indices: Sequence[int]) -> "TextData":
        spans = None if self.spans is None else self.spans.take(indices)
        return replace(self, examples=[self.examples[i] for i in indices], spans=spans)

    @cached_property
    def fingerprint(self) -> str:
        rows = ([e.id, e.first, e.second, e.label] for e in self.examples)
        spans = [] if self.spans is None else [self.spans.fingerprint]
        return content_hash(chain([[self.kind, self.classes]], rows, spans))


def positive_class(classes: tuple[str, ...], counts: Mapping[str, int]) -> int:
    """Number of the class F1 is about: the rarer of two that have names; the second of two numbers or truths."""
    numbers = all(name.lstrip("-").isdecimal() for name in classes)
    if len(classes) != 2 or classes == ("false", "true") or numbers:
        return 1
    return int(counts.get(classes[0], 0) >= counts.get(classes[1], 0))


ANSWERABLE = ("answer", "no answer")  # classes of answer / no answer; F1 is about the second


def answerable(spans: SpanData, *, answers_required: bool = True) -> TextData:
    """Which questions their paragraphs answer, as a label task.

    Without `answers_required` a set in which no question has an answer is one whose answers are not known.
    """
    known = answers_required or any(e.answerable for e in spans.examples)
    examples = [
        TextExample(e.id, e.question, spans.context(e), int(not e.answerable) if known else None)
        for e in spans.examples
    ]
    return TextData(examples, "label", ANSWERABLE, f"answerable:{spans.name}", "accuracy", 1, spans)


def join_texts(parts: Sequence[TextData]) -> TextData:
    """Join several sets of one task; an id that was used before gets the number of its part in front."""
    first = parts[0]
    if len(parts) == 1:
        return first
    for part in parts:
        if part.spans is not None:  # they stand beside the texts, in the order of one set
            raise ConfigError(f"{part.name} cannot be joined with others; put the questions into one file")
        if (part.kind, part.classes, part.pairs) != (first.kind, first.classes, first.pairs):
            raise ConfigError(f"{first.name} and {part.name} cannot be joined: they are of different tasks")
    examples: dict[str, TextExample] = {}
    for number, part in enumerate(parts):
        for example in part.examples:
            id = example.id
            while id in examples:
                id = f"{number}-{id}"
            examples[id] = replace(example, id=id)
    positive = first.positive
    if any(part.positive != positive for part in parts):  # rarer in one part and not in another
        labels = (e.label for e in examples.values())
        counts = Counter(first.classes[int(label)] for label in labels if label is not None)
        positive = positive_class(first.classes, counts)
    name = " + ".join(part.name for part in parts)
    return replace(first, examples=list(examples.values()), name=name, positive=positive)
