"""Heads: modules that turn the hidden states of all layers into logits.

Nothing is imported before it is used, so that the catalogue can be read without torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertvision.heads.base import Geometry, Head, StateBatch, register
    from bertvision.heads.catalogue import head_names
    from bertvision.heads.costs import HeadCost, cost
    from bertvision.heads.files import load_head, save_head
    from bertvision.heads.spec import HeadSpec, parse_head

__all__ = [
    "Geometry",
    "Head",
    "HeadCost",
    "HeadSpec",
    "StateBatch",
    "cost",
    "head_names",
    "load_head",
    "parse_head",
    "register",
    "save_head",
]

_WHERE = {
    "base": ("Geometry", "Head", "StateBatch", "register"),
    "catalogue": ("head_names",),
    "costs": ("HeadCost", "cost"),
    "files": ("load_head", "save_head"),
    "spec": ("HeadSpec", "parse_head"),
}


def __getattr__(name: str) -> Any:
    for module, names in _WHERE.items():
        if name in names:
            found = getattr(importlib.import_module(f"bertvision.heads.{module}"), name)
            globals()[name] = (
                found  # `cost` is a module's name, too: later imports must not change the answer
            )
            return found
    raise AttributeError(f"module 'bertvision.heads' has no attribute {name!r}")
