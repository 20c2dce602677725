"""Where the time of a fit went: encoder, heads, waiting for states, and the reading that went on beside them."""

import time
from collections.abc import Iterable

from bertvision.states.base import States
from bertvision.train.group import FittedHead


class Profile:
    """Times of one try, from the opening of the states to `end`; what an earlier try spent is not counted."""

    def __init__(self, states: States, heads: Iterable[FittedHead]) -> None:
        self._states, self._heads = states, list(heads)
        self._trained = self._seconds()
        # A source in memory has encoded everything by now.
        self._began = time.perf_counter() - states.times.encode

    def _seconds(self) -> float:
        return sum(head.seconds for head in self._heads)

    def end(self) -> dict[str, float]:
        """Seconds by what they went into; `other` is evaluation, checkpoints and the loop itself."""
        total = time.perf_counter() - self._began
        now = self._states.times
        spent = {
            "encoder": now.encode,
            "heads": self._seconds() - self._trained,
            "waiting": now.wait,
            "writing": now.write,
        }
        other = max(0.0, total - sum(spent.values()))
        return {"total": total, **spent, "other": other, "reading": now.read}


def profile_text(profile: dict[str, float]) -> str:
    """One line for people."""
    total = max(profile["total"], 1e-9)
    parts = [
        f"{name} {profile[key]:.1f} s ({profile[key] / total:.1%})"
        for key, name in (
            ("encoder", "encoder"),
            ("heads", "heads"),
            ("waiting", "waiting for states"),
            ("writing", "writing a store"),
            ("other", "other"),
        )
        if profile[key] or key != "writing"
    ]
    beside = f"; reading {profile['reading']:.1f} s, beside it" if profile["reading"] else ""
    return f"{total:.1f} s of fitting: {', '.join(parts)}{beside}"
