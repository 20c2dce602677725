"""`bertvision recipes [NAME]`: list the shipped recipes, or show one to copy."""

from dataclasses import dataclass
from typing import Annotated

from bertvision.cli.flags import JsonFlag
from bertvision.options import POSITIONAL, arg


@dataclass(frozen=True, kw_only=True)
class Recipes(JsonFlag):
    """List the shipped recipes; with a NAME, print that one (redirect it to a file to change it)."""

    name: Annotated[str, POSITIONAL, arg(metavar="[NAME]")] = ""
    """Recipe to print."""


ARGS = Recipes


def main(args: Recipes) -> None:
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
        command, about, *_ = path.read_text(encoding="utf-8").replace("# ", "").splitlines()
        rows.append({"name": name, "command": command, "about": about})
    if args.json:
        console.emit_json(rows)
    else:
        console.table(rows)
