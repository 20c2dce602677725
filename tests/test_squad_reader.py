"""SQuAD files: what is read, what is refused and with which sentence."""

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from bertvision.data.examples import Answer, Example, SpanData
from bertvision.data.load import load_span_data
from bertvision.data.squad import read_squad, write_squad
from bertvision.errors import ConfigError, DataError, OutputError

CONTEXT = "Nora Lind built the mill in 1820. It burned down in 1871."
GOOD: dict[str, Any] = {
    "version": "v2.0",
    "data": [
        {
            "title": "Mills",
            "paragraphs": [
                {
                    "context": CONTEXT,
                    "qas": [
                        {
                            "id": "a",
                            "question": "Who built the mill?",
                            "answers": [{"text": "Nora Lind", "answer_start": 0}],
                            "is_impossible": False,
                        },
                        {
                            "id": "b",
                            "question": "Who sold the mill?",
                            "answers": [],
                            "plausible_answers": [{"text": "Nora Lind", "answer_start": 0}],
                            "is_impossible": True,
                        },
                    ],
                }
            ],
        }
    ],
}


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


def test_reads_version_1_without_is_impossible_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = save(tmp_path, "\ufeff" + json.dumps(broken(is_impossible=None)))
    assert [e.answerable for e in read_squad(path).examples] == [True, False]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"answers": [{"text": "Nora Lind", "answer_start": 3}]}, "does not stand at answer_start 3"),
        ({"answers": [{"text": "Nora Lind", "answer_start": 5000}]}, "does not stand at answer_start 5000"),
        ({"answers": [{"text": "Nora Lind", "answer_start": -9}]}, "answer_start must be"),
        ({"answers": [{"text": "Nora Lind", "answer_start": "0"}]}, "answer_start must be"),
        ({"answers": [{"text": "", "answer_start": 0}]}, "an answer needs a text"),
        ({"answers": [{"text": "Nora Lind"}]}, "every answer must be"),
        ({"answers": ["Nora Lind"]}, "every answer must be"),
        ({"answers": None}, 'no list under "answers"'),
        ({"answers": []}, "is_impossible is false but there is no answer"),
        ({"is_impossible": True}, "is_impossible is true but there are answers"),
        ({"is_impossible": "no"}, "is_impossible must be true or false"),
        ({"question": ""}, "the question is empty"),
        ({"question": " \n"}, "the question is empty"),
        ({"question": 7}, "the question must be a string"),
        ({"question": "Who \ud800?"}, "holds half a character"),
        ({"id": "b"}, "already used"),
        ({"id": None}, "the id must be"),
        ({"id": 5}, "the id must be"),
    ],
)
def test_a_wrong_question_is_named(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    path = save(tmp_path, broken(**changes))
    with pytest.raises(DataError) as error:
        read_squad(path)
    sentence = str(error.value)
    # The duplicate is noticed at the second of the two.
    id = "b" if changes.get("id") == "b" else changes.get("id", "a")
    assert sentence.startswith(f"{path}: article 'Mills', paragraph 1, question {id}: ")
    assert said in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize("context", ["", "  ", None, 3])
def test_an_empty_context_is_named(tmp_path: Path, context: object) -> None:
    content = copy.deepcopy(GOOD)
    content["data"][0]["paragraphs"][0]["context"] = context
    with pytest.raises(
        DataError, match=r"article 'Mills', paragraph 1: the context (is empty|must be a string)"
    ):
        read_squad(save(tmp_path, content))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([], "is not a SQuAD file"),
        ({"data": {}}, "is not a SQuAD file"),
        ({"data": [3]}, "article 1 has no list"),
        ({"data": [{"title": "T"}]}, "article 'T' has no list"),
        ({"data": [{"title": "T", "paragraphs": [{"context": "x"}]}]}, "paragraph 1 has no list"),
        ({"data": [{"title": "T", "paragraphs": [{"context": "x", "qas": ["q"]}]}]}, "must be an object"),
        ({"data": [{"title": "T", "paragraphs": [{"context": "x", "qas": []}]}]}, "there is no question"),
        ({"data": []}, "there is no question"),
        ("", "is not valid JSON at line 1, column 1"),
        ('{"data":\n [1,]}', "is not valid JSON at line 2, column"),
    ],
)
def test_a_wrong_schema_is_named(tmp_path: Path, content: object, said: str) -> None:
    with pytest.raises(DataError) as error:
        read_squad(save(tmp_path, content))
    assert said in str(error.value)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.99])
def test_a_truncated_file_says_where_it_ends(tmp_path: Path, share: float) -> None:
    text = json.dumps(GOOD)
    path = save(tmp_path, text[: int(share * len(text))])
    with pytest.raises(DataError, match=r"not valid JSON at line 1, column \d+ .*download it again"):
        read_squad(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.json does not exist"):
        read_squad(tmp_path / "nowhere.json")
    with pytest.raises(DataError, match="is a folder"):
        read_squad(tmp_path)
    (tmp_path / "latin.json").write_bytes(b'{"data": "\xe9"}')
    with pytest.raises(DataError, match="not UTF-8 text"):
        read_squad(tmp_path / "latin.json")


def test_answers_may_be_absent_where_only_predictions_are_wanted(tmp_path: Path) -> None:
    path = save(tmp_path, broken(answers=None, is_impossible=None))
    assert not read_squad(path, answers_required=False).examples[0].answers


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    paragraphs = ["One ☃ snowman.", "Two\u2028lines.", "Never asked about."]
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


def test_writing_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="out"):
        write_squad(SpanData(["x"], [Example("1", "q", 0)]), tmp_path / "file" / "out.json")


def test_first_examples_and_unknown_sources(tmp_path: Path) -> None:
    path = save(tmp_path, GOOD)
    assert [e.id for e in load_span_data(str(path), max_examples=1).examples] == ["a"]
    assert len(load_span_data(str(path), max_examples=99)) == 2
    for number in (0, -1):
        with pytest.raises(ConfigError, match="at least 1"):
            load_span_data(str(path), max_examples=number)
    for source in ("set.xml", "squad"):
        with pytest.raises(DataError, match=r"\.jsonl"):
            load_span_data(source)
    with pytest.raises(ConfigError, match="demo:train"):
        load_span_data("demo:validation")
    with pytest.raises(ConfigError, match="name of a data set"):
        load_span_data("hub:")


@pytest.mark.parametrize(
    ("name", "examples", "paragraphs", "answerable"),
    [("dev-v2.0.json", 11_873, 1_204, 5_928), ("train-v2.0-partial.json", 105_015, 18_896, 87_599)],
)
def test_the_real_sets(shared_data: Path, name: str, examples: int, paragraphs: int, answerable: int) -> None:
    data = read_squad(shared_data / "squad" / name)
    assert (len(data), len(data.paragraphs)) == (examples, paragraphs)
    assert sum(e.answerable for e in data.examples) == answerable
    if name == "dev-v2.0.json":
        # The official order of ids, hashed from the file with nothing but json.
        raw = json.loads((shared_data / "squad" / name).read_text())
        ids = [q["id"] for a in raw["data"] for p in a["paragraphs"] for q in p["qas"]]
        ours = hashlib.md5("".join(e.id for e in data.examples).encode()).hexdigest()
        assert ours == hashlib.md5("".join(ids).encode()).hexdigest()
