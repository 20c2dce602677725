"""What a head is, and the registry that finds it by its versioned name.

    @register("mine.v1", MyConfig)
    class Mine(Head):
        def __init__(self, config: MyConfig, geometry: Geometry): ...
        def forward(self, states, mask): ...      # (L, B, T, H), (B, T) -> (B, T, C)

The version is part of the name because it is stored with the weights: a head that changes its structure gets
a new one, and old files keep loading with the old code.
"""

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from torch import Tensor, nn

from bertvision.errors import ConfigError
from bertvision.shapes import Bool, Float

__all__ = ["Geometry", "Head", "glorot_linear", "head_class", "head_names", "nearest", "register"]


@dataclass(frozen=True)
class Geometry:
    """The shape of what a head reads and writes."""

    states: int
    """L: embedding output and every layer."""
    hidden: int
    """H."""
    outputs: int = 2
    """C: numbers a token gets; 2 for a span's start and end."""


class Head(nn.Module, ABC):
    """Turns states into logits. Subclasses are registered with a frozen config dataclass."""

    name: ClassVar[str]
    config_class: ClassVar[type]

    def __init__(self, config: Any, geometry: Geometry) -> None:
        super().__init__()
        self.config = config
        self.geometry = geometry

    @abstractmethod
    def forward(self, states: Float[Tensor, "L B T H"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T C"]:
        """Logits of every token; those of pads mean nothing and are masked by the task."""

    @property
    def num_parameters(self) -> int:
        return sum(p.numel() for p in self.parameters() if p.requires_grad)

    def layer_weights(self) -> list[float] | None:
        """How much each hidden state counts, where the head has such weights."""
        return None


_REGISTRY: dict[str, type[Head]] = {}
_H = TypeVar("_H", bound=type[Head])


def register(name: str, config_class: type) -> Callable[[_H], _H]:
    """Make a head known under a versioned name such as `adapter.v1`."""

    def wrap(cls: _H) -> _H:
        if name in _REGISTRY:
            raise ValueError(f"a head named {name} is registered already")
        cls.name, cls.config_class = name, config_class
        _REGISTRY[name] = cls
        return cls

    return wrap


def head_names() -> list[str]:
    return sorted(_REGISTRY)


def nearest(word: str, known: list[str]) -> str:
    """A phrase that helps after a mistyped word: the nearest ones, or all when there are few."""
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(close) + "?"
    return "known: " + ", ".join(known)


def head_class(name: str) -> type[Head]:
    """The class behind `adapter.v1`, or behind `adapter` when there is one newest version."""
    if name in _REGISTRY:
        return _REGISTRY[name]
    versions = [known for known in _REGISTRY if known.rsplit(".v", 1)[0] == name]
    if versions:
        return _REGISTRY[max(versions, key=lambda known: int(known.rsplit(".v", 1)[1]))]
    raise ConfigError(f"there is no head {name!r}: {nearest(name, head_names())}")


def glorot_linear(inputs: int, outputs: int) -> nn.Linear:
    """The papers' output layer: Glorot-uniform weights, zero bias."""
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
