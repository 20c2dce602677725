"""What a store holds, and the key that names it.

The key hashes everything that decides the numbers: the encoder's weights, tokenizer and configuration, the windows
and their settings, layers, positions, dtype and the version of the layout. Names never count.
"""

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from bertvision.data.windows import Positions
from bertvision.states.config import Selection

if TYPE_CHECKING:
    from bertvision.encoder.encoder import Encoder


SCHEMA = 2
"""Version of the layout; raise it whenever a file of a store would be read differently."""

StateType = Literal["fp32", "bf16", "fp16", "int8"]


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

    @classmethod
    def of(cls, encoder: "Encoder", origin: Origin, selection: Selection, dtype: StateType) -> "Identity":
        """The identity of these states."""
        return cls(
            encoder=encoder.fingerprint,
            configuration=encoder.configuration,
            precision=encoder.precision,
            windows=origin.fingerprint,
            preprocessing=origin.preprocessing,
            layers=selection.numbers(encoder.num_states),
            hidden=encoder.hidden,
            positions=selection.positions,
            dtype=dtype,
        )

    @property
    def key(self) -> str:
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def is_key(name: str) -> bool:
    """Whether a name looks like a key."""
    return re.fullmatch(r"[0-9a-f]{32}", name) is not None
