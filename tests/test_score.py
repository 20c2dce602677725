"""Scoring: values worked out by hand, the published systems to the last digit, and the verb."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from bertvision.cli.files import Score
from bertvision.cli.files import score as verb
from bertvision.data.examples import Answer, Example, SpanData
from bertvision.errors import DataError
from bertvision.tasks.span_answers import normalise, per_question, score, score_wordpiece

# Accepted answers, prediction, exact match, F1; each worked out by hand from the published definition.
BY_HAND: list[tuple[list[str], str, float, float]] = [
    (["The Normans"], "normans", 1, 1),  # articles and case do not count
    (["a cat, an owl; the dog!"], "cat owl dog", 1, 1),  # nor does punctuation
    (["U.S.A."], "usa", 1, 1),  # punctuation is removed, not replaced by a space
    (["well-known"], "well known", 0, 0),  # ... so a hyphen joins two words into one
    (["Theatre"], "atre", 0, 0),  # an article is a whole word
    (["the"], "", 1, 1),  # an answer of articles only is an empty one
    (["  two\t spaces\u00a0here "], "two spaces here", 1, 1),  # any white space, the no-break one too
    (["Beyonc\u00e9"], "Beyonce", 0, 0),  # accents count
    (["Beyonc\u00e9"], "Beyonc\u00c9", 1, 1),  # lower case is not only ASCII
    (["\u201cquoted\u201d"], "quoted", 0, 0),  # curly quotes are not ASCII punctuation
    (["10th and 11th centuries"], "11th centuries", 0, 2 * 1 * 0.5 / 1.5),  # precision 1, recall 1/2
    (["in the 10th century", "10th century", "AD 900"], "10th century", 1, 1),  # the best of all golds
    (["one two three", "three four"], "three two five", 0, 2 * (2 / 3) * (2 / 3) / (4 / 3)),
    (["word word"], "word", 0, 2 * 1 * 0.5 / 1.5),  # bags of words: the second one is missing
    ([], "", 1, 1),  # rightly no answer
    ([], "something", 0, 0),
    ([], "the", 1, 1),  # nothing but an article is no answer
    (["something"], "", 0, 0),
    (["..."], "anything", 0, 0),  # a gold of punctuation only counts as no answer
    (["...", "dots"], "dots", 1, 1),  # ... but leaves the others
]


def data_of(golds: Sequence[Sequence[str]]) -> SpanData:
    examples = [Example(f"q{i}", "?", 0, tuple(Answer(a, 0) for a in g)) for i, g in enumerate(golds)]
    return SpanData(["text"], examples, "by hand")


def hand_made() -> tuple[SpanData, dict[str, str]]:
    return data_of([case[0] for case in BY_HAND]), {f"q{i}": case[1] for i, case in enumerate(BY_HAND)}


def test_by_hand() -> None:
    data, predictions = hand_made()
    for case, exact, f1 in zip(BY_HAND, *per_question(data, predictions), strict=True):
        assert (exact, f1) == pytest.approx(case[2:]), case
    assert normalise("An  apple, a 'day' -- the END.") == "apple day end"
    found = score(data, predictions)
    has = [case for case in BY_HAND if case[0]]
    assert (found["total"], found["HasAns_total"], found["NoAns_total"]) == (20, 17, 3)
    assert found["exact"] == pytest.approx(100 * sum(case[2] for case in BY_HAND) / 20)
    assert found["HasAns_f1"] == pytest.approx(100 * sum(case[3] for case in has) / 17)
    assert found["NoAns_exact"] == pytest.approx(100 * 2 / 3)


def test_thresholds_by_hand() -> None:
    data = data_of([("x",), (), ("x",), ()])
    predictions = {"q0": "x", "q1": "x", "q2": "x y", "q3": ""}
    na_probs = {"q0": 0.1, "q1": 0.6, "q2": 0.3, "q3": 0.9}
    found = score(data, predictions, na_probs=na_probs, na_prob_thresh=0.5)
    # Above 0.5 are q1 and q3, both rightly unanswered; q2 has F1 2/3.
    assert (found["exact"], found["f1"]) == pytest.approx((75, 100 * (3 + 2 / 3) / 4))
    # In the order q0, q2, q1, q3 the exact score goes 2, 3, 3, 2, 2 and the F1 2, 3, 3.67, 2.67, 2.67.
    assert (found["best_exact"], found["best_exact_thresh"]) == pytest.approx((75, 0.1))
    assert (found["best_f1"], found["best_f1_thresh"]) == pytest.approx((100 * (3 + 2 / 3) / 4, 0.3))
    # Exact: precision 1 up to recall 1/2, nothing more after it. Oracle: both answerable ones come first.
    assert found["pr_exact_ap"] == pytest.approx(50)
    assert found["pr_f1_ap"] == pytest.approx(100 * (1 * 0.5 + (5 / 3 / 2) * (1 / 3)))
    assert found["pr_oracle_ap"] == pytest.approx(100)


def test_missing_predictions() -> None:
    data, predictions = hand_made()
    del predictions["q3"], predictions["q7"]
    with pytest.raises(DataError, match="predictions of by hand lack 2 of the 20 questions, first 'q3'"):
        score(data, predictions)
    found = score(data, predictions, allow_missing=True)
    kept = [case for i, case in enumerate(BY_HAND) if i not in (3, 7)]
    assert found["total"] == 18
    assert found["f1"] == pytest.approx(100 * sum(case[3] for case in kept) / 18)
    exact, _ = per_question(data, predictions, allow_missing=True)
    assert np.flatnonzero(np.isnan(exact)).tolist() == [3, 7]
    with pytest.raises(DataError, match="nothing to score"):
        score(data, {}, allow_missing=True)
    with pytest.raises(DataError, match="lack 18 of the 18 questions, first 'q0'"):
        score(data, predictions, na_probs={"q3": 0.5}, allow_missing=True)


# The official script's output for two published systems. The no-answer numbers are made up:
# ((7919 i) mod 1009) / 1009 for the i-th prediction of the file, 0.5 more where it is empty; many are equal.
KEYS = [f"{part}{name}" for part in ("", "HasAns_", "NoAns_") for name in ("exact", "f1", "total")]
KEYS += ["best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh"]
KEYS += ["pr_exact_ap", "pr_f1_ap", "pr_oracle_ap"]
PUBLISHED = {
    "bert-single": (
        78.74168280973637, 81.77528052374723, 11873, 74.10593792172739, 80.18183293833508, 5928,
        83.36417157275021, 83.36417157275021, 5945, 78.74168280973637, 0.9990089197224975,
        81.77528052374709, 0.9990089197224975, 47.593281854387385, 55.85042121736152, 74.03021249395192,
    ),
    "bidaf-selfattn-elmo": (
        65.70369746483618, 67.87648921451334, 11873, 61.42037786774629, 65.77219238257676, 5928,
        69.97476871320437, 69.97476871320437, 5945, 65.70369746483618, 0.9990089197224975,
        67.87648921451351, 0.9990089197224975, 33.701589665266894, 38.461846987681156, 64.39488299029851,
    ),
}  # fmt: skip


@pytest.mark.parametrize("system", PUBLISHED)
def test_published_systems_to_every_digit(system: str, shared_data: Path, tmp_path: Path) -> None:
    dev, said = shared_data / "squad/dev-v2.0.json", shared_data / f"squad/predictions/{system}.json"
    found, _ = verb(Score(data=str(dev), predictions=said))
    expected = list(zip(KEYS, PUBLISHED[system], strict=True))
    assert list(found.items()) == expected[:9]

    predictions = json.loads(said.read_text())
    odds = {k: (i * 7919 % 1009) / 1009 + (0.0 if v else 0.5) for i, (k, v) in enumerate(predictions.items())}
    (tmp_path / "odds.json").write_text(json.dumps(odds))
    found, _ = verb(Score(data=str(dev), predictions=said, na_prob=tmp_path / "odds.json"))
    assert list(found.items()) == expected


def test_wordpiece_scores_by_hand() -> None:
    vocabulary = {"the": 1, "norman": 2, "##s": 3, "france": 4}

    def tokenize(texts: list[str]) -> list[list[int]]:
        return [[vocabulary[piece] for piece in text.split()] for text in texts]

    data = data_of([("the norman ##s", "norman ##s"), ("the norman ##s",), (), ("france",), ()])
    ids = {"q0": [2, 3], "q1": [2, 3], "q2": [], "q3": [], "q4": [4]}
    found = score_wordpiece(data, ids, tokenize)
    # Articles count here: q1 lacks one of three pieces, F1 = 2 * 1 * 2/3 / (5/3) = 0.8.
    assert found["exact"] == pytest.approx(100 * 2 / 5)
    assert found["f1"] == pytest.approx(100 * (1 + 0.8 + 1) / 5)
    assert (found["HasAns_f1"], found["NoAns_f1"]) == pytest.approx((100 * 1.8 / 3, 50))
    with pytest.raises(DataError, match="lack 1 of the 5 questions"):
        score_wordpiece(data, {k: v for k, v in ids.items() if k != "q4"}, tokenize)


@pytest.fixture(name="squad")
def fixture_squad(tmp_path: Path) -> str:
    """Two questions, "a" with an answer and "b" without."""
    answer = {"text": "Ada", "answer_start": 0}
    ada = {"id": "a", "question": "Who?", "answers": [answer], "is_impossible": False}
    none = {"id": "b", "question": "When?", "answers": [], "is_impossible": True}
    paragraph = {"context": "Ada wrote it.", "qas": [ada, none]}
    path = tmp_path / "data.json"
    path.write_text(json.dumps({"data": [{"title": "t", "paragraphs": [paragraph]}]}))
    return str(path)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "does not exist"),
        ('{"a": "ada", "b": "', "is not valid JSON"),
        ('{"a": "ada", "b": null}', "'b' must be a string"),
        ('{"a": "ada"}', "lacks 1 of the 2 questions.*first 'b'"),
        ('{"a": "ada", "b": "", "c": ""}', "has 1 more than.*first 'c'"),
    ],
)
def test_verb_refuses_bad_predictions(
    content: str | None, complaint: str, squad: str, tmp_path: Path
) -> None:
    said = tmp_path / "said.json"
    if content is not None:
        said.write_text(content)
    with pytest.raises(DataError, match=complaint) as caught:
        verb(Score(data=squad, predictions=said))
    assert "\n" not in str(caught.value)
    assert str(said) in str(caught.value)


@pytest.mark.parametrize("value", ['"0.5"', "true", "null", "NaN"])
def test_no_answer_numbers_must_be_numbers(value: str, squad: str, tmp_path: Path) -> None:
    said, odds = tmp_path / "said.json", tmp_path / "odds.json"
    said.write_text('{"a": "ada", "b": ""}')
    odds.write_text(f'{{"a": 0.5, "b": {value}}}')
    with pytest.raises(DataError, match=r"'b'.*must be a number"):
        verb(Score(data=squad, predictions=said, na_prob=odds))


def test_scoring_needs_no_torch(squad: str, tmp_path: Path) -> None:
    said = tmp_path / "said.json"
    said.write_text('{"a": "ada", "c": ""}')
    code = (
        "import sys; from bertvision.cli import main; "
        f"main(['score', {squad!r}, {str(said)!r}, '--json', '--allow-missing']); "
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["total"], found["exact"]) == (1, 100)
