"""What a store holds, and the key that says so.

The key hashes everything that decides the numbers: the encoder's weights, tokenizer and configuration, the windows
and their settings, layers, positions, dtype and the version of the layout. Names never count.
"""

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from typing import Any, Literal

from bertvision.data.kept import Positions

__all__ = ["BYTES", "SCHEMA", "Identity", "Origin", "StateType", "is_key"]

SCHEMA = 1
"""Version of the layout; raise it whenever a file of a store would be read otherwise."""

StateType = Literal["fp32", "bf16", "fp16", "int8"]
BYTES: dict[str, int] = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1}
"""Bytes of one number."""


@dataclass(frozen=True)
class Origin:
    """Where windows come from."""

    fingerprint: str
    """Of data, tokenizer and window settings."""
    preprocessing: dict[str, Any]
    """The window settings."""
    name: str
    """What the user calls the data."""


@dataclass(frozen=True)
class Identity:
    """Everything that decides the numbers in a store."""

    encoder: str
    """Fingerprint of weights and tokenizer."""
    configuration: str
    """Hash of the model's settings: equal weights compute other states with another norm or activation."""
    precision: str
    """Arithmetic of the encoder: fp32 or bf16."""
    windows: str
    """Fingerprint of data, tokenizer and window settings."""
    preprocessing: dict[str, Any]
    """The window settings themselves."""
    layers: tuple[int, ...]
    """Hidden states that are stored; 0 is the embedding output."""
    hidden: int
    positions: Positions
    dtype: StateType
    schema: int = SCHEMA

    @property
    def key(self) -> str:
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def is_key(name: str) -> bool:
    """Whether a name looks like a key."""
    return re.fullmatch(r"[0-9a-f]{32}", name) is not None
