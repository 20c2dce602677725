"""Options of heads: frozen dataclasses whose fields carry the range of their values.

    @dataclass(frozen=True)
    class LadderConfig(HeadConfig):
        size: int = at_least(1, 64)       # 64 by default, never below 1
        dropout: float = rate()           # 0 by default, below 1

Nothing here imports torch.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from bertvision.errors import ConfigError

Unit = Literal["token", "window"]
"""What one row of logits belongs to: a token (answer spans), or a window (labels, scores, distances)."""
Gelu = Literal["tanh", "erf"]

_MOST = 10**6
"""Largest size: more can only be a typing error."""


def at_least(least: float, default: float) -> Any:
    """A number from `least` to a million."""
    return dataclasses.field(default=default, metadata={"least": least})


def rate(default: float = 0.0) -> Any:
    """A part of all numbers that is dropped."""
    return dataclasses.field(default=default, metadata={"rate": True})


@dataclass(frozen=True)
class HeadConfig:
    """Checks the ranges of its fields when it is made."""

    head: ClassVar[str] = ""
    """Name of the head, set when it is registered."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, where = getattr(self, field.name), f"{field.name} of {self.head}"
            least = field.metadata.get("least")
            if least is not None and not value >= least:
                raise ConfigError(f"{where} must be at least {least:g}, not {value}")
            if least is not None and value > _MOST:
                raise ConfigError(f"{where} must be at most {_MOST:,}, not {value}")
            if "rate" in field.metadata and not 0 <= value < 1:
                raise ConfigError(f"{where} must lie between 0 and 1, 1 not included, not {value}")
        self.check()

    def check(self) -> None:
        """Refuse values that do not go together."""


@dataclass(frozen=True)
class NoOptions(HeadConfig):
    pass


@dataclass(frozen=True)
class DownConfig(HeadConfig):
    """Options of heads that reduce states by a `Down`."""

    size: int = at_least(1, 386)
    """a: numbers a state is reduced to."""
    gelu: Gelu = "tanh"
    """tanh approximation as in the papers' TensorFlow code, erf for the exact one."""
    init_std: float = 1e-3
    """Spread of the initial weights of the reduction."""

    def check(self) -> None:
        if not 0 < self.init_std < 1:
            raise ConfigError(f"init_std of {self.head} must lie between 0 and 1, not {self.init_std}")
