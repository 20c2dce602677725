"""From words to a verb's dataclass: recipe first, flags over it, mistakes as one sentence.

tyro builds the parser and its help. What it says about a mistake is a box of several lines; here it becomes the
one sentence that every other error of the command line is.
"""

import contextlib
import io
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import tyro

from bertvision.errors import ConfigError

__all__ = ["OptionalFloat", "OptionalInt", "OptionalPath", "OptionalText", "command_line", "parse"]

# A flag that may be left out; tyro's own words for its value would be {None}|INT.
OptionalInt = Annotated[int | None, tyro.conf.arg(metavar="INT")]
OptionalFloat = Annotated[float | None, tyro.conf.arg(metavar="FLOAT")]
OptionalText = Annotated[str | None, tyro.conf.arg(metavar="STR")]
OptionalPath = Annotated[Path | None, tyro.conf.arg(metavar="PATH")]

_LISTS = ("snapshots", "seeds", "layers", "compare", "only")
"""Flags with several values: a comma separates them as well as a space."""


def command_line() -> str:
    """The command as it was typed."""
    return shlex.join(["bertvision", *sys.argv[1:]])


def parse(module: ModuleType, words: list[str], *, prog: str) -> Any:
    """The flags `words` as an instance of the verb's dataclass `module.ARGS`."""
    from bertvision.config import from_mapping, read_yaml, recipe_path

    words = list(words)
    recipe = _take_value(words, "--config")
    if recipe is None and hasattr(module, "default_recipe"):
        recipe = module.default_recipe(words)
    options: dict[str, Any] = {}
    if recipe is not None:
        path = recipe_path(recipe)
        # What a recipe leaves out and nothing else says is asked for as without a recipe.
        options["default"] = from_mapping(
            module.ARGS, read_yaml(path), source=str(path), missing=tyro.MISSING
        )
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            # One flag --json instead of the pair --json/--no-json; True defaults still get their --no- form.
            return tyro.cli(
                module.ARGS,
                args=_split_lists(words),
                prog=prog,
                config=(tyro.conf.FlagCreatePairsOff,),
                **options,
            )
    except SystemExit as stop:
        if stop.code in (None, 0):
            raise
        raise ConfigError(_one_sentence(said.getvalue(), prog=prog)) from None


def _take_value(words: list[str], flag: str) -> str | None:
    """Remove `flag VALUE` or `flag=VALUE` from `words`."""
    for i, word in enumerate(words):
        if word == flag:
            if i + 1 == len(words):
                raise ConfigError(f"{flag} needs a value")
            value = words[i + 1]
            del words[i : i + 2]
            return value
        if word.startswith(flag + "="):
            del words[i]
            return word.partition("=")[2]
    return None


def _split_lists(words: list[str]) -> list[str]:
    """`--snapshots 0.3,1.0` as well as `--snapshots 0.3 1.0`, and `--heads last_state,adapter:size=64,skip`."""
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
        # A comma behind a colon belongs to the head's options; before one it can only stand between heads.
        bare, colon, options = text.partition(":")
        *others, last = bare.split(",")
        return [*(part for part in others if part), last + colon + options]
    return [text]


_WORDS = {"INT": "a whole number", "FLOAT": "a number", "PATH": "a path", "STR": "a text"}


def _one_sentence(said: str, *, prog: str) -> str:
    """What tyro's box says, without the box; a box of another form is told as it is, in one line."""
    said = re.sub(r"\x1b\[[\d;]*m", "", said)  # colours
    # The frame is drawn with lines or, where stdout cannot show them, with spaces and dashes.
    lines = [line[2:].rstrip("│ ") for line in said.splitlines() if line.startswith(("│ ", "  "))]
    rule = next((i for i, line in enumerate(lines) if line and not line.strip("─- ")), len(lines))
    problem = " ".join(line.strip() for line in lines[:rule] if line)
    # Flags are described indented: their names and values by four, what they mean by more.
    described = [line.strip() for line in lines if re.match(r" {4}\S", line) and prog not in line]
    names = list(dict.fromkeys(line.partition(" ")[0] for line in described))
    see = f"`{prog} --help` shows what there is"
    if match := re.match(r"Unrecognized options: (.*?)(,|$)", problem):
        hint = f"did you mean {' or '.join(names)}?" if names else see
        return f"there is no {'flag' if match[1].startswith('-') else 'place for'} {match[1]}: {hint}"
    if problem.startswith("Missing from") and names:
        return f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} missing: {see}"
    if match := re.match(r"Missing value for argument '(\S+)'", problem):
        return f"{match[1]} needs a value: {see}"
    if match := re.match(r"invalid choice (.+) for argument '(\S+)'\. Expected one of \((.*?),?\)", problem):
        return f"{match[2]} cannot be {match[1]}: give one of {match[3].replace(chr(39), '')}"
    if (match := re.match(r"Error parsing (\S+):.*?('[^']*')", problem)) and described:
        kinds = re.findall(r"\b(?:INT|FLOAT|PATH|STR)\b", described[0])
        wanted = f"give {_WORDS[kinds[0]]}" if kinds else see
        return f"{match[1]} cannot be {match[2]}: {wanted}"
    return f"{' '.join(problem.split()) or 'these flags cannot be read'}: {see}"
