"""How fast the model was lately, and how long what is ahead will take.

Work is counted in characters, which are there before anything is cut into tokens. The pace is seconds over work of the
last micro-batches, each counting four fifths of the one after it, so that a large one says more than a small one. A
micro-batch that takes longer than it should says so while it is computed: whoever comes meanwhile is not let in at the
pace of a moment before, and it is taken to last as much longer again as it is late already. Otherwise everyone who
comes while one long text is read beyond its time would be let in, wait for nothing, and time out.
"""

import contextlib
from collections.abc import Callable, Iterator

__all__ = ["Pace", "work_of"]

_KEPT = 0.8
_WINDOW = 1500
"""Characters that fit into a window of the usual size (384 tokens)."""
_READINGS = 3
"""How often what stands behind the first window is read: windows of the usual size begin 128 tokens apart."""


def work_of(characters: int) -> int:
    """What an input costs, in characters that are read: the shortest one costs something too, and long ones are cut
    into windows that overlap."""
    return characters + 100 + (_READINGS - 1) * max(0, characters - _WINDOW)


class Pace:
    """Watches one thread at work."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seconds = self._work = 0.0
        self._running, self._began = 0, 0.0

    def learn(self, seconds: float, work: float) -> None:
        """So much work took so long."""
        self._seconds, self._work = _KEPT * self._seconds + seconds, _KEPT * self._work + work

    @contextlib.contextmanager
    def measured(self, work: int) -> Iterator[None]:
        """Around the computation of so much work; one at a time."""
        self._running, self._began = work, self._clock()
        try:
            yield
        finally:
            self.learn(self._clock() - self._began, work)
            self._running = 0

    def wait(self, work: float) -> float:
        """Seconds until what is computed now, and then so much work, will be done; 0 while nothing is known."""
        pace = self._seconds / self._work if self._work else 0.0
        if not self._running:
            return pace * work
        gone = self._clock() - self._began
        now = (_KEPT * self._seconds + gone) / (_KEPT * self._work + self._running)
        # What is left of it, or, where it is late, as long again as it is late.
        return abs(pace * self._running - gone) + max(pace, now) * work

    def work_in(self, seconds: float) -> float:
        """How much work is done in so many seconds; without end while nothing is known."""
        return seconds * self._work / self._seconds if self._seconds else float("inf")
