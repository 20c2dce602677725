"""Draws names, years and quantities, none twice in one passage."""

import random

from bertvision.data.demo.names import WORDS

__all__ = ["Values"]

_RANGES = {"metres": (60, 940), "days": (20, 480), "years": (11, 290), "minutes": (15, 95)}


class Values:
    """The values of one part. `clear` opens a new passage."""

    def __init__(self, part: str, rng: random.Random) -> None:
        self.words = WORDS[part]
        self.rng = rng
        self.used: set[str] = set()

    def clear(self) -> None:
        self.used.clear()

    def draw(self, kind: str) -> str:
        """A value of this kind that the passage does not hold yet."""
        while True:
            value = self._value(kind)
            # whole values and each capitalised word: two people of one passage share no surname either
            parts = {value, *(w for w in value.split() if w[0].isupper())}
            if not parts & self.used:
                self.used |= parts
                return value

    def _value(self, kind: str) -> str:
        rng, words = self.rng, self.words
        match kind:
            case "person":
                return f"{rng.choice(words.given)} {rng.choice(words.surname)}"
            case "org":
                return f"{rng.choice(words.place)} {rng.choice(words.body)}"
            case "year":
                return str(rng.randrange(1640, 1990))
            case "count":
                return str(rng.randrange(30, 990))
            case "money":
                return f"{rng.randrange(20, 990)} {rng.choice(words.money)}"
            case "metres" | "days" | "years" | "minutes":
                return f"{rng.randrange(*_RANGES[kind])} {kind}"
            case _:
                return rng.choice(getattr(words, kind))
