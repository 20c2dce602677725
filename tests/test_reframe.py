"""Texts asked about: what stands where, and that the answer can stand nowhere."""

from dataclasses import replace

import pytest

from bertvision.data.examples import Example, SpanData
from bertvision.data.reframe import PROMPTS, Reframe, reframe
from bertvision.data.texts import TextData, TextExample, answerable
from bertvision.errors import ConfigError

SINGLE = TextData(
    [TextExample("a", "Fine.", None, 1), TextExample("b", "Bad {second}.", None, 0)], "label", ("n", "p")
)
PAIR = TextData([TextExample("a", "One {label}", "Two {first}", 4.5)], "score", metric="pearson")


def texts(data: TextData) -> list[tuple[str, str | None]]:
    return [(e.first, e.second) for e in data.examples]


def test_the_paper_s_examples() -> None:
    prompt = "Is this review positive or negative?"
    assert texts(reframe(SINGLE, Reframe(PROMPTS["sst"]))) == [(prompt, "Fine."), (prompt, "Bad {second}.")]
    prompt = "Is the first sentence semantically equivalent to the second sentence?"
    assert texts(reframe(PAIR, Reframe(PROMPTS["sts"]))) == [
        (prompt, "First sentence: One {label} Second sentence: Two {first}")
    ]
    assert PROMPTS["quora"] == "Does the first question paraphrase the second question?"


def test_templates() -> None:
    assert texts(reframe(PAIR, Reframe(context="{second} / {first} {{}}"))) == [
        ("Two {first} / One {label} {}", None)
    ]
    assert texts(reframe(PAIR, Reframe("Same?", "{second}"))) == [("Same?", "Two {first}")]
    assert texts(reframe(SINGLE.take([0]), Reframe(context="It was said: {first}"))) == [
        ("It was said: Fine.", None)
    ]
    assert reframe(PAIR, Reframe()) is PAIR


def test_all_but_the_texts_stays_and_the_fingerprint_follows_the_texts() -> None:
    before = PAIR.fingerprint
    data = reframe(PAIR, Reframe("Same?"))
    assert data.fingerprint != before
    assert replace(data, examples=PAIR.examples) == PAIR
    assert [(e.id, e.label) for e in data.examples] == [("a", 4.5)]
    assert reframe(PAIR, Reframe("Alike?")).fingerprint != data.fingerprint


@pytest.mark.parametrize(
    "field", ["label", "answer", "id", "", "0", "first.label", "first!r", "first:>9", "first[0]"]
)
def test_a_template_knows_the_texts_alone(field: str) -> None:
    with pytest.raises(
        ConfigError, match=r"--text\.context may not hold \{.*\}: .*the label is what is to be told"
    ) as told:
        Reframe(context=f"{{first}} {{{field}}}")
    assert "{" + field + "}" in str(told.value)


def test_templates_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="has a stray brace"):
        Reframe(context="{first")
    with pytest.raises(ConfigError, match="holds none of the texts"):
        Reframe(context="nothing")
    with pytest.raises(ConfigError, match=r"--text\.prompt is the same for every example"):
        Reframe("Is {first} fine?")
    with pytest.raises(ConfigError, match=r"has one text an example: leave \{second\} out"):
        reframe(SINGLE, Reframe(context="{first} {second}"))
    spans = SpanData(["It burned."], [Example("a", "Who?", 0)])
    with pytest.raises(ConfigError, match="is made of questions already"):
        reframe(answerable(spans), Reframe("Is there an answer?"))
