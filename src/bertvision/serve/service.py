"""The model behind the routes: inputs in, answers out, computed in micro-batches by the one thread that owns it."""

import asyncio
import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from bertvision.errors import DataError
from bertvision.heads.spec import HeadSpec
from bertvision.model.model import Model
from bertvision.serve.batching import Batcher, Query
from bertvision.serve.config import ServeConfig
from bertvision.serve.metrics import Metrics
from bertvision.serve.schemas import Input
from bertvision.tasks.predictions import to_json

_log = logging.getLogger("bertvision")
_PARAGRAPH = "Ada came by the long road, and the mill stood where it had stood before. " * 8


def failure(error: BaseException) -> HTTPException:
    """A defect: the error goes to the log under an id, and only the id to the client."""
    number = secrets.token_hex(4)
    _log.error("request failed, id %s", number, exc_info=error)
    return HTTPException(500, f"something went wrong: the server's log has the error under the id {number}")


class Service:
    """A model that answers many clients at once."""

    def __init__(self, model: Model, config: ServeConfig) -> None:
        self.model, self.config = model, config
        self._texts = {name: system.task.texts_read for name, system in model.systems.items()}
        """How many texts an input of each task has."""
        self.metrics = Metrics()
        self._batcher = Batcher(self._compute, config, self.metrics)
        self.ready = False

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
                self._batcher.learn(time.monotonic() - began, query.work)

    async def run(self) -> None:
        """Work until cancelled; then no thread is left."""
        self.ready = True
        try:
            await self._batcher.run()
        finally:
            self.ready = False
            await self._batcher.close()

    def served(self) -> list[dict[str, Any]]:
        """The tasks of the model, for GET /v1/models."""
        return [
            {
                "task": name,
                "kind": system.task.kind,
                "texts": system.task.texts_read,
                "asks": system.task.reads_questions,
                "classes": list(system.task.classes),
                "heads": [HeadSpec(head.name, head.config).label for head in system.heads],
                "parameters": sum(head.num_parameters for head in system.heads),
            }
            for name, system in self.model.systems.items()
        ]

    # ---- one request

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
        jobs = self._batcher.submit(queries)
        answers = asyncio.gather(*(job.done for job in jobs), return_exceptions=True)
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
            self._batcher.withdraw(jobs)
        for found in answers.result():
            if isinstance(found, DataError):
                raise HTTPException(422, str(found))
            if isinstance(found, BaseException):
                raise failure(found)
        return answers.result()

    def _reading(self, count: int) -> tuple[str, ...]:
        """The tasks that read so many texts."""
        return tuple(name for name, read in self._texts.items() if read == count)

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
    """Return when the client has gone away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
