"""SQuAD files: what is read, what is refused and where it stands, what is written."""

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from bertvision.data.examples import Answer, Example, SpanData, read_squad, write_squad
from bertvision.data.load import load_span_data
from bertvision.errors import DataError, OutputError

CONTEXT = "Nora Lind built the mill in 1820. It burned down in 1871."
NORA = {"text": "Nora Lind", "answer_start": 0}
GOOD: dict[str, Any] = {"version": "v2.0", "data": [{"title": "Mills", "paragraphs": [{"context": CONTEXT, "qas": [
    {"id": "a", "question": "Who built the mill?", "answers": [NORA], "is_impossible": False},
    {"id": "b", "question": "Who sold the mill?", "answers": [], "plausible_answers": [NORA], "is_impossible": True},
]}]}]}  # fmt: skip


def save(folder: Path, content: object) -> Path:
    path = folder / "set.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def broken(**changes: Any) -> dict[str, Any]:
    """The good file with some keys of its first question set; None removes a key."""
    content = copy.deepcopy(GOOD)
    question = content["data"][0]["paragraphs"][0]["qas"][0]
    for key, value in changes.items():
        question.pop(key) if value is None else question.update({key: value})
    return content


def test_reads_answers_and_unanswerable_questions(tmp_path: Path) -> None:
    data = read_squad(save(tmp_path, GOOD))
    assert data.paragraphs == [CONTEXT]
    assert data.examples == [
        Example("a", "Who built the mill?", 0, (Answer("Nora Lind", 0),), "Mills"),
        Example("b", "Who sold the mill?", 0, (), "Mills"),
    ]
    # Version 1 has no is_impossible; editors on Windows write a byte-order mark.
    old = save(tmp_path, "\ufeff" + json.dumps(broken(is_impossible=None)))
    assert [e.answerable for e in read_squad(old).examples] == [True, False]
    unknown = save(tmp_path, broken(answers=None, is_impossible=None))
    assert not read_squad(unknown, answers_required=False).examples[0].answers
    assert [e.id for e in load_span_data(str(save(tmp_path, GOOD)), max_examples=1).examples] == ["a"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"answers": [{"text": "Nora Lind", "answer_start": 3}]}, "does not stand at answer_start 3"),
        ({"answers": [{"text": "Nora Lind", "answer_start": -9}]}, "answer_start must be"),
        ({"answers": [{"text": "", "answer_start": 0}]}, "an answer needs a text"),
        ({"answers": [{"text": "Nora Lind"}]}, "every answer must be"),
        ({"answers": ["Nora Lind"]}, "every answer must be"),
        ({"answers": None}, 'no list under "answers"'),
        ({"answers": []}, "is_impossible is false but there is no answer"),
        ({"is_impossible": True}, "is_impossible is true but there are answers"),
        ({"question": " \n"}, "the question is empty"),
        ({"question": "Who \ud800?"}, "holds half a character"),
        ({"id": "b"}, "already used"),
        ({"id": None}, "the id must be"),
    ],
)
def test_a_wrong_question_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = save(tmp_path, broken(**changes))
    with pytest.raises(DataError) as error:
        read_squad(path)
    id = changes.get("id", "a")
    assert str(error.value).startswith(f"{path}: article 'Mills', paragraph 1, question {id}: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def about(context: object, *questions: object) -> dict[str, Any]:
    return {"data": [{"title": "T", "paragraphs": [{"context": context, "qas": list(questions)}]}]}


UNANSWERED = {"id": "a", "question": "q", "answers": []}
FILES: list[tuple[object, str]] = [
    ([], 'has no list under "data"'),
    ({"data": []}, "there is no question"),
    ({"data": [{"title": "T"}]}, "article 'T' has no list"),
    ({"data": [{"title": "T", "paragraphs": [{"context": "x"}]}]}, "paragraph 1 has no list"),
    (about("x", "q"), "must be an object"),
    (about("  ", UNANSWERED), "paragraph 1, question a: the context is empty"),
    ("", "set.json:1 is not valid JSON at column 1"),
    ('{"data":\n [1,]}', "set.json:2 is not valid JSON"),
    ('{"data": [' + "[" * 100_000, "nests lists or objects too deeply"),
    ('{"data": [' + "[" * 900 + "]" * 900 + "]}", "article 1 has no list"),
    (f'{{"data": {"7" * 5000}}}', "a number with thousands of digits"),
    (json.dumps(GOOD)[:200], "download it again"),
]


@pytest.mark.parametrize(("content", "message"), FILES)
def test_a_wrong_file_is_named(tmp_path: Path, content: object, message: str) -> None:
    with pytest.raises(DataError) as error:
        read_squad(save(tmp_path, content))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    paragraphs = ["One ☃ snowman.", "Two\u2028lines.\r\n", "Never asked about."]
    examples = [
        Example("1", "What?", 0, (Answer("snowman", 6), Answer("☃ snowman", 4)), "A"),
        Example("2", "How many?", 1, (), "A"),
        Example("3", "Which?", 0, (), "B"),
    ]
    path = tmp_path / "new" / "out.json"
    write_squad(SpanData(paragraphs, examples), path)
    back = read_squad(path)
    assert [(e.id, e.question, back.context(e), e.answers, e.title) for e in back.examples] == [
        (e.id, e.question, paragraphs[e.paragraph], e.answers, e.title) for e in examples
    ]
    assert [f.name for f in path.parent.iterdir()] == ["out.json"]
    with pytest.raises(OutputError, match="out"):
        write_squad(back, path / "below" / "a file.json")


@pytest.mark.parametrize(
    ("name", "examples", "paragraphs", "answerable"),
    [("dev-v2.0.json", 11_873, 1_204, 5_928), ("train-v2.0-partial.json", 105_015, 18_891, 87_599)],
)
def test_the_real_sets(shared_data: Path, name: str, examples: int, paragraphs: int, answerable: int) -> None:
    data = read_squad(shared_data / "squad" / name)
    assert (len(data), len(data.paragraphs)) == (examples, paragraphs)
    assert sum(e.answerable for e in data.examples) == answerable
    # The official order of ids, hashed from the file with nothing but json.
    raw = json.loads((shared_data / "squad" / name).read_text())
    ids = [q["id"] for a in raw["data"] for p in a["paragraphs"] for q in p["qas"]]
    ours = hashlib.md5("".join(e.id for e in data.examples).encode()).hexdigest()
    assert ours == hashlib.md5("".join(ids).encode()).hexdigest()
