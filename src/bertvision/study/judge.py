"""Logits become records: decoding takes a core some seconds a system, so it is left to other processes.

The device goes on meanwhile. Each worker gets the windows once, then file names alone.
"""

import multiprocessing
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from types import TracebackType

from bertvision.study.records import SpanRecord
from bertvision.tasks.span.decode import DecodeConfig, decode
from bertvision.tasks.span.logits import SpanLogits, second_best
from bertvision.train.splits import Split

__all__ = ["Judges", "judge"]

_known: dict[str, Split] = {}
"""Of a worker: the parts of the data by name."""


def judge(split: Split, logits: Path, variant: str, out: Path) -> None:
    """Decode the logits of a system and keep what it answered."""
    values = SpanLogits.load(logits, split.fingerprint)
    if variant == "second":
        values = second_best(split.windows, values)
    decoding = DecodeConfig(decoding="bertvision") if variant == "bertvision" else DecodeConfig()
    answers = decode(split.windows, values, split.spans, decoding)
    SpanRecord.of(answers).save(out, split.spans.fingerprint)


def _begin(parts: Mapping[str, Split]) -> None:
    _known.update(parts)


def _judge(part: str, logits: Path, variant: str, out: Path) -> None:
    judge(_known[part], logits, variant, out)


class Judges:
    """Some processes that decode; none of them where `workers` is 0."""

    def __init__(self, parts: Mapping[str, Split], workers: int) -> None:
        self.parts = parts
        self._pool: ProcessPoolExecutor | None = None
        if workers:
            self._pool = ProcessPoolExecutor(
                workers,
                mp_context=multiprocessing.get_context("spawn"),  # a fork would share the device
                initializer=_begin,
                initargs=(dict(parts),),
            )
        self._waiting: list[Future[None]] = []

    def send(self, part: str, logits: Path, variant: str, out: Path) -> None:
        if self._pool is None:
            judge(self.parts[part], logits, variant, out)
        else:
            self._waiting.append(self._pool.submit(_judge, part, logits, variant, out))

    def wait(self) -> None:
        """Until all that was sent is kept; what went wrong is raised here."""
        for future in self._waiting:
            future.result()
        self._waiting.clear()

    def __enter__(self) -> "Judges":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.wait()
        finally:
            if self._pool is not None:
                self._pool.shutdown(wait=error is None, cancel_futures=True)
