"""The model behind the routes: inputs in, answers out, computed in micro-batches by the one thread that owns it.

The queue lives in the event loop, so it needs no lock. The oldest query takes those with it that may be computed
together (equal keys). New queries are refused (429) when the queue is full, or when the work ahead of them would take
longer than an input may wait at the recent speed of the model; a query that would by itself take longer than the
timeout is refused for good (422).
"""

import asyncio
import contextlib
import logging
import math
import secrets
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Annotated, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from starlette.exceptions import HTTPException
from starlette.requests import Request

from bertvision.errors import DataError
from bertvision.model.model import Model
from bertvision.serve.config import ServeConfig
from bertvision.tasks.base import to_json

_log = logging.getLogger("bertvision")
_PARAGRAPH = "Ada came by the long road, and the mill stood where it had stood before. " * 8
_FORMS = (("question", "context"), ("text",), ("text", "pair"))
"""The texts of an input: a question about a paragraph, one text, or a pair of texts."""
_SECONDS = 0.5
"""Most time a micro-batch should take: nobody in it is answered before all of it is computed."""
_CHARACTERS = 600_000
"""Most work in a micro-batch, which bounds memory."""
_MEMORY = 0.8
"""Weight of older measurements in the speed; each new micro-batch counts with its size."""
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


# ---- what is asked


def _written(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty, write it")
    return text


Text = Annotated[str, AfterValidator(_written)]


class Input(BaseModel):
    """{"question", "context"}, {"text", "pair"} or {"text"}."""

    # "5" is no number, and an unknown field is a typing error.
    model_config = ConfigDict(strict=True, extra="forbid")

    question: Text | None = None
    context: Text | None = None
    text: Text | None = None
    pair: Text | None = None
    tasks: Annotated[list[str], Field(min_length=1, max_length=256)] | None = Field(
        default=None, description="Names of the tasks that answer; all that read such an input by default."
    )
    n_best: Annotated[int, Field(ge=0, le=20)] = Field(default=0, description="How many candidates to list.")

    @model_validator(mode="after")
    def _check_form(self) -> "Input":
        if tuple(self.texts) not in _FORMS:
            raise ValueError("give text, text and pair, or question and context")
        return self

    @property
    def texts(self) -> dict[str, str]:
        """The texts by the names of their fields, in order."""
        return self.model_dump(include={"question", "context", "text", "pair"}, exclude_none=True)


Jobs = dict["asyncio.Future[Any]", "Query"]
"""The place of an answer -> what was asked; in the order of arrival."""


@dataclass(frozen=True, eq=False)
class Query:
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


# ---- the queue


class Metrics:
    """The counters of one server, in a registry of their own: two servers in one process do not mix."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"namespace": "bertvision", "registry": self.registry}
        self.requests = Counter("requests", "Answers by route and status.", ["route", "status"], **own)
        self.seconds = Histogram(
            "request_seconds", "Seconds to an answer.", ["route"], buckets=_BUCKETS, **own
        )
        self.waiting = Gauge("queue_inputs", "Inputs that wait.", **own)
        self.running = Gauge("running_inputs", "Inputs that are computed now.", **own)
        self.batches = Histogram(
            "batch_inputs", "Inputs of a micro-batch.", buckets=[2**i for i in range(8)], **own
        )
        self.characters = Counter("characters", "Characters of computed inputs.", **own)
        self.given_up = Counter("given_up_inputs", "Inputs nobody waits for any more.", **own)
        ProcessCollector(registry=self.registry)


class Batcher:
    """Hands queries to `compute(queries) -> answers` in micro-batches."""

    def __init__(
        self, compute: Callable[[list[Query]], list[Any]], config: ServeConfig, metrics: Metrics
    ) -> None:
        self._compute, self._config, self._metrics = compute, config, metrics
        self._queue: Jobs = {}
        self._running: Jobs = {}
        self._began = self._seconds = self._work = 0.0
        self._arrival = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        metrics.waiting.set_function(lambda: len(self._queue))
        metrics.running.set_function(lambda: len(self._running))

    def learn(self, seconds: float, work: float) -> None:
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

    def submit(self, queries: Sequence[Query]) -> list[asyncio.Future[Any]]:
        """Queue all of these, or none; returns the places of their answers."""
        config, longest = self._config, self.expected(max(query.work for query in queries))
        if longest > config.timeout:
            limit = f"longer than {config.timeout:g} s: send it in parts"
            raise HTTPException(422, f"a text would take about {longest:.0f} s, {limit}")
        # At most half of the timeout, so that what has waited can still be answered in time.
        late = self.wait_time() - min(config.max_wait, config.timeout / 2)
        if late > 0 or len(self._queue) + len(queries) > config.queue:
            seconds = max(1, math.ceil(late))
            again = f"too many inputs wait already: ask again in {seconds} s"
            raise HTTPException(429, again, {"retry-after": str(seconds)})
        loop = asyncio.get_running_loop()
        jobs = {loop.create_future(): query for query in queries}
        self._queue |= jobs
        self._arrival.set()
        return list(jobs)

    def withdraw(self, answers: Iterable[asyncio.Future[Any]]) -> None:
        for answer in answers:
            if answer.cancel():
                self._queue.pop(answer, None)
                self._metrics.given_up.inc()

    async def run(self) -> None:
        """Work until cancelled; then the thread ends, when its computation is done."""
        try:
            while True:
                await self._arrival.wait()
                # Other queries have a moment to arrive while the model is idle.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._config.batch_wait_ms / 1e3):
                        while 0 < len(self._queue) < self._config.max_batch:
                            self._arrival.clear()
                            await self._arrival.wait()
                while self._queue:
                    await self._work_on(self._take())
                self._arrival.clear()
        finally:
            await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)

    def _take(self) -> Jobs:
        """The oldest query and those that go with it, as much as half a second of work."""
        speed = self._work / self._seconds if self._seconds else math.inf
        room = min(_CHARACTERS, _SECONDS * speed)
        key, batch = next(iter(self._queue.values())).key, Jobs()
        for answer, query in list(self._queue.items()):
            fits = not batch or (len(batch) < self._config.max_batch and query.work <= room)
            if query.key == key and fits:
                batch[answer] = self._queue.pop(answer)
                room -= query.work
        return batch

    async def _work_on(self, batch: Jobs) -> None:
        self._running, self._began = batch, time.monotonic()
        self._metrics.batches.observe(len(batch))
        queries = list(batch.values())
        work = asyncio.get_running_loop().run_in_executor(self._thread, self._compute, queries)
        try:
            await asyncio.wait({work})
        finally:
            self.learn(time.monotonic() - self._began, _work(batch))
            self._running = {}
        error = work.exception()
        for i, (answer, query) in enumerate(batch.items()):
            if answer.done():  # withdrawn
                continue
            if error is None:
                answer.set_result(work.result()[i])
            elif len(batch) == 1:
                answer.set_exception(error)
            else:  # one of them is at fault: compute each alone, so that the others get their answers
                await self._work_on({answer: query})


def _work(jobs: Jobs) -> int:
    return sum(query.work for query in jobs.values())


# ---- the model


def failure(error: BaseException) -> HTTPException:
    """A defect: the error goes to the log under an id, and only the id to the client."""
    number = secrets.token_hex(4)
    _log.error("request failed, id %s", number, exc_info=error)
    return HTTPException(500, f"something went wrong: the server's log has the error under the id {number}")


class Service:
    def __init__(self, model: Model, config: ServeConfig) -> None:
        self.model, self.config, self.metrics = model, config, Metrics()
        self.batcher = Batcher(self._compute, config, self.metrics)

    def warm_up(self) -> None:
        """Compute what clients may ask: the first answer of a model takes longer, a broken model fails here, and the
        queue needs to know the model's speed, which the last answer gives."""
        for texts in ((_PARAGRAPH,), (_PARAGRAPH, "Ada came.")):
            if tasks := self._reading(len(texts)):
                query = Query(texts, tasks)
                self._compute([replace(query, explain=True)])
                self._compute([query])
                began = time.monotonic()
                self._compute([query])
                self.batcher.learn(time.monotonic() - began, query.work)

    def query(self, one: Input, *, explain: bool = False) -> Query:
        """An input, checked against the limits and the tasks of this model."""
        for name, text in one.texts.items():
            if len(text) > self.config.max_text:
                limit = f"longer than {self.config.max_text} characters: send it in parts"
                raise HTTPException(422, f"{name} is {limit}")
        texts = tuple(one.texts.values())
        fitting = self._reading(len(texts))
        wrong = [f" {name[:40]!r}" for name in one.tasks or () if name not in fitting]
        if wrong or not fitting:
            given = "one text" if len(texts) == 1 else "two texts"
            others = f"name one of {', '.join(fitting)}" if fitting else "GET /v1/models lists the tasks"
            raise HTTPException(422, f"there is no task{''.join(wrong[:1])} that reads {given}: {others}")
        tasks = tuple(name for name in fitting if name in (one.tasks or fitting))
        return Query(texts, tasks, one.n_best, explain)

    async def answer(self, queries: Sequence[Query], request: Request) -> list[Any]:
        """Answers to all inputs of a request; given up when its time is over or its client goes away."""
        waiting = self.batcher.submit(queries)
        answers = asyncio.gather(*waiting, return_exceptions=True)
        gone = asyncio.create_task(_disconnected(request))
        try:
            await asyncio.wait({answers, gone}, timeout=self.config.timeout, return_when="FIRST_COMPLETED")
            if not answers.done():
                if gone.done():
                    raise HTTPException(499, "the client went away")  # for the counters: nobody reads it
                limit = f"there was no answer within {self.config.timeout:g} s"
                raise HTTPException(504, f"{limit}: send less at once, or later")
        finally:
            gone.cancel()
            self.batcher.withdraw(waiting)
        for found in answers.result():
            if isinstance(found, DataError):
                raise HTTPException(422, str(found))
            if isinstance(found, BaseException):
                raise failure(found)
        return answers.result()

    def _reading(self, count: int) -> tuple[str, ...]:
        return tuple(name for name, own in self.model.systems.items() if own.task.texts_read == count)

    def _compute(self, queries: list[Query]) -> list[Any]:
        """In the thread that owns the model."""
        self.metrics.characters.inc(sum(query.characters for query in queries))
        first = queries[0]
        if first.explain:
            how = {"n_best": first.n_best} if first.n_best else {}
            return [self.model.explain(*first.texts, tasks=first.tasks, **how)]
        columns = [list(texts) for texts in zip(*(query.texts for query in queries), strict=True)]
        rows = self.model(*columns, tasks=first.tasks, n_best=first.n_best)
        return [{name: {"kind": found.kind, **to_json(found)} for name, found in row.items()} for row in rows]


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
