"""What every reader shares: checks of texts and answers, and a validated `SpanData` from questions.

A reader knows where a row stands (file, line, article, paragraph); this module knows what is wrong with it. A `Flaw`
says what is wrong and the way out; the reader puts the place in front and raises the `DataError` the user sees.
"""

from typing import Any

from bertvision.data.examples import Answer, Example, SpanData
from bertvision.errors import DataError


class Flaw(ValueError):
    """What is wrong with a row and how to mend it, without its place."""


def shorten(text: object, limit: int = 40) -> str:
    """A value quoted on one line for a message, cut where it is long."""
    try:
        shown = repr(text)
    except (RecursionError, ValueError):  # deeply nested, or a whole number of thousands of digits
        shown = f"a {type(text).__name__}"
    return shown if len(shown) <= limit else shown[: limit - 4] + "..." + shown[-1]


class SpanBuilder:
    """Collects checked questions; paragraphs come in by `paragraph` (as they are) or `shared` (once each)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.paragraphs: list[str] = []
        self.examples: list[Example] = []
        self._ids: set[str] = set()
        self._known: dict[str, int] = {}

    def paragraph(self, context: Any) -> int:
        """Add a paragraph and return its index."""
        check_text(context, "context", "remove the paragraph or give it its text")
        self.paragraphs.append(context)
        return len(self.paragraphs) - 1

    def shared(self, context: Any) -> int:
        """Index of a paragraph that may have been added before."""
        index = self._known.get(context) if isinstance(context, str) else None
        if index is None:
            index = self._known[context] = self.paragraph(context)
        return index

    def add(
        self, id: Any, question: Any, paragraph: int, answers: tuple[Answer, ...], *, title: str = ""
    ) -> None:
        """Add one question about paragraph number `paragraph`."""
        if not isinstance(id, str) or not id:
            raise Flaw(f"the id must be a non-empty string, not {shorten(id)}")
        check_text(question, "question", "remove the row or write the question")
        if id in self._ids:
            raise Flaw("the id was already used; give every question its own id")
        context = self.paragraphs[paragraph]
        for answer in answers:
            if not context.startswith(answer.text, answer.start):
                there = context[answer.start : answer.start + len(answer.text)]
                raise Flaw(
                    f"the answer {shorten(answer.text)} does not stand at answer_start {answer.start} "
                    f"(there stands {shorten(there)}); correct answer_start or remove the question"
                )
        self._ids.add(id)
        self.examples.append(Example(id, question, paragraph, answers, title))

    def build(self) -> SpanData:
        if not self.examples:
            raise DataError(f"{self.name}: there is no question in it; give a file that holds at least one")
        return SpanData(self.paragraphs, self.examples, self.name)


def parse_answers(value: Any, context: str) -> tuple[Answer, ...]:
    """Read answers in any of the accepted forms; nothing, an empty list or an empty string mean unanswerable.

    `["Paris"]`, `[{"text": "Paris", "answer_start": 7}]`, `{"text": ["Paris"], "answer_start": [7]}` or
    `"Paris"`. Without an answer_start the first occurrence in the context is meant.
    """
    if value is None or value == "":
        return ()
    if isinstance(value, dict) and isinstance(value.get("text"), list):
        texts, starts = value["text"], value.get("answer_start")
        starts = [None] * len(texts) if starts is None else starts
        if not isinstance(starts, list) or len(starts) != len(texts):
            raise Flaw("answers need as many values under 'answer_start' as under 'text'")
        value = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
    elif isinstance(value, str | dict):
        value = [value]
    if not isinstance(value, list):
        raise Flaw(f"answers must be a list, not {shorten(value)}; write [] where there is no answer")
    return tuple(_answer(one if isinstance(one, dict) else {"text": one}, context) for one in value)


def _answer(given: dict[str, Any], context: str) -> Answer:
    text, start = given.get("text"), given.get("answer_start")
    if not isinstance(text, str) or not text:
        raise Flaw(f"an answer needs a text, not {shorten(text)}; write [] where there is no answer")
    if start is None:
        start = context.find(text)
        if start < 0:
            raise Flaw(
                f"the answer {shorten(text)} is not in the context; copy it from there letter by letter"
            )
    if type(start) is not int or start < 0:
        raise Flaw(f"answer_start must be the number of a character, 0 or more, not {shorten(start)}")
    return Answer(text, start)


def check_text(text: Any, what: str, way_out: str) -> None:
    """Raise a `Flaw` unless `text` is a string with something in it that can be tokenised."""
    if not isinstance(text, str):
        raise Flaw(f"the {what} must be a string, not {shorten(text)}; {way_out}")
    if not text or text.isspace():
        raise Flaw(f"the {what} is empty; {way_out}")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            # JSON can spell half of a surrogate pair; no tokenizer takes it.
            raise Flaw(
                f"the {what} holds half a character at position {error.start}; re-encode it as UTF-8"
            ) from None
