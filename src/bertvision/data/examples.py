"""Questions over paragraphs and texts with labels, before any tokenizer has seen them; SQuAD files read and written.

A `SpanData` keeps each paragraph once and lets examples point at it, because ten questions often ask about the same
paragraph and it is tokenised only once. Read from SQuAD files (v1.1, v2.0) and tables, everything is checked: an answer
that does not stand at its offset would silently become a wrong label.

    {"version": "v2.0", "data": [{"title": ..., "paragraphs": [{"context": ..., "qas": [{"id": ...,
        "question": ..., "answers": [{"text": ..., "answer_start": 7}], "is_impossible": false}]}]}]}
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, ClassVar, Literal

from bertvision.artifacts import write_text
from bertvision.data.tables import Flaw, Table, at, check_id, check_text, parse_json, read_json, shorten
from bertvision.errors import ConfigError, DataError


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
    """Which questions their paragraphs answer, as a label task. Without `answers_required` a set in which no question
    has an answer is one whose answers are not known."""
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


# ---- questions that are read


class SpanBuilder:
    """Collects checked questions; equal contexts become one paragraph."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._paragraphs: dict[str, int] = {}
        self._examples: list[Example] = []
        self._ids: set[str] = set()

    def add(self, id: Any, question: Any, context: Any, answers: Any = None, *, title: str = "") -> None:
        check_text(context, "context")
        check_text(question, "question")
        id = check_id(id, self._ids)
        found = _parse_answers(answers, context)
        paragraph = self._paragraphs.setdefault(context, len(self._paragraphs))
        self._examples.append(Example(id, question, paragraph, found, title))

    def build(self) -> SpanData:
        if not self._examples:
            raise DataError(f"{self.name}: there is no question in it; give a file that holds at least one")
        return SpanData(list(self._paragraphs), self._examples, self.name)


def _parse_answers(value: Any, context: str) -> tuple[Answer, ...]:
    """Read "Paris", ["Paris"], [{"text": "Paris", "answer_start": 7}] or {"text": ["Paris"], "answer_start": [7]}.
    None, "" and [] mean unanswerable. Without an answer_start the first occurrence in the context is meant."""
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
    if start is None and (start := context.find(text)) < 0:
        raise Flaw(f"the answer {shorten(text)} is not in the context; copy it letter by letter")
    if type(start) is not int or start < 0:
        raise Flaw(f"answer_start must be the number of a character, 0 or more, not {shorten(start)}")
    there = context[start : start + len(text)]
    if there != text:
        raise Flaw(
            f"the answer {shorten(text)} does not stand at answer_start {start} "
            f"(there stands {shorten(there)}); correct answer_start or remove the question"
        )
    return Answer(text, start)


# ---- tables


def spans_of_table(table: Table, *, answers_required: bool, max_examples: int | None) -> SpanData:
    """Questions of a table; in a cell of text, answers are plain text, beside an answer_start or not, or JSON."""
    usual = ("id", "title", "question", "context", "answers", "answer_start")
    builder = SpanBuilder(table.name)
    rows = table.read([name for name in usual if name in table.columns])
    for number, row in islice(rows, max_examples):
        with at(table.place(number)):
            for column in ("question", "context", *["answers"] * answers_required):
                if column not in row:
                    raise Flaw(f"there is no {column!r}; name the columns question, context and answers")
            answers = _answers_of_cell(row) if table.cells else row.get("answers")
            id = f"row-{number}" if row.get("id") in (None, "") else row["id"]
            builder.add(id, row["question"], row["context"], answers, title=str(row.get("title") or ""))
    return builder.build()


def _answers_of_cell(row: Any) -> Any:
    cell, start = row.get("answers"), row.get("answer_start", "").strip()
    if cell and cell.lstrip()[:1] in ("[", "{"):
        try:
            return parse_json(cell, Path())
        except DataError:
            return cell  # an answer that happens to begin with a bracket
    if not cell or not start:
        return cell
    if not start.isdecimal() or len(start) > 18:
        raise Flaw(f"answer_start must be the number of a character, not {shorten(start)}")
    return [{"text": cell, "answer_start": int(start)}]


# ---- SQuAD files


def read_squad(path: str | Path, *, answers_required: bool = True) -> SpanData:
    """Read a SQuAD file; where answers are not required, questions without any read as unanswerable."""
    path = Path(path)
    builder = SpanBuilder(str(path))
    for number, article in enumerate(_list(read_json(path), "data", str(path)), start=1):
        title = str(article.get("title") or "") if isinstance(article, dict) else ""
        where = f"{path}: article {shorten(title) if title else number}"
        for position, paragraph in enumerate(_list(article, "paragraphs", where), start=1):
            place = f"{where}, paragraph {position}"
            for qa in _list(paragraph, "qas", place):
                if not isinstance(qa, dict):
                    raise DataError(f"{place}: a question must be an object, not {shorten(qa)}")
                context, id = paragraph.get("context"), qa.get("id")
                with at(f"{place}, question {id}"):
                    answers = _answers_of_question(qa, required=answers_required)
                    builder.add(id, qa.get("question"), context, answers, title=title)
    return builder.build()


def _list(value: Any, key: str, place: str) -> list[Any]:
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, list):
        raise DataError(f'{place} has no list under "{key}"; bring the file into SQuAD form')
    return found


def _answers_of_question(qa: dict[str, Any], *, required: bool) -> list[Any]:
    given, impossible = qa.get("answers"), qa.get("is_impossible")
    if given is None and (impossible is True or not required):
        return []
    # Official v2.0 files have the key on every question; its absence is a test set or a slip.
    if not isinstance(given, list):
        raise Flaw('there is no list under "answers"; write [] where there is no answer')
    if impossible is True and given:
        raise Flaw("is_impossible is true but there are answers; empty the answers or set it to false")
    if impossible is False and not given and required:
        raise Flaw("is_impossible is false but there is no answer; add one or set it to true")
    if any(not isinstance(one, dict) or "answer_start" not in one for one in given):
        raise Flaw('every answer must be {"text": ..., "answer_start": ...}')
    return given


def write_squad(data: SpanData, path: str | Path) -> None:
    articles = []
    for title, of_article in groupby(data.examples, key=lambda e: e.title):
        paragraphs = []
        for index, examples in groupby(of_article, key=lambda e: e.paragraph):
            qas = []
            for e in examples:
                answers = [{"text": a.text, "answer_start": a.start} for a in e.answers]
                own = {"question": e.question, "id": e.id, "answers": answers, "is_impossible": not answers}
                qas.append(own)
            paragraphs.append({"qas": qas, "context": data.paragraphs[index]})
        articles.append({"title": title, "paragraphs": paragraphs})
    write_text(Path(path), json.dumps({"version": "v2.0", "data": articles}, ensure_ascii=False))
