"""Parse a verb's words into the class of its flags: the recipe first, flags over it. tyro builds the parser and its
help."""

import dataclasses
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

import tyro

from bertvision.config import from_mapping, part_of, read_yaml, recipe_path
from bertvision.errors import ConfigError

_LISTS = ("snapshots", "seeds", "layers", "compare", "only", "heads")
"""Flags with several values: a comma separates them as well as a space."""

Result = tuple[Any, Callable[[], None]]
"""What a verb returns: its value for --json, and what prints it for people."""


@dataclass(frozen=True, kw_only=True)
class JsonFlag:
    """For a verb that prints while it works, and returns nothing."""

    json: bool = False
    """Print the result as JSON."""


def command_line() -> str:
    """The command as it was typed."""
    return shlex.join(["bertvision", *sys.argv[1:]])


def refuse(*cases: tuple[Any, str]) -> None:
    """Raise the sentence of the first case that is true."""
    for wrong, sentence in cases:
        if wrong:
            raise ConfigError(sentence)


def parse(command: Any, words: list[str], prog: str) -> tuple[Any, bool]:
    """The flags of a verb's function, and whether it should print JSON.

    A mistake ends the process with tyro's text and code 2.
    """
    own = get_type_hints(command)["args"]
    flags, words = (own if issubclass(own, JsonFlag) else _with_json(own)), list(words)
    options: dict[str, Any] = {}
    if recipe := _take_value(words, "--config"):
        path = recipe_path(recipe)
        # A required flag that the recipe leaves out stays required.
        options["default"] = from_mapping(flags, read_yaml(path), source=str(path), missing=tyro.MISSING)
    found: Any = tyro.cli(
        flags,
        args=_split_lists(words),
        prog=prog,
        # One flag --json instead of the pair --json/--no-json; flags that are on by default keep their --no- form.
        config=(tyro.conf.FlagCreatePairsOff,),
        console_outputs=os.environ.get("RANK", "0") == "0",  # several processes make the same mistake
        **options,
    )
    return part_of(own, found), flags is not own and found.json


def _with_json(flags: type) -> type:
    """The flags and --json, which is no setting of what the verb calls."""
    field = Annotated[bool, tyro.conf.arg(help="Print the result as JSON.")]
    made = dataclasses.make_dataclass(
        flags.__name__, [("json", field, False)], bases=(flags,), frozen=True, kw_only=True
    )
    made.__doc__ = flags.__doc__
    return made


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
    """Accept `--snapshots 0.3,1.0` for `--snapshots 0.3 1.0`, and `--heads last_state,adapter:size=64,skip`.

    A comma after a colon belongs to a head's options.
    """
    split: list[str] = []
    flag = ""
    for word in words:
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            flag = name.rpartition(".")[2].lstrip("-")
            if flag not in _LISTS or not equals:
                split.append(word)
                continue
            split.append(name)
            word = value
        bare, colon, options = word.partition(":")
        *others, last = bare.split(",") if flag in _LISTS else [bare]
        split += [part for part in (*others, last + colon + options) if part] or [word]
    return split
