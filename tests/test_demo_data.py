"""The embedded demo set: its size, its truth, what its parts share (nothing), and what needs no reading."""

import re
from collections import Counter
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from bertvision.data.demo import FOLDER, demo_data, overlap_answers
from bertvision.data.examples import SpanData
from bertvision.errors import ConfigError
from bertvision.tasks.span_answers import score
from tools.demo_set import passages, read_topics, read_wording, write_part

PARTS = ("train", "dev", "test")
PAIRS = tuple(combinations(PARTS, 2))
NAMES = ("given", "surname", "place", "stem", "body")
part, made = cache(demo_data), cache(passages)


@pytest.mark.parametrize(
    ("name", "size", "without", "fingerprint"),
    [("train", 1800, 540, "42b84cd9e6a293abbfe842387ca1eaca"), ("dev", 800, 320, "352dcdba7468bcd18fc917c3d88f1cba"),
     ("test", 800, 320, "e5997e9cdde67ea588f9990091cfa041")],
)  # fmt: skip
def test_what_is_shipped_is_what_the_tool_makes(
    tmp_path: Path, name: str, size: int, without: int, fingerprint: str
) -> None:
    write_part(name, tmp_path / "made.json")
    assert (tmp_path / "made.json").read_bytes() == (FOLDER / f"{name}.json").read_bytes()
    data = part(name)
    assert (len(data), sum(not e.answerable for e in data.examples)) == (size, without)
    assert (data.fingerprint, data.name) == (fingerprint, f"demo-{name}")
    assert len({(e.paragraph, e.question) for e in data.examples}) == size
    assert len({e.title for e in data.examples}) == len(data.paragraphs) == len(set(data.paragraphs))
    for e in data.examples:
        for answer in e.answers:
            text, end = data.context(e), answer.start + len(answer.text)
            assert not (text[answer.start - 1 : answer.start] + text[end : end + 1]).isalnum()
            assert len(answer.text.split()) <= 3
    with pytest.raises(ConfigError, match="no part 'validation'; choose one of demo:train"):
        demo_data("validation")


@pytest.mark.parametrize("name", PARTS)
def test_no_answer_means_a_near_miss(name: str) -> None:
    """Checked on the clauses themselves: the thing's own clauses never state what is asked of it."""
    wording = read_wording(name)
    reasons = Counter[str]()
    for p in made(name):
        stated = {(p.things[f.thing], f.attribute): f.value for f in p.facts}
        kinds = p.about.kinds
        for q in p.questions:
            (key,) = {key for key in kinds if q.template in wording.attributes[p.topic, key].questions}
            owners = [thing for thing in p.things if q.template.format(S=thing) == q.text]
            if q.answers:
                assert stated[owners[0], key] in (q.answers[0].text, q.answers[0].text.lower())
                continue
            reasons[q.reason] += 1
            assert not owners or (owners[0], key) not in stated
            assert (not owners) == (q.reason == "stranger")
            # A wrong answer of the right kind stands in the passage.
            assert any(kinds[f.attribute] == kinds[key] for f in p.facts)
    assert reasons.keys() == {"other", "unstated", "stranger"}
    assert min(reasons.values()) >= 0.08 * reasons.total()


@cache
def traces(name: str) -> dict[str, set[str]]:
    """What a part is made of: by the generator's own account, and as it stands in the text."""
    data, passages = part(name), made(name)
    called = [name for topic in read_topics().values() for name in topic.called]
    return {
        "titles": {p.title for p in passages},
        "names": {found for p in passages for found in p.names},
        # Nor where only the first letter differs.
        "forms": {form.lower() for p in passages for form in p.forms},
        "templates": {q.template.lower() for p in passages for q in p.questions},
        "words": {w for kind in NAMES for w in read_wording(name).words[kind]},
        # Invented words: capitalised inside a sentence and no part of what a topic's things are called.
        "invented": {w for text in data.paragraphs for w in re.findall(r"(?<=[a-z] )[A-Z][a-z]+", text)
                     if not any(w in one for one in called)},
        "paragraphs": set(data.paragraphs),
    }  # fmt: skip


@pytest.mark.parametrize(("one", "two"), PAIRS)
def test_parts_share_nothing(one: str, two: str) -> None:
    for trace, found in traces(one).items():
        assert len(found) > 100, trace
        assert not found & traces(two)[trace], trace


# ---- what a system that does not read can score


def mean_f1(data: SpanData, guesses: list[str]) -> float:
    return score(data, {e.id: guess for e, guess in zip(data.examples, guesses, strict=True)})["f1"]


def abstaining(name: str, threshold: float) -> float:
    answers = overlap_answers(part(name))
    return mean_f1(part(name), [text if sure >= threshold else "" for text, sure in answers])


@pytest.mark.parametrize("name", ["dev", "test"])
def test_trivial_baselines_stay_low(name: str) -> None:
    data = part(name)
    assert mean_f1(data, [""] * len(data)) == pytest.approx(40.0)
    cuts = [*np.linspace(0, 1, 41), 2.0]
    tuned = max(cuts, key=lambda cut: abstaining("dev", cut))
    assert abstaining(name, tuned) <= 45.0
    # It does try: without abstention it finds a good part of the answers that exist.
    asked = SpanData(data.paragraphs, [e for e in data.examples if e.answers])
    assert mean_f1(asked, [text for text, _ in overlap_answers(asked)]) >= 30
