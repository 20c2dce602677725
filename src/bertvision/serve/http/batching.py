"""The queue of inputs and the micro-batches made of it.

All of this lives in the event loop, so nothing here needs a lock; only the computation itself goes to the one thread
that owns the model. An input waits in the queue until the thread is free; the oldest one then takes with it those that
may be computed together with it (the same key), up to `max_batch` inputs or a number of characters, so that long
documents do not make others wait. Where the thread was idle the oldest one waits `batch_wait_ms` for company.

An input is refused where the queue is full, and where what is ahead of it would take longer than half of `timeout`, as
fast as the model was lately. What it takes itself is not counted: asking again later would not make that less.

A place in the queue is given back when its input is computed, when its request times out, and when its client goes
away: `withdraw` takes it out at once. What is being computed already is computed to its end, and nobody hears it.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from bertvision.serve.http.limits import ServeConfig
from bertvision.serve.http.metrics import Metrics

__all__ = ["Batcher", "Full", "Job"]

K = TypeVar("K", bound=Hashable)
_CHARACTERS = 200_000
"""Of a micro-batch: about half a thousand windows."""


class Full(RuntimeError):
    """There is no place; `seconds` from now there may be one."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"full for {seconds} s")
        self.seconds = seconds


@dataclass(eq=False)
class Job(Generic[K]):
    """One input on its way."""

    key: K
    """Inputs with equal keys may be computed together."""
    input: Any
    size: int
    """Its characters."""
    done: asyncio.Future[Any]
    since: float = field(default_factory=time.monotonic)


class Batcher(Generic[K]):
    """Hands inputs to `compute` in micro-batches."""

    def __init__(
        self, compute: Callable[[K, list[Any]], list[Any]], config: ServeConfig, metrics: Metrics
    ) -> None:
        """
        Args:
            compute: Makes an answer of every input; called in the one thread that owns the model.
        """
        self._compute, self._config, self._metrics = compute, config, metrics
        self._queue: deque[Job[K]] = deque()
        self._running = 0
        self._came = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._pace = 0.0
        """Seconds a character took lately."""
        self._ahead = 0
        """Characters that are being computed."""

    @property
    def idle(self) -> bool:
        return not self._queue and not self._running

    def submit(self, inputs: Sequence[tuple[K, Any, int]]) -> list[Job[K]]:
        """Give all of these a place in the queue, or none: `Full`."""
        ahead = self._ahead + sum(_work(job.size) for job in self._queue)
        wait = self._pace * ahead
        if len(self._queue) + len(inputs) > self._config.queue or wait > self._config.timeout / 2:
            # Until half of what waits is done.
            raise Full(min(60, max(1, math.ceil(wait / 2))))
        loop = asyncio.get_running_loop()
        jobs = [Job(key, one, size, loop.create_future()) for key, one, size in inputs]
        self._queue.extend(jobs)
        self._told()
        self._came.set()
        return jobs

    def withdraw(self, jobs: Sequence[Job[K]]) -> None:
        """Nobody waits for these any more: their places are free."""
        left = [job for job in jobs if not job.done.done()]
        for job in left:
            job.done.cancel()
        gone = set(left)
        self._queue = deque(job for job in self._queue if job not in gone)
        self._metrics.given_up.inc(len(left))
        self._told()

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            if not self._queue:
                self._came.clear()
                await self._came.wait()
                await self._company()
                continue  # whoever waited may have gone
            try:
                await self._work(self._take())
            finally:
                self._running = self._ahead = 0
                self._told()

    async def _company(self) -> None:
        """The model is idle: give others a moment to come."""
        until = time.monotonic() + self._config.batch_wait_ms / 1e3
        while self._queue and len(self._queue) < self._config.max_batch:
            left = until - time.monotonic()
            if left <= 0:
                return
            self._came.clear()
            try:
                await asyncio.wait_for(self._came.wait(), left)
            except TimeoutError:
                return

    def _take(self) -> list[Job[K]]:
        """The oldest input and those that go with it."""
        first = self._queue[0]
        batch: list[Job[K]] = []
        rest: deque[Job[K]] = deque()
        characters = 0
        for job in self._queue:
            fits = not batch or (len(batch) < self._config.max_batch and characters + job.size <= _CHARACTERS)
            if job.key == first.key and fits:
                batch.append(job)
                characters += job.size
            else:
                rest.append(job)
        self._queue = rest
        return batch

    async def _work(self, batch: list[Job[K]]) -> None:
        self._running, self._ahead = len(batch), sum(_work(job.size) for job in batch)
        self._told()
        self._metrics.batches.observe(len(batch))
        began = time.monotonic()
        loop = asyncio.get_running_loop()
        inputs = [job.input for job in batch]
        work = loop.run_in_executor(self._thread, self._compute, batch[0].key, inputs)
        await asyncio.wait({work})
        seconds = (time.monotonic() - began) / self._ahead
        self._pace = seconds if not self._pace else 0.8 * self._pace + 0.2 * seconds
        error = work.exception()
        if error is not None and len(batch) > 1:
            # One of them is at fault: the others get their answers.
            for job in batch:
                if not job.done.done():
                    await self._work([job])
            return
        for i, job in enumerate(batch):
            if job.done.done():
                continue  # withdrawn meanwhile
            if error is None:
                job.done.set_result(work.result()[i])
            else:
                job.done.set_exception(error)

    def _told(self) -> None:
        self._metrics.waiting.set(len(self._queue))
        self._metrics.running.set(self._running)


def _work(characters: int) -> int:
    """What an input costs, in characters: the shortest one costs something too."""
    return characters + 100
