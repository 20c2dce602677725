"""Calls of an encoder shared out over threads, each with a part of the processor.

One call on two cores waits at the end of every layer for the slower one; two calls on a core each never wait. torch
lets other threads run while it computes. How many cores a call takes is a setting of each thread in torch, which it
takes from that of the process when it first computes. Setting the one sets the other too, so that is put back at once,
before the first call: threads that somebody else starts while they go on have all cores.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Barrier, Lock, Thread
from typing import TypeVar

import torch

__all__ = ["cores", "in_order"]

Item = TypeVar("Item")
Result = TypeVar("Result")

_SETTING = Lock()
"""Held while the setting of the process is not what it was."""


def cores() -> int:
    """How many cores this thread computes on; asked for here, a new thread takes over no share of another's."""
    with _SETTING:
        return torch.get_num_threads()


def in_order(work: Callable[[Item], Result], items: Sequence[Item], workers: int) -> Iterator[Result]:
    """`work` done on every item, results in the items' order; not many more than `workers` wait to be taken."""
    if workers < 2 or len(items) < 2:
        yield from map(work, items)
        return
    threads = cores()
    share = max(1, threads // workers)
    with ThreadPoolExecutor(workers, "bertvision-walk", _take, (share, threads)) as pool:
        _start(pool, workers)
        waiting: deque[Future[Result]] = deque()
        rest = iter(items)
        try:
            for item in rest:
                waiting.append(pool.submit(work, item))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:  # after an error, or where nobody takes the rest
                future.cancel()


def _start(pool: ThreadPoolExecutor, workers: int) -> None:
    """Let all threads take their share before the first result is out: from then on nobody finds it changed."""
    gate = Barrier(workers)  # a thread that waits here is not free to take another's place
    for waits in [pool.submit(gate.wait) for _ in range(workers)]:
        waits.result()


def _take(share: int, threads: int) -> None:
    """Let this thread compute on `share` cores; the process, and so any thread to come, stays at `threads`."""
    with _SETTING:
        torch.set_num_threads(share)
        torch.get_num_threads()  # now this thread has asked what the process is set to, and never does again
        back = Thread(target=torch.set_num_threads, args=(threads,))
        back.start()
        back.join()
