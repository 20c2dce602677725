"""A bounded queue of inputs, computed in micro-batches by the one thread that owns the model.

The queue lives in the event loop, so it needs no lock. The oldest input takes those with it that may be computed
together (equal keys). New inputs are refused (`Full`) when the queue is full, or when the work ahead of them would take
longer than `longest_wait` at the recent speed of the model; an input that would by itself take longer than the timeout
is refused as `TooLong`.
"""

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from bertvision.serve.config import ServeConfig
from bertvision.serve.metrics import Metrics

_SECONDS = 0.5
"""Most time a micro-batch should take: nobody in it is answered before all of it is computed."""
_CHARACTERS = 600_000
"""Most work in a micro-batch, which bounds memory."""
_MEMORY = 0.8
"""Weight of older measurements in the speed; each new micro-batch counts with its size."""


def work_of(characters: int) -> int:
    """Cost of an input in characters read: even a short one costs something, and beyond the first window (about 1,500
    characters) each character is read by three overlapping windows."""
    return characters + 100 + 2 * max(0, characters - 1500)


class Full(RuntimeError):
    """There is no place now; try again in `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = max(1, math.ceil(seconds))
        super().__init__(f"{self.seconds} s")


class TooLong(Full):
    """One input would take `seconds`, longer than any request may."""


@dataclass(eq=False)
class Job:
    """One input on its way."""

    key: Hashable
    """Inputs with equal keys may be computed together."""
    input: Any
    work: int
    done: asyncio.Future[Any]


class Batcher:
    """Hands inputs to `compute(key, inputs) -> answers` in micro-batches."""

    def __init__(
        self, compute: Callable[[Any, list[Any]], list[Any]], config: ServeConfig, metrics: Metrics
    ) -> None:
        self._compute, self._config, self._metrics = compute, config, metrics
        self._queue: deque[Job] = deque()
        self._running: list[Job] = []
        self._began = 0.0
        self._seconds = self._work = 0.0
        self._arrival = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")

    # ---- speed

    def learn(self, seconds: float, work: float) -> None:
        """Remember that so much work took so long."""
        self._seconds = _MEMORY * self._seconds + seconds
        self._work = _MEMORY * self._work + work

    def expected(self, work: float) -> float:
        """Seconds that the model would take for so much work; 0 while its speed is unknown."""
        return work * self._seconds / self._work if self._work else 0.0

    def wait_time(self) -> float:
        """Seconds until everything running and waiting now is done."""
        left = 0.0
        if self._running:
            gone = time.monotonic() - self._began
            # A batch that is late is expected to be late by as much again.
            left = abs(self.expected(sum(job.work for job in self._running)) - gone)
        return left + self.expected(sum(job.work for job in self._queue))

    # ---- the queue

    def submit(self, inputs: Sequence[tuple[Hashable, Any, int]]) -> list[Job]:
        """Queue all of these (key, input, characters), or none.

        Raises:
            Full: The queue has no room, or the wait would be too long.
            TooLong: One of them cannot be computed within the timeout.
        """
        loop = asyncio.get_running_loop()
        jobs = [Job(key, one, work_of(size), loop.create_future()) for key, one, size in inputs]
        longest = self.expected(max(job.work for job in jobs))
        if longest > self._config.timeout:
            raise TooLong(longest)
        wait = self.wait_time()
        excess = len(self._queue) + len(jobs) - self._config.queue
        if excess > 0 or wait > self._config.longest_wait:
            ahead = sum(job.work for job in list(self._queue)[: max(excess, 0)])
            raise Full(max(wait - self._config.longest_wait, self.expected(ahead)))
        self._queue.extend(jobs)
        self._count()
        self._arrival.set()
        return jobs

    def withdraw(self, jobs: Sequence[Job]) -> None:
        """Free the places of jobs nobody waits for any more."""
        left = [job for job in jobs if not job.done.done()]
        for job in left:
            job.done.cancel()
        self._queue = deque(job for job in self._queue if not job.done.cancelled())
        self._metrics.given_up.inc(len(left))
        self._count()

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            if not self._queue:
                self._arrival.clear()
                await self._arrival.wait()
                await self._gather()
                continue  # whoever waited may be gone
            await self._work_on(self._take())

    async def close(self) -> None:
        """End the thread when its computation is done; cancel `run` before."""
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)

    async def _gather(self) -> None:
        """Give other inputs a moment to arrive while the model is idle."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.batch_wait_ms / 1e3):
                while self._queue and len(self._queue) < self._config.max_batch:
                    self._arrival.clear()
                    await self._arrival.wait()

    def _take(self) -> list[Job]:
        """The oldest input and those that go with it, as much as half a second of work."""
        first = self._queue[0]
        speed = self._work / self._seconds if self._seconds else math.inf
        room = min(_CHARACTERS, _SECONDS * speed)
        batch: list[Job] = []
        rest: deque[Job] = deque()
        for job in self._queue:
            fits = not batch or (len(batch) < self._config.max_batch and job.work <= room)
            if job.key == first.key and fits:
                batch.append(job)
                room -= job.work
            else:
                rest.append(job)
        self._queue = rest
        return batch

    async def _work_on(self, batch: list[Job]) -> None:
        self._running, self._began = batch, time.monotonic()
        self._metrics.batches.observe(len(batch))
        self._count()
        loop = asyncio.get_running_loop()
        try:
            work = loop.run_in_executor(
                self._thread, self._compute, batch[0].key, [job.input for job in batch]
            )
            await asyncio.wait({work})
        finally:
            self.learn(time.monotonic() - self._began, sum(job.work for job in batch))
            self._running = []
            self._count()
        error = work.exception()
        if error is not None and len(batch) > 1:
            # One of them is at fault: compute each alone, so that the others get their answers.
            for job in batch:
                if not job.done.done():
                    await self._work_on([job])
            return
        for i, job in enumerate(batch):
            if job.done.done():
                continue  # withdrawn meanwhile
            if error is None:
                job.done.set_result(work.result()[i])
            else:
                job.done.set_exception(error)

    def _count(self) -> None:
        self._metrics.waiting.set(len(self._queue))
        self._metrics.running.set(len(self._running))
