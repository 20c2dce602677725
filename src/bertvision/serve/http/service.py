"""The model behind the routes: inputs in, answers out, computed in micro-batches by the one thread that owns it."""

import asyncio
import contextlib
import itertools
import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request

from bertvision.errors import ArtifactError, DataError
from bertvision.serve.bundle import Bundle
from bertvision.serve.http.answers import told
from bertvision.serve.http.batching import Batcher, Full, Job
from bertvision.serve.http.catalogue import catalogue_of
from bertvision.serve.http.limits import ServeConfig
from bertvision.serve.http.metrics import Metrics
from bertvision.serve.http.pace import work_of
from bertvision.serve.http.quiet import cuts_told_once
from bertvision.serve.http.requests import Asked

__all__ = ["Refusal", "Service", "failure"]

_log = logging.getLogger("bertvision")
_numbers = itertools.count()
_USUAL = "Ada came by the long road, and the mill stood where it had stood before. " * 8
"""As long as a paragraph."""


class Refusal(Exception):
    """An answer that is an error: its status, one sentence, and headers."""

    def __init__(self, status: int, sentence: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.headers = status, sentence, headers


def failure(error: BaseException) -> Refusal:
    """A defect: what happened is written to the log under an id, and only the id is told."""
    number = secrets.token_hex(4)
    _log.error("request failed, id %s", number, exc_info=error)
    return Refusal(500, f"something went wrong on the server: its log tells more under the id {number}")


@dataclass(frozen=True)
class _Key:
    """What inputs must agree in to be computed together."""

    pairs: bool
    tasks: tuple[str, ...]
    n_best: int
    alone: int | None
    """The number of an input that is to be explained: no other has the same. None = predicted, with others."""


class Service:
    """A bundle that is asked by many at once."""

    def __init__(self, bundle: Bundle, config: ServeConfig) -> None:
        self.bundle, self.config = bundle, config
        self.catalogue = catalogue_of(bundle)
        self.metrics = Metrics()
        self.batcher: Batcher[_Key] = Batcher(self._compute, config, self.metrics)
        self.ready = self.stopping = False
        self._worker: asyncio.Task[None] | None = None
        self._quiet = contextlib.ExitStack()

        self._count_windows()

    def _count_windows(self) -> None:
        """Have every window counted, whatever computes."""
        walked, count = self.bundle._walked, self.metrics.windows.inc

        def counted(*args: Any, **options: Any) -> Any:
            found = walked(*args, **options)
            count(len(found.windows))
            return found

        setattr(self.bundle, "_walked", counted)  # noqa: B010 (a method of its class)

    def warm(self) -> None:
        """Answer nobody: a model's first answer takes longer, one that cannot answer is told of here, and how fast it
        is must be known when the first ones come."""
        for name, readers in self.bundle.layers.items():
            task = self.bundle.systems[name].task
            for reader in readers:
                if (reader.task.kind, reader.task.outputs) != (task.kind, task.outputs):
                    raise ArtifactError(
                        f"{reader.folder} reads a layer for another task than {name}: export the package again"
                    )
        for texts in (1, 2):
            if tasks := self.catalogue.reading(texts):
                asked = Asked("Who came?", "Ada came." if texts == 2 else None, tasks, 0)
                for explain in (False, True):
                    self._compute(_entry(asked, explain=explain)[0], [asked])
                usual = replace(asked, first=_USUAL) if texts == 1 else replace(asked, second=_USUAL)
                with self.batcher.pace.measured(work_of(usual.characters)):
                    self._compute(_entry(usual, explain=False)[0], [usual])

    def start(self) -> None:
        """Begin to work, in the running event loop."""
        self._quiet.enter_context(cuts_told_once())
        self._worker = asyncio.create_task(self.batcher.run())
        self.ready = True

    async def stop(self) -> None:
        """End the work; no thread is left."""
        self.ready = False
        if self._worker is not None:
            self._worker.cancel()
        await self.batcher.close()
        self._quiet.close()

    async def ask(self, inputs: Sequence[Asked], request: Request, *, explain: bool = False) -> list[Any]:
        """The answers to all inputs of a request; given up when its time is over or its client goes away."""
        try:
            jobs = self.batcher.submit([_entry(one, explain=explain) for one in inputs])
        except Full as full:
            sentence = f"too many wait already: ask again in {full.seconds} s"
            raise Refusal(429, sentence, {"retry-after": str(full.seconds)}) from None
        answers = asyncio.gather(*(job.done for job in jobs), return_exceptions=True)
        gone = asyncio.create_task(_gone(request))
        try:
            await asyncio.wait({answers, gone}, timeout=self.config.timeout, return_when="FIRST_COMPLETED")
            if not answers.done() and gone.done():
                raise Refusal(499, "the client went away")  # for the counters: nobody hears it
            if not answers.done():
                sentence = (
                    f"there was no answer within {self.config.timeout:g} s: send less at once, or later"
                )
                raise Refusal(504, sentence)
        finally:
            gone.cancel()
            self._give_up(jobs)
        found = answers.result()
        for one in found:
            if isinstance(one, DataError):
                raise Refusal(422, str(one))
            if isinstance(one, BaseException):
                raise failure(one)
        return found

    def _give_up(self, jobs: Sequence[Job[_Key]]) -> None:
        if not all(job.done.done() for job in jobs):
            self.batcher.withdraw(jobs)

    def _compute(self, key: _Key, inputs: list[Asked]) -> list[Any]:
        """In the thread that owns the model."""
        options: dict[str, Any] = {"tasks": key.tasks}
        if key.n_best:
            options["n_best"] = key.n_best
        if key.alone is not None:
            return [self.bundle.explain(one.first, one.second, **options) for one in inputs]
        firsts = [one.first for one in inputs]
        seconds = [one.second or "" for one in inputs] if key.pairs else None
        found = self.bundle.predict(firsts, seconds, **options)
        return [{name: told(prediction) for name, prediction in row.items()} for row in found]


def _entry(one: Asked, *, explain: bool) -> tuple[_Key, Asked, int]:
    # Explained one by one: in a batch the first would wait for the last.
    alone = next(_numbers) if explain else None
    return _Key(one.second is not None, one.tasks, one.n_best, alone), one, one.characters


async def _gone(request: Request) -> None:
    """Comes back when the client has gone away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
