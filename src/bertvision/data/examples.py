"""Questions over paragraphs: what the user wrote, before any tokenizer has seen it.

A `SpanData` keeps each paragraph once and lets examples point at it, because ten questions often ask about the same
paragraph and it is tokenised only once.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain


def content_hash(parts: Iterable[object]) -> str:
    """Hash of JSON values in their order: the fingerprint of every kind of data."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(json.dumps(part).encode())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    start: int
    """Character offset of the text in the paragraph."""


@dataclass(frozen=True, slots=True)
class Example:
    id: str
    question: str
    paragraph: int
    """Index into `SpanData.paragraphs`."""
    answers: tuple[Answer, ...] = ()
    """All accepted answers; empty when the paragraph does not hold one."""
    title: str = ""

    @property
    def answerable(self) -> bool:
        return bool(self.answers)


@dataclass(frozen=True)
class SpanData:
    """A set of questions over paragraphs, in the order of its source."""

    paragraphs: list[str]
    examples: list[Example]
    name: str = "data"
    """Where it came from, for messages and reports; never part of the fingerprint."""

    def __len__(self) -> int:
        return len(self.examples)

    def context(self, example: Example) -> str:
        return self.paragraphs[example.paragraph]

    def take(self, indices: Sequence[int]) -> "SpanData":
        """The examples at `indices`, in that order, over the same paragraphs."""
        return SpanData(self.paragraphs, [self.examples[i] for i in indices], self.name)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the content: paragraphs, questions, ids and answers."""
        rows = (
            [e.id, e.question, e.paragraph, [[a.text, a.start] for a in e.answers]] for e in self.examples
        )
        return content_hash(chain(self.paragraphs, rows))
