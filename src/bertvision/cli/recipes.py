"""`bertvision recipes [NAME]`: list the shipped recipes, or show one to copy."""

from dataclasses import dataclass
from typing import Annotated

import tyro

__all__ = ["ARGS", "RecipesArgs", "main"]


@dataclass(frozen=True)
class RecipesArgs:
    """List the shipped recipes; with a NAME, print that one (redirect it to a file to change it)."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="[NAME]")] = ""
    """Recipe to print."""
    json: bool = False
    """Print the result as JSON."""


ARGS = RecipesArgs


def main(args: RecipesArgs) -> None:
    from bertvision import console
    from bertvision.config import read_yaml, recipe_path, recipes

    if args.name:
        path = recipe_path(args.name)
        if args.json:
            console.emit_json(read_yaml(path))
        else:
            console.emit(path.read_text(encoding="utf-8").rstrip())
        return
    rows = []
    for name, path in recipes().items():
        command, about, *_ = [
            line.removeprefix("# ") for line in path.read_text(encoding="utf-8").splitlines()
        ]
        rows.append({"name": name, "about": about, "command": command})
    if args.json:
        console.emit_json(rows)
    else:
        console.table(
            "", ["recipe", "command", "about"], [[r["name"], r["command"], r["about"]] for r in rows]
        )
