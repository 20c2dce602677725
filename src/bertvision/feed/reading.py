"""Which hidden states heads read: all of them, or some layers at some positions.

    Reading(layers=(0, 6, -1), positions="context").numbers(13)      # (0, 6, 12)

States are counted as the encoder gives them: 0 is the embedding output, the last is that of the last layer. A
head's folder keeps the numbers under "states" where something is left out, so that it always reads what it was
fitted on.
"""

import dataclasses
from dataclasses import dataclass
from typing import get_args

from bertvision.data.kept import Positions
from bertvision.errors import ConfigError

__all__ = ["EVERYTHING", "Reading"]


@dataclass(frozen=True)
class Reading:
    """The part of the hidden states that a feed hands out."""

    layers: tuple[int, ...] = ()
    """Hidden states in the order heads get them, -1 = last; none = all."""
    positions: Positions = "all"
    """Tokens whose states are read."""

    def __post_init__(self) -> None:
        if self.positions not in get_args(Positions):
            known = ", ".join(get_args(Positions))
            raise ConfigError(f"--feed.positions {self.positions} is unknown: choose one of {known}")

    def numbers(self, num_states: int) -> tuple[int, ...]:
        """The layers counted from 0, of an encoder with so many states."""
        numbers = tuple(layer + num_states if layer < 0 else layer for layer in self.layers)
        for given, number in zip(self.layers, numbers, strict=True):
            if not 0 <= number < num_states:
                raise ConfigError(
                    f"--feed.layers names {given}, but this encoder has the states 0 to {num_states - 1} "
                    f"(or -{num_states} to -1)"
                )
            if numbers.count(number) > 1:
                raise ConfigError(
                    f"--feed.layers names state {number} twice: name each once, 0 to {num_states - 1}"
                )
        return numbers or tuple(range(num_states))

    def whole(self, num_states: int) -> bool:
        """Whether heads get every state of every token, in order."""
        return self.positions == "all" and self.numbers(num_states) == tuple(range(num_states))

    def resolved(self, num_states: int) -> "Reading":
        """The one form of all readings that mean the same: numbers from 0, and none where nothing is left out."""
        if self.whole(num_states):
            return Reading()
        return dataclasses.replace(self, layers=self.numbers(num_states))

    def check_spans(self) -> None:
        """Refuse positions that no answer can be found at."""
        if self.positions == "cls":
            raise ConfigError(
                "--feed.positions cls keeps no token an answer could have: use context or all to fit spans"
            )


EVERYTHING = Reading()
