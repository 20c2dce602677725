"""Logits become records: decoding takes a core some seconds a system, so it is left to other processes.

The device goes on meanwhile. Each worker gets the windows once, then file names alone.
"""

import multiprocessing
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from bertvision.artifacts import write_json
from bertvision.study.records import SpanRecord
from bertvision.tasks.span.decode import DecodeConfig, decode
from bertvision.tasks.span.logits import SpanLogits, second_best
from bertvision.train.splits import Split

__all__ = ["Judges", "judge"]

_known: dict[str, Split] = {}
"""Of a worker: the parts of the data by name."""


def judge(parts: Mapping[str, Split], logits: Path, variant: str, out: Path, about: dict[str, Any]) -> None:
    """Decode the logits of a system and keep what it answered; about.json comes last, and says that all is there."""
    for part, split in parts.items():
        values = SpanLogits.load(logits / f"{part}.safetensors", split.fingerprint)
        if variant == "second":
            values = second_best(split.windows, values)
        decoding = DecodeConfig(decoding="bertvision") if variant == "bertvision" else DecodeConfig()
        answers = decode(split.windows, values, split.spans, decoding)
        SpanRecord.of(answers).save(out / f"{part}.safetensors", split.spans.fingerprint)
    write_json(out / "about.json", about)


def _begin(parts: Mapping[str, Split]) -> None:
    _known.update(parts)


def _judge(logits: Path, variant: str, out: Path, about: dict[str, Any]) -> None:
    judge(_known, logits, variant, out, about)


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

    def send(self, logits: Path, variant: str, out: Path, about: dict[str, Any]) -> None:
        """The folder of a system's logits; its record comes into `out`, now or when a process is free."""
        if self._pool is None:
            judge(self.parts, logits, variant, out, about)
        else:
            self._waiting.append(self._pool.submit(_judge, logits, variant, out, about))

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
