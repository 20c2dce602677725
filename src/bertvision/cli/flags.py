"""Parse a verb's words into its dataclass: the recipe first, flags over it. tyro builds the parser and its help."""

import os
import shlex
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import tyro

from bertvision.errors import ConfigError

_LISTS = ("snapshots", "seeds", "layers", "compare", "only")
"""Flags with several values: a comma separates them as well as a space."""


@dataclass(frozen=True, kw_only=True)
class JsonFlag:
    """The flag of every verb that has a result."""

    json: bool = False
    """Print the result as JSON."""


def command_line() -> str:
    """The command as it was typed."""
    return shlex.join(["bertvision", *sys.argv[1:]])


def parse(module: ModuleType, words: list[str], *, prog: str) -> Any:
    """Parse `words` into the verb's dataclass `module.ARGS`; a mistake ends the process with tyro's text and code 2."""
    from bertvision.config import from_mapping, read_yaml, recipe_path

    words = list(words)
    recipe = _take_value(words, "--config")
    if recipe is None and hasattr(module, "default_recipe"):
        recipe = module.default_recipe(words)
    options: dict[str, Any] = {}
    if recipe is not None:
        path = recipe_path(recipe)
        # A required flag that the recipe leaves out stays required.
        options["default"] = from_mapping(
            module.ARGS, read_yaml(path), source=str(path), missing=tyro.MISSING
        )
    return tyro.cli(
        module.ARGS,
        args=_split_lists(words),
        prog=prog,
        # One flag --json instead of the pair --json/--no-json; flags that are on by default keep their --no- form.
        config=(tyro.conf.FlagCreatePairsOff,),
        console_outputs=os.environ.get("RANK", "0") == "0",  # several processes make the same mistake
        **options,
    )


def _take_value(words: list[str], flag: str) -> str | None:
    """Remove `flag VALUE` or `flag=VALUE` from `words`."""
    for i, word in enumerate(words):
        if word == flag:
            if i + 1 == len(words):
                raise ConfigError(f"{flag} needs a value")
            words.pop(i)
            return words.pop(i)
        if word.startswith(flag + "="):
            return words.pop(i).partition("=")[2]
    return None


def _split_lists(words: list[str]) -> list[str]:
    """Accept `--snapshots 0.3,1.0` for `--snapshots 0.3 1.0`, and `--heads last_state,adapter:size=64,skip`."""
    split: list[str] = []
    flag = ""
    for word in words:
        name, equals, value = word.partition("=")
        if not name.startswith("--"):
            split += _split(word, flag)
            continue
        flag = name.rpartition(".")[2].lstrip("-")
        parts = _split(value, flag) if equals else []
        split += [name, *parts] if len(parts) > 1 else [word]
    return split


def _split(text: str, flag: str) -> list[str]:
    if flag in _LISTS:
        return [part for part in text.split(",") if part] or [text]
    if flag == "heads":
        # A comma after a colon belongs to the head's options; one before it can only stand between heads.
        bare, colon, options = text.partition(":")
        *others, last = bare.split(",")
        return [*(part for part in others if part), last + colon + options]
    return [text]
