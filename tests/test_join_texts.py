"""Several sets of texts as one: what is kept, and what cannot be joined."""

from pathlib import Path

import pytest

from bertvision.data.load import load_data
from bertvision.data.texts import TextData, TextExample, join_texts
from bertvision.errors import ConfigError


def texts(name: str, *ids: str, second: str | None = None, classes: tuple[str, ...] = ("x", "y")) -> TextData:
    return TextData([TextExample(id, f"{name} {id}", second, 0) for id in ids], "label", classes, name)


def answerable(source: Path) -> TextData:
    data = load_data(f"answerable:{source}")
    assert isinstance(data, TextData)
    return data


def test_ids_used_before_get_the_number_of_their_part() -> None:
    joined = join_texts([texts("a", "0", "1"), texts("b", "1", "2")])
    assert [(e.id, e.first) for e in joined.examples] == [
        ("0", "a 0"),
        ("1", "a 1"),
        ("1-1", "b 1"),
        ("2", "b 2"),
    ]
    assert joined.name == "a + b"


@pytest.mark.parametrize("other", [texts("b", "0", second="two"), texts("b", "0", classes=("x", "z"))])
def test_different_tasks_are_not_joined(other: TextData) -> None:
    with pytest.raises(ConfigError, match="a and b cannot be joined: they are of different tasks"):
        join_texts([texts("a", "0"), other])


def test_questions_are_not_joined(toy_squad: Path) -> None:
    """Answer / no answer keeps the questions beside the texts, in the order of one set."""
    data = answerable(toy_squad)
    assert join_texts([data]) is data
    for parts in ([data, data], [data, texts("a", "0")], [texts("a", "0"), data]):
        with pytest.raises(
            ConfigError, match=r"cannot be joined with other data: questions .* one file"
        ) as told:
            join_texts(parts)
        assert data.name in str(told.value)
        assert "different tasks" not in str(told.value)
