"""Flags: where hidden states come from, and which of them heads read. Needs no torch.

    Selection(layers=(0, 6, -1), positions="cls").numbers(13)      # (0, 6, 12)

States are numbered as the encoder returns them: 0 is the embedding output, the last is that of the last layer. A head's
folder keeps the numbers under "states" where something is left out, so that it always reads what it was fitted on.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from bertvision.data.windows import Windows
from bertvision.errors import ConfigError

Source = Literal["live", "memory", "stored"]
Positions = Literal["all", "cls"]
StateType = Literal["fp32", "bf16", "fp16", "int8"]


@dataclass(frozen=True)
class Selection:
    """The part of the hidden states that heads read."""

    layers: tuple[int, ...] = ()
    """Hidden states heads read, in this order; 0 = embedding output, -1 = last layer; none = all."""
    positions: Positions = "all"
    """Tokens whose states heads read: all, or the classification token alone (cls)."""

    def __post_init__(self) -> None:
        if self.positions not in get_args(Positions):
            known = ", ".join(get_args(Positions))
            raise ConfigError(f"--states.positions {self.positions} is unknown: choose one of {known}")

    def numbers(self, num_states: int) -> tuple[int, ...]:
        last = num_states - 1
        numbers = tuple(layer + num_states if layer < 0 else layer for layer in self.layers)
        for given, number in zip(self.layers, numbers, strict=True):
            if not 0 <= number <= last:
                raise ConfigError(
                    f"--states.layers names {given}, but this encoder has the states 0 to {last} "
                    f"(or -{num_states} to -1)"
                )
            if numbers.count(number) > 1:
                raise ConfigError(f"--states.layers names state {number} twice: name each once, 0 to {last}")
        return numbers or tuple(range(num_states))

    def lengths(self, windows: Windows) -> NDArray[np.int64]:
        """(W,) how many tokens of each window are read."""
        return windows.lengths if self.positions == "all" else np.ones(len(windows), np.int64)

    def whole(self, num_states: int) -> bool:
        """Whether heads get every state of every token, in order."""
        return self.positions == "all" and self.numbers(num_states) == tuple(range(num_states))

    def resolved(self, num_states: int) -> "Selection":
        """The same selection with layers counted from 0, or `EVERYTHING` where nothing is left out."""
        return EVERYTHING if self.whole(num_states) else Selection(self.numbers(num_states), self.positions)


EVERYTHING = Selection()


@dataclass(frozen=True)
class StoreConfig:
    """Where and how hidden states are stored."""

    store: str = ""
    """Folder of stored states; by default ~/.cache/bertvision/states."""
    cache_gb: float = 100.0
    """GB of stored states to keep. A new store that would exceed it first deletes the least recently used ones; auto
    begins no larger store."""
    dtype: Literal["auto", "fp32", "bf16", "fp16", "int8"] = "auto"
    """How states are stored; auto: half precision. int8 has a scale for each token and layer."""
    tokens_per_call: int = 0
    """Tokens the encoder reads in one call, pads included; 0 = 4,096 on a CPU, and on a GPU as many as give it
    enough to do."""


@dataclass(frozen=True)
class SourceConfig(StoreConfig):
    """Where hidden states come from."""

    source: Literal["auto", "live", "memory", "stored"] = "auto"
    """live: encode in every pass; memory: encode once and keep them; stored: keep them on disk for this run and the
    next; auto: measure, then choose."""
    memory_gb: float = 6.0
    """Most GB of states (in half precision) that auto keeps in memory."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, int | float) and not value >= 0:
                raise ConfigError(f"--states.{name.replace('_', '-')} must not be negative, not {value}")


@dataclass(frozen=True)
class StatesConfig(Selection, SourceConfig):
    """Where hidden states come from, and which of them heads read."""

    def __post_init__(self) -> None:
        SourceConfig.__post_init__(self)
        Selection.__post_init__(self)

    @classmethod
    def of(cls, source: SourceConfig, selection: Selection) -> "StatesConfig":
        return cls(**vars(source) | vars(selection))

    @property
    def selection(self) -> Selection:
        return Selection(self.layers, self.positions)
