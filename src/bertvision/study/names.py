"""What the systems of a recipe are called: two parts must not make the same one, nor two that share a folder."""

import re
from collections.abc import Iterable

from bertvision.errors import ConfigError

__all__ = ["check_apart", "folder_name"]


def folder_name(key: str, seed: int) -> str:
    """Of a system: its key in letters that every file system takes."""
    plain = key.replace("/", "--").replace("<", "-from-").replace("#", "..").replace(":", "-")
    return f"{re.sub(r'[^-A-Za-z0-9._@+=~]', '_', plain)}.seed{seed}"


def check_apart(systems: Iterable[tuple[str, str, int]]) -> None:
    """Refuse (part, key, seed) that lie in one folder and are of different parts: each would replace the other."""
    found: dict[str, tuple[str, str]] = {}
    for part, key, seed in systems:
        first, theirs = found.setdefault(folder_name(key, seed), (part, key))
        if first == part:
            continue
        if theirs == key:
            raise ConfigError(
                f"parts {first} and {part} of the recipe both make {key} of seed {seed}: take it out of one of them"
            )
        raise ConfigError(
            f"{theirs} of part {first} and {key} of part {part} would lie in one folder, "
            f"{folder_name(key, seed)}: rename one"
        )
