"""SQuAD v1.1 / v2.0 JSON, in and out.

    {"version": "v2.0", "data": [{"title": ..., "paragraphs": [{"context": ..., "qas": [{"id": ...,
        "question": ..., "answers": [{"text": ..., "answer_start": 7}], "is_impossible": false}]}]}]}

The file is checked while it is read: an answer that does not stand at its offset would silently become a wrong label.
Errors name the article, the paragraph (counted from 1) and the question.
"""

import json
from itertools import groupby
from pathlib import Path
from typing import Any

from bertvision.artifacts import write_text
from bertvision.data.checks import Flaw, check_text, parse_json, read_text, shorten
from bertvision.data.examples import Answer, Example, SpanData
from bertvision.errors import DataError


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


def read_squad(path: str | Path, *, answers_required: bool = True) -> SpanData:
    """Read and check a SQuAD file.

    With `answers_required=False` questions may come without `answers` (a file to predict on, not to
    train or score on); they read as unanswerable.
    """
    path = Path(path)
    content = parse_json(read_text(path), path)
    if not isinstance(content, dict) or not isinstance(content.get("data"), list):
        raise DataError(
            f'{path} is not a SQuAD file: it must be {{"data": [articles]}} with a list under "data"'
        )
    builder = SpanBuilder(str(path))
    for number, article in enumerate(content["data"], start=1):
        _read_article(builder, article, number, path=path, answers_required=answers_required)
    return builder.build()


def _read_article(
    builder: SpanBuilder, article: Any, number: int, *, path: Path, answers_required: bool
) -> None:
    title = article.get("title", "") if isinstance(article, dict) else ""
    where = f"{path}: article {shorten(title) if title else number}"
    if not isinstance(article, dict) or not isinstance(article.get("paragraphs"), list):
        raise DataError(f'{where} has no list under "paragraphs"; bring the file into SQuAD form')
    if not isinstance(title, str):
        raise DataError(f"{where} has a title that is not a string; write it in quotes")
    for position, paragraph in enumerate(article["paragraphs"], start=1):
        place = f"{where}, paragraph {position}"
        if not isinstance(paragraph, dict) or not isinstance(paragraph.get("qas"), list):
            raise DataError(f'{place} has no list under "qas"; bring the file into SQuAD form')
        qa: Any = None
        try:
            index = builder.paragraph(paragraph.get("context"))
            for qa in paragraph["qas"]:
                if not isinstance(qa, dict):
                    raise Flaw(f"a question must be an object, not {shorten(qa)}")
                answers = _read_answers(qa, builder.paragraphs[index], required=answers_required)
                builder.add(qa.get("id"), qa.get("question"), index, answers, title=title)
        except Flaw as flaw:
            question = f", question {qa.get('id')}" if isinstance(qa, dict) else ""
            raise DataError(f"{place}{question}: {flaw}") from None


def _read_answers(qa: dict[str, Any], context: str, *, required: bool) -> tuple[Answer, ...]:
    given = qa.get("answers")
    impossible = qa.get("is_impossible")
    if not isinstance(given, list):
        # Official v2.0 files have the key on every question; its absence is a test set or a slip.
        if given is None and (impossible is True or not required):
            return ()
        raise Flaw('there is no list under "answers"; write [] where there is no answer')
    if impossible is not None and not isinstance(impossible, bool):
        raise Flaw(f"is_impossible must be true or false, not {shorten(impossible)}")
    if impossible is True and given:
        raise Flaw("is_impossible is true but there are answers; empty the answers or set it to false")
    if impossible is False and not given and required:
        raise Flaw("is_impossible is false but there is no answer; add one or set it to true")
    if any(not isinstance(one, dict) or "answer_start" not in one for one in given):
        raise Flaw('every answer must be {"text": ..., "answer_start": ...}')
    return parse_answers(given, context)


def write_squad(data: SpanData, path: str | Path) -> None:
    """Write `data` as SQuAD v2.0 JSON, examples in their order; the file appears whole or not at all."""
    path = Path(path)
    articles = []
    for title, of_article in groupby(data.examples, key=lambda e: e.title):
        paragraphs = []
        for index, examples in groupby(of_article, key=lambda e: e.paragraph):
            qas = [
                {
                    "question": e.question,
                    "id": e.id,
                    "answers": [{"text": a.text, "answer_start": a.start} for a in e.answers],
                    "is_impossible": not e.answerable,
                }
                for e in examples
            ]
            paragraphs.append({"qas": qas, "context": data.paragraphs[index]})
        articles.append({"title": title, "paragraphs": paragraphs})
    write_text(path, json.dumps({"version": "v2.0", "data": articles}, ensure_ascii=False))
