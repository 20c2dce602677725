"""Texts as data: prompts and templates, sets that are joined."""

from dataclasses import replace

import pytest

from bertvision.data.examples import Example, SpanData, TextData, TextExample, answerable, join_texts
from bertvision.data.reframe import Reframe, reframe
from bertvision.errors import ConfigError

SINGLE = TextData(
    [TextExample("a", "Fine.", None, 1), TextExample("b", "Bad {second}.", None, 0)],
    "label",
    ("n", "p"),
    "single",
)
PAIR = TextData([TextExample("a", "One {label}", "Two {first}", 4.5)], "score", metric="pearson")
QUESTIONS = answerable(SpanData(["It burned."], [Example("a", "Who?", 0)], "questions"))


@pytest.mark.parametrize(
    ("data", "how", "texts"),
    [
        (SINGLE, Reframe("Good or bad?"), [("Good or bad?", "Fine."), ("Good or bad?", "Bad {second}.")]),
        (PAIR, Reframe("Do they say the same?"),
         [("Do they say the same?", "First sentence: One {label} Second sentence: Two {first}")]),
        (PAIR, Reframe(context="{second} / {first} {{}}"), [("Two {first} / One {label} {}", None)]),
        (PAIR, Reframe("Same?", "{second}"), [("Same?", "Two {first}")]),
        (SINGLE.take([0]), Reframe(context="It was said: {first}"), [("It was said: Fine.", None)]),
    ],
)  # fmt: skip
def test_prompts_and_templates(data: TextData, how: Reframe, texts: list[tuple[str, str | None]]) -> None:
    found = reframe(data, how)
    assert [(e.first, e.second) for e in found.examples] == texts
    assert [(e.id, e.label) for e in found.examples] == [(e.id, e.label) for e in data.examples]
    assert replace(found, examples=data.examples) == data
    assert len({found.fingerprint, data.fingerprint, reframe(data, Reframe("Alike?")).fingerprint}) == 3
    assert reframe(data, Reframe()) is data


@pytest.mark.parametrize(
    "field", ["label", "answer", "id", "", "0", "first.label", "first!r", "first:>9", "first[0]"]
)
def test_a_template_knows_the_texts_alone(field: str) -> None:
    with pytest.raises(ConfigError, match=r"--text\.context may not hold \{.*\}") as error:
        Reframe(context=f"{{first}} {{{field}}}")
    assert "{" + field + "}" in str(error.value)


@pytest.mark.parametrize(
    ("data", "how", "message"),
    [(SINGLE, {"context": "{first"}, "has a stray brace"),
     (SINGLE, {"context": "nothing"}, "holds none of the texts"),
     (SINGLE, {"prompt": "Is {first} fine?"}, r"--text\.prompt is the same for every example"),
     (SINGLE, {"context": "{first} {second}"}, r"has one text an example: leave \{second\} out"),
     (QUESTIONS, {"prompt": "Is there an answer?"}, "is made of questions already")],
)  # fmt: skip
def test_templates_that_cannot_be(data: TextData, how: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        reframe(data, Reframe(**how))


# ---- several sets as one


def named(name: str, *ids: str, second: str | None = None, classes: tuple[str, ...] = ("x", "y")) -> TextData:
    return TextData([TextExample(id, f"{name} {id}", second, 0) for id in ids], "label", classes, name)


def test_ids_used_before_get_the_number_of_their_part() -> None:
    joined = join_texts([named("a", "0", "1"), named("b", "1", "2")])
    found = [(e.id, e.first) for e in joined.examples]
    assert found == [("0", "a 0"), ("1", "a 1"), ("1-1", "b 1"), ("2", "b 2")]
    assert joined.name == "a + b"
    assert join_texts([QUESTIONS]) is QUESTIONS
    rare_y, rare_x = (replace(named("a", "0", "1", "2"), positive=one) for one in (1, 0))
    assert join_texts([rare_y, rare_x]).positive == 1, "all six are x, so y is the rarer one"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            [named("a", "0"), named("b", "0", second="two")],
            "a and b cannot be joined: they are of different tasks",
        ),
        ([named("a", "0"), named("b", "0", classes=("x", "z"))], "they are of different tasks"),
        ([QUESTIONS, QUESTIONS], r"questions cannot be joined with other data: questions .* one file"),
        ([named("a", "0"), QUESTIONS], r"answerable:questions cannot be joined with other data"),
    ],
)
def test_what_cannot_be_joined(parts: list[TextData], message: str) -> None:
    """Answer / no answer keeps the questions beside the texts, in the order of one set."""
    with pytest.raises(ConfigError, match=message):
        join_texts(parts)
