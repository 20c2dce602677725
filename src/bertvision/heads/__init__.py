"""Heads: modules that turn the hidden states of all layers into logits.

Nothing is imported before it is used, so that the catalogue can be read without torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertvision.heads.base import Geometry, Head, StateBatch, cost, load_head, register, save_head
    from bertvision.heads.spec import head_names, parse_head

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
    if name not in __all__:
        raise AttributeError(f"module 'bertvision.heads' has no attribute {name!r}")
    module = "spec" if name in ("head_names", "parse_head") else "base"
    return getattr(importlib.import_module(f"bertvision.heads.{module}"), name)
