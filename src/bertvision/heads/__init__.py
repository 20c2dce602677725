"""Heads: modules that turn the hidden states of all layers into logits.

Nothing is imported before it is used, so that the catalogue can be read without torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertvision.heads.base import Geometry, Head, StateBatch, load_head, register, save_head
    from bertvision.heads.catalogue import head_names
    from bertvision.heads.costs import cost
    from bertvision.heads.spec import parse_head

_MODULES = {
    "base": ("Geometry", "Head", "StateBatch", "load_head", "register", "save_head"),
    "catalogue": ("head_names",),
    "costs": ("cost",),
    "spec": ("parse_head",),
}
__all__ = [
    "Geometry",
    "Head",
    "StateBatch",
    "cost",
    "head_names",
    "load_head",
    "parse_head",
    "register",
    "save_head",
]


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"bertvision.heads.{module}"), name)
    raise AttributeError(f"module 'bertvision.heads' has no attribute {name!r}")
