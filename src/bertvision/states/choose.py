"""`auto`: from measured rates to a choice, and the reasons for it.

Heads cost the same wherever their states come from, so only the states are counted. With E seconds to encode all of
them once, W to write them, M to read them from memory, R from a store, and p passes:

    live      p E             nothing is kept
    memory    E + (p - 1) M   they fit --states.memory-gb and the memory that is free
    stored    E + W + p R     the disk has room for them; p R where they are there already

R is what a disk gives where the store is larger than the memory that is free, else what the system's own cache gives.
"""

import logging
from dataclasses import dataclass
from typing import Literal

from bertvision.console import size_text
from bertvision.states.identity import BYTES, StateType

__all__ = ["Case", "Measured", "Source", "choose", "stored_bytes"]

logger = logging.getLogger(__name__)

Source = Literal["live", "memory", "stored"]

_ROOM = 0.9
"""Share of the free disk a store may take."""
_MEMORY = 0.8
"""Share of the free memory that states may take."""


@dataclass(frozen=True)
class Measured:
    """Whole tokens a second, on this machine and this disk; 0 where something cannot be done."""

    tokens: int
    """Tokens of the sample."""
    encode: float
    memory: float = 0.0
    read_warm: float = 0.0
    """From a store whose files the system has in memory."""
    read_cold: float = 0.0
    """From a store that only the disk has."""
    write: float = 0.0


@dataclass(frozen=True)
class Case:
    """What there is to decide about."""

    label: str
    tokens: int
    stored_bytes: int
    memory_bytes: int
    memory_limit: float
    """What the user allows."""
    memory_free: int | None
    """Where states would be kept: on the device."""
    disk_free: int | None
    cache_free: int | None
    """Memory of the machine, which keeps the files of a store."""
    passes: int
    finished: bool = False
    """Whether a store has them already."""

    def seconds(self, measured: Measured) -> dict[Source, float]:
        """Expected cost of the states from each source that is possible."""
        encode = self.tokens / measured.encode
        costs: dict[Source, float] = {"live": self.passes * encode}
        fits = self.memory_free is None or self.memory_bytes < _MEMORY * self.memory_free
        if measured.memory and fits and self.memory_bytes <= self.memory_limit:
            costs["memory"] = encode + (self.passes - 1) * self.tokens / measured.memory
        cached = self.cache_free is None or self.stored_bytes < self.cache_free
        if rate := measured.read_warm if cached else measured.read_cold:
            selection = self.passes * self.tokens / rate
            if self.finished:
                costs["stored"] = selection
            elif measured.write and (self.disk_free is None or self.stored_bytes <= _ROOM * self.disk_free):
                costs["stored"] = encode + self.tokens / measured.write + selection
        return costs


def choose(case: Case, measured: Measured) -> Source:
    """The source that is expected to take least time; says why."""
    costs = case.seconds(measured)
    best = min(costs, key=lambda source: costs[source])
    free = "an unknown amount" if case.disk_free is None else size_text(case.disk_free)
    logger.info(
        "%s: %s tokens, %s to store%s and %s in memory; the disk has %s free, --states.memory-gb allows %s",
        case.label, f"{case.tokens:,}", size_text(case.stored_bytes), " (and stored)" if case.finished else "",
        size_text(case.memory_bytes), free, size_text(case.memory_limit),
    )  # fmt: skip
    rates = {
        "encoding": measured.encode,
        "reading from memory": measured.memory,
        "from a store": measured.read_warm,
        "from the disk": measured.read_cold,
        "writing": measured.write,
    }
    told = ", ".join(f"{name} {rate:,.0f}" for name, rate in rates.items() if rate)
    logger.info("%s: tokens a second, measured on %s: %s", case.label, f"{measured.tokens:,}", told)
    expected = ", ".join(f"{source} {_seconds(cost)}" for source, cost in costs.items())
    passes = f"{case.passes} epoch{'s' if case.passes > 1 else ''}"
    logger.info("%s: expected for the states of %s: %s; chosen: %s", case.label, passes, expected, best)
    return best


def stored_bytes(layers: int, hidden: int, tokens: int, dtype: StateType) -> int:
    """Bytes of the states of so many tokens; what a store has besides is below a hundredth."""
    return layers * tokens * (hidden * BYTES[dtype] + (4 if dtype == "int8" else 0))


def _seconds(count: float) -> str:
    return f"{count:.1f} s" if count < 120 else f"{count / 60:.1f} min"
