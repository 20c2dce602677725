"""A bounded queue of queries, computed in micro-batches by the one thread that owns the model.

The queue lives in the event loop, so it needs no lock. The oldest query takes those with it that may be computed
together (equal keys). New queries are refused (429) when the queue is full, or when the work ahead of them would take
longer than `longest_wait` at the recent speed of the model; a query that would by itself take longer than the timeout
is refused for good (422).
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException

from bertvision.serve.config import ServeConfig
from bertvision.serve.metrics import Metrics

_SECONDS = 0.5
"""Most time a micro-batch should take: nobody in it is answered before all of it is computed."""
_CHARACTERS = 600_000
"""Most work in a micro-batch, which bounds memory."""
_MEMORY = 0.8
"""Weight of older measurements in the speed; each new micro-batch counts with its size."""


@dataclass(frozen=True, eq=False)
class Query:
    """One checked input."""

    texts: tuple[str, ...]
    tasks: tuple[str, ...]
    """The tasks that answer, in the model's order; never empty."""
    n_best: int = 0
    explain: bool = False

    @property
    def characters(self) -> int:
        return sum(map(len, self.texts))

    @property
    def work(self) -> int:
        """Cost in characters read: even a short input costs something, and beyond the first window (about 1,500
        characters) each character is read by three overlapping windows."""
        return self.characters + 100 + 2 * max(0, self.characters - 1500)

    @property
    def key(self) -> Hashable:
        """Queries with equal keys are computed together; what is explained is computed alone."""
        return id(self) if self.explain else (len(self.texts), self.tasks, self.n_best)


class Job:
    """A query on its way, and the place of its answer."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()


class Batcher:
    """Hands queries to `compute(queries) -> answers` in micro-batches."""

    def __init__(
        self, compute: Callable[[list[Query]], list[Any]], config: ServeConfig, metrics: Metrics
    ) -> None:
        self._compute, self._config, self._metrics = compute, config, metrics
        self._queue: list[Job] = []
        self._running: list[Job] = []
        self._began = 0.0
        self._seconds = self._work = 0.0
        self._arrival = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        metrics.waiting.set_function(lambda: len(self._queue))
        metrics.running.set_function(lambda: len(self._running))

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
            # A batch that is late is expected to be late by as much again.
            left = abs(self.expected(_work(self._running)) - (time.monotonic() - self._began))
        return left + self.expected(_work(self._queue))

    # ---- the queue

    def submit(self, queries: Sequence[Query]) -> list[Job]:
        """Queue all of these, or none."""
        longest = self.expected(max(query.work for query in queries))
        if longest > self._config.timeout:
            limit = f"longer than {self._config.timeout:g} s: send it in parts"
            raise HTTPException(422, f"a text would take about {longest:.0f} s, {limit}")
        late = self.wait_time() - self._config.longest_wait
        if late > 0 or len(self._queue) + len(queries) > self._config.queue:
            seconds = max(1, math.ceil(late))
            again = f"too many inputs wait already: ask again in {seconds} s"
            raise HTTPException(429, again, {"retry-after": str(seconds)})
        jobs = [Job(query) for query in queries]
        self._queue += jobs
        self._arrival.set()
        return jobs

    def withdraw(self, jobs: Sequence[Job]) -> None:
        """Free the places of jobs nobody waits for any more."""
        left = [job for job in jobs if job.done.cancel()]
        self._queue = [job for job in self._queue if not job.done.cancelled()]
        self._metrics.given_up.inc(len(left))

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self._arrival.wait()
            await self._gather()
            while self._queue:
                await self._work_on(self._take())
            self._arrival.clear()

    async def close(self) -> None:
        """End the thread when its computation is done; cancel `run` before."""
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)

    async def _gather(self) -> None:
        """Give other queries a moment to arrive while the model is idle."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.batch_wait_ms / 1e3):
                while 0 < len(self._queue) < self._config.max_batch:
                    self._arrival.clear()
                    await self._arrival.wait()

    def _take(self) -> list[Job]:
        """The oldest query and those that go with it, as much as half a second of work."""
        speed = self._work / self._seconds if self._seconds else math.inf
        room = min(_CHARACTERS, _SECONDS * speed)
        key, batch = self._queue[0].query.key, []
        for job in list(self._queue):
            fits = not batch or (len(batch) < self._config.max_batch and job.query.work <= room)
            if job.query.key == key and fits:
                batch.append(job)
                room -= job.query.work
                self._queue.remove(job)
        return batch

    async def _work_on(self, batch: list[Job]) -> None:
        self._running, self._began = batch, time.monotonic()
        self._metrics.batches.observe(len(batch))
        queries = [job.query for job in batch]
        work = asyncio.get_running_loop().run_in_executor(self._thread, self._compute, queries)
        try:
            await asyncio.wait({work})
        finally:
            self.learn(time.monotonic() - self._began, _work(batch))
            self._running = []
        error = work.exception()
        waiting = [(i, job) for i, job in enumerate(batch) if not job.done.done()]  # others are withdrawn
        for i, job in waiting:
            if error is None:
                job.done.set_result(work.result()[i])
            elif len(batch) == 1:
                job.done.set_exception(error)
            else:  # one of them is at fault: compute each alone, so that the others get their answers
                await self._work_on([job])


def _work(jobs: Sequence[Job]) -> int:
    return sum(job.query.work for job in jobs)
