"""How the fields of a settings class become flags. Without tyro (the library alone) these marks mean nothing."""

from pathlib import Path
from typing import Annotated, Any

try:
    from tyro import conf
except ImportError:
    conf: Any = None


def arg(**options: Any) -> Any:
    """How the value or the name of a flag is written (tyro.conf.arg)."""
    return conf and conf.arg(**options)


POSITIONAL: Any = conf and conf.Positional
HIDDEN: Any = conf and conf.Suppress
FIXED: Any = conf and conf.Fixed
FLAT = arg(name="")
"""Flags of a nested class without a prefix."""

# A flag that may be left out; tyro would describe its value as {None}|INT.
OptionalInt = Annotated[int | None, arg(metavar="INT")]
OptionalFloat = Annotated[float | None, arg(metavar="FLOAT")]
OptionalText = Annotated[str | None, arg(metavar="STR")]
OptionalPath = Annotated[Path | None, arg(metavar="PATH")]
