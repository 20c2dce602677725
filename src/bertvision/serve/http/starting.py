"""Signals that come before a server can answer: nobody was let in, so there is nothing to finish."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

from bertvision import console

__all__ = ["stopped_while_starting"]


class _Terminated(BaseException):
    """SIGTERM came."""


@contextlib.contextmanager
def stopped_while_starting() -> Iterator[Callable[[], None]]:
    """Within, SIGTERM ends the process with code 0 and Ctrl-C with 130, until lifecycle.py takes them over.

    Call what it gives when everything is loaded: libraries that are just being imported may have swallowed the signal.
    """
    came = False

    def check() -> None:
        if came:
            raise _Terminated

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        nonlocal came
        came = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the next one does not wait for what this one undoes
        raise _Terminated

    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield check
    except (_Terminated, KeyboardInterrupt) as stop:
        console.note("stopped before it could answer")
        raise SystemExit(0 if isinstance(stop, _Terminated) else 130) from None
    finally:
        signal.signal(signal.SIGTERM, before)
