"""Every shipped recipe loads, and the command in its first line is a command."""

import shlex
from importlib import import_module
from pathlib import Path

import pytest

from bertvision.cli.flags import parse
from bertvision.config import from_mapping, read_yaml, recipe_path, recipes
from bertvision.errors import ConfigError
from bertvision.pipeline import RunConfig
from bertvision.train.zoo import zoo_members


def test_there_are_recipes() -> None:
    assert {"demo", "squad", "bertvision"} <= recipes().keys()


@pytest.mark.parametrize("name", recipes())
def test_recipe_loads_and_its_command_parses(name: str) -> None:
    path = recipe_path(name)
    first, second, *_ = path.read_text(encoding="utf-8").splitlines()
    assert first.startswith("# bertvision ")
    assert second.startswith("# "), "the second line says what it is for"
    config = from_mapping(RunConfig, read_yaml(path), source=str(path))
    assert config.train
    assert config.dev
    assert zoo_members(config.fit)
    program, verb, *flags = shlex.split(first.removeprefix("# "))
    assert program == "bertvision"
    args = parse(import_module(f"bertvision.cli.{verb}"), flags, prog=f"bertvision {verb}")
    # The command starts from this very recipe; it may name only the encoder and the data anew.
    assert isinstance(args, RunConfig)
    for part in ("out", "windows", "decode", "finetune", "fit", "feed"):
        assert getattr(args, part) == getattr(config, part), part


def test_a_file_stands_before_a_shipped_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").write_text("encoder: mine\n", encoding="utf-8")
    assert read_yaml(recipe_path("demo")) == {"encoder": "mine"}


def test_a_mistyped_recipe_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"did you mean squad\?"):
        recipe_path("squat")
