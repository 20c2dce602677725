"""The queue of inputs and the micro-batches made of it.

All of this lives in the event loop, so nothing here needs a lock; only the computation itself goes to the one thread
that owns the model. An input waits in the queue until the thread is free; the oldest one then takes with it those that
may be computed together with it (the same key), up to `max_batch` inputs, a number of characters, or what takes half
a second, so that others do not wait for long. Where the thread was idle the oldest one waits `batch_wait_ms` for
company.

An input is refused where the queue is full, and where what is ahead of it would take longer than `longest_wait`, as
fast as the model was lately (pace.py). What it takes itself is not counted: asking again later would not make that
less. Whoever is refused is told when there would be room if nobody else came.

A place in the queue is given back when its input is computed, when its request times out, and when its client goes
away: `withdraw` takes it out at once. What is being computed already is computed to its end, and nobody hears it.
"""

import asyncio
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from bertvision.serve.http.limits import ServeConfig
from bertvision.serve.http.metrics import Metrics
from bertvision.serve.http.pace import Pace, work_of

__all__ = ["Batcher", "Full", "Job"]

K = TypeVar("K", bound=Hashable)
_CHARACTERS = 600_000
"""Of a micro-batch, each as often as it is read: about four hundred windows."""
_SECONDS = 0.5
"""Of a micro-batch, as far as can be told: none of its inputs is answered before all are, and who comes meanwhile
waits for it. A processor gains nothing from larger ones."""


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

    @property
    def work(self) -> int:
        return work_of(self.size)


class Batcher(Generic[K]):
    """Hands inputs to `compute` in micro-batches."""

    def __init__(
        self,
        compute: Callable[[K, list[Any]], list[Any]],
        config: ServeConfig,
        metrics: Metrics,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            compute: Makes an answer of every input; called in the one thread that owns the model.
            clock: Seconds since some moment.
        """
        self._compute, self._config, self._metrics = compute, config, metrics
        self._queue: deque[Job[K]] = deque()
        self._running = 0
        self._came = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self.pace = Pace(clock)

    @property
    def idle(self) -> bool:
        return not self._queue and not self._running

    def submit(self, inputs: Sequence[tuple[K, Any, int]]) -> list[Job[K]]:
        """Give all of these a place in the queue, or none: `Full`."""
        longest = self._config.longest_wait
        wait = self.pace.wait(sum(job.work for job in self._queue))
        many = len(self._queue) + len(inputs) - self._config.queue
        if many > 0 or wait > longest:
            # Until what is ahead takes no longer, and until so many of the oldest have left the queue.
            first = list(itertools.islice(self._queue, max(0, many)))
            places = self.pace.wait(sum(job.work for job in first)) if first else 0.0
            raise Full(max(1, math.ceil(max(wait - longest, places))))
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
                self._running = 0
                self._told()

    async def close(self) -> None:
        """End the thread, once it is through with what it computes; `run` must have been cancelled."""
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)

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
        work, most = 0, min(_CHARACTERS, self.pace.work_in(_SECONDS))
        for job in self._queue:
            fits = not batch or (len(batch) < self._config.max_batch and work + job.work <= most)
            if job.key == first.key and fits:
                batch.append(job)
                work += job.work
            else:
                rest.append(job)
        self._queue = rest
        return batch

    async def _work(self, batch: list[Job[K]]) -> None:
        self._running = len(batch)
        self._told()
        self._metrics.batches.observe(len(batch))
        loop = asyncio.get_running_loop()
        inputs = [job.input for job in batch]
        with self.pace.measured(sum(job.work for job in batch)):
            work = loop.run_in_executor(self._thread, self._compute, batch[0].key, inputs)
            await asyncio.wait({work})
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
