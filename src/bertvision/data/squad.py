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
from bertvision.data.building import Flaw, SpanBuilder, parse_answers, shorten
from bertvision.data.examples import Answer, SpanData
from bertvision.data.files import parse_json, read_text
from bertvision.errors import DataError


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
