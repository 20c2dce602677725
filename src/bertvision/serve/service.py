"""The model behind the routes: inputs in, answers out, computed in micro-batches by the one thread that owns it."""

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from bertvision.errors import DataError
from bertvision.heads.spec import HeadSpec
from bertvision.model.model import Model
from bertvision.serve.batching import Batcher, Full, TooLong, work_of
from bertvision.serve.config import ServeConfig
from bertvision.serve.metrics import Metrics

_log = logging.getLogger("bertvision")
_numbers = itertools.count()
_PARAGRAPH = "Ada came by the long road, and the mill stood where it had stood before. " * 8


class Refusal(Exception):
    """An answer that is an error: its status, one sentence, and headers."""

    def __init__(self, status: int, sentence: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.headers = status, sentence, headers


def failure(error: BaseException) -> Refusal:
    """A defect: the error goes to the log under an id, and only the id to the client."""
    number = secrets.token_hex(4)
    _log.error("request failed, id %s", number, exc_info=error)
    return Refusal(500, f"something went wrong on the server: its log has the error under the id {number}")


@dataclass(frozen=True)
class Query:
    """One checked input."""

    compute: "Compute"
    texts: tuple[str, ...]
    tasks: tuple[str, ...]
    """The tasks that answer, in the model's order; never empty."""
    n_best: int = 0
    number: int | None = None
    """What is computed alone has a number of its own."""

    @property
    def characters(self) -> int:
        return sum(map(len, self.texts))

    @property
    def options(self) -> dict[str, Any]:
        """How the model is asked."""
        return {"tasks": self.tasks} | ({"n_best": self.n_best} if self.n_best else {})

    @property
    def key(self) -> tuple[Any, ...]:
        """What inputs must agree in to be computed together."""
        return self.compute, len(self.texts), self.tasks, self.n_best, self.number


Compute = Callable[[Model, list[Query]], list[Any]]
"""What a route computes of queries with one key, in the thread that owns the model."""


class Service:
    """A model that answers many clients at once."""

    def __init__(self, model: Model, config: ServeConfig) -> None:
        self.model, self.config = model, config
        self.texts = {name: system.task.texts_read for name, system in model.systems.items()}
        """How many texts an input of each task has."""
        self.metrics = Metrics()
        self.batcher = Batcher(self._compute, config, self.metrics)
        self.ready = False
        self._worker: asyncio.Task[None] | None = None

    def warm_up(self, computes: Sequence[Compute]) -> None:
        """Compute once what clients may ask: the first answer of a model takes longer, a broken model fails here, and
        the queue needs to know the model's speed, which the last of them gives."""
        for count in (1, 2):
            texts = (_PARAGRAPH, "Ada came.")[:count]
            tasks = tuple(name for name, read in self.texts.items() if read == count)
            seconds = 0.0
            for query in [Query(compute, texts, tasks) for compute in computes] if tasks else []:
                began = time.monotonic()
                self._compute(query.key, [query])
                seconds = time.monotonic() - began
            if tasks:
                self.batcher.learn(seconds, work_of(sum(map(len, texts))))

    def start(self) -> None:
        """Begin to work, in the running event loop."""
        self._worker = asyncio.create_task(self.batcher.run())
        self.ready = True

    async def stop(self) -> None:
        """End the work; no thread is left."""
        self.ready = False
        if self._worker is not None:
            self._worker.cancel()
        await self.batcher.close()

    def served(self) -> list[dict[str, Any]]:
        """The tasks of the model, for GET /v1/models."""
        return [
            {
                "task": name,
                "kind": system.task.kind,
                "texts": self.texts[name],
                "asks": system.task.reads_questions,
                "classes": list(system.task.classes),
                "heads": [HeadSpec(head.name, head.config).label for head in system.heads],
                "parameters": sum(head.num_parameters for head in system.heads),
            }
            for name, system in self.model.systems.items()
        ]

    # ---- one request

    def query(self, one: Any, compute: Compute, place: str = "", *, alone: bool = False) -> Query:
        """An input (schemas.py), checked against the limits and the tasks of this model."""
        for name, text in one.named.items():
            if len(text) > self.config.max_text:
                limit = f"longer than {self.config.max_text} characters: send it in parts"
                raise Refusal(422, f"{place}{name} is {limit}")
        texts = tuple(one.named.values())
        count = len(texts)
        fitting = [name for name, read in self.texts.items() if read == count]
        choice = f"name one of {', '.join(fitting)}" if fitting else f"give {_texts(3 - count)}"
        for name in one.tasks or ():
            if name in fitting:
                continue
            if name in self.texts:
                given = f"{name} reads {_texts(self.texts[name])}, and {_texts(count)} was given"
                raise Refusal(422, f"{given}: {choice}")
            raise Refusal(422, f"there is no task {name[:40]!r}: {choice}")
        if not fitting:
            raise Refusal(422, f"no task here reads {_texts(count)}: {choice}")
        tasks = tuple(name for name in fitting if name in (one.tasks or fitting))
        return Query(compute, texts, tasks, one.n_best, next(_numbers) if alone else None)

    async def answer(self, queries: Sequence[Query], request: Request) -> list[Any]:
        """Answers to all inputs of a request; given up when its time is over or its client goes away."""
        try:
            jobs = self.batcher.submit([(query.key, query, query.characters) for query in queries])
        except TooLong as long:
            limit = f"longer than {self.config.timeout:g} s: send it in parts"
            raise Refusal(422, f"a text would take about {long.seconds} s, {limit}") from None
        except Full as full:
            again, header = f"ask again in {full.seconds} s", {"retry-after": str(full.seconds)}
            raise Refusal(429, f"too many inputs wait already: {again}", header) from None
        answers = asyncio.gather(*(job.done for job in jobs), return_exceptions=True)
        gone = asyncio.create_task(_disconnected(request))
        try:
            await asyncio.wait({answers, gone}, timeout=self.config.timeout, return_when="FIRST_COMPLETED")
            if not answers.done():
                if gone.done():
                    raise Refusal(499, "the client went away")  # for the counters: nobody reads it
                limit = f"there was no answer within {self.config.timeout:g} s"
                raise Refusal(504, f"{limit}: send less at once, or later")
        finally:
            gone.cancel()
            if not all(job.done.done() for job in jobs):
                self.batcher.withdraw(jobs)
        for found in answers.result():
            if isinstance(found, DataError):
                raise Refusal(422, str(found))
            if isinstance(found, BaseException):
                raise failure(found)
        return answers.result()

    def _compute(self, key: Any, queries: list[Query]) -> list[Any]:
        """In the thread that owns the model."""
        self.metrics.characters.inc(sum(query.characters for query in queries))
        return queries[0].compute(self.model, queries)


def _texts(count: int) -> str:
    return "one text" if count == 1 else "two texts"


async def _disconnected(request: Request) -> None:
    """Return when the client has gone away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
