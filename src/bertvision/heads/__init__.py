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

_MODULES = {
    "HeadCost": "costs", "cost": "costs", "HeadSpec": "spec", "parse_head": "spec", "load_head": "files",
    "save_head": "files", "head_names": "catalogue",
}  # fmt: skip
"""Where each name is defined, if not in base.py."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'bertvision.heads' has no attribute {name!r}")
    return getattr(importlib.import_module(f"bertvision.heads.{_MODULES.get(name, 'base')}"), name)
