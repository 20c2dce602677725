"""What is worth a line in the log when a data set is read, and not with every request: texts that are cut.

Whoever asks decides how long the texts are, and would decide how long the log gets.
"""

import contextlib
import logging
from collections.abc import Iterator

__all__ = ["cuts_told_once"]

_LOGGERS = ("bertvision.data.windows", "bertvision.data.text_windows")


class _Once(logging.Filter):
    """Lets the first line of each kind pass."""

    def __init__(self) -> None:
        super().__init__()
        self._told: set[object] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        new = record.msg not in self._told  # before its numbers are put in
        self._told.add(record.msg)
        return new


@contextlib.contextmanager
def cuts_told_once() -> Iterator[None]:
    """Within, only the first time that texts are cut is told, for each way of it."""
    once, loggers = _Once(), [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addFilter(once)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(once)
