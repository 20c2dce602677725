"""Calls of an encoder shared out over threads, each with a part of the processor.

One call on two cores waits at the end of every layer for the slower one; two calls on a core each never wait. torch
lets other threads run while it computes. How many cores a call takes is a setting of the whole process in torch: it is
put back when the calls are done.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

__all__ = ["in_order"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(work: Callable[[Item], Result], items: Sequence[Item], workers: int) -> Iterator[Result]:
    """`work` done on every item, results in the items' order; not many more than `workers` wait to be taken."""
    if workers < 2 or len(items) < 2:
        yield from map(work, items)
        return
    threads = torch.get_num_threads()
    share = max(1, threads // workers)
    with ThreadPoolExecutor(workers, "bertvision-walk", torch.set_num_threads, (share,)) as pool:
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
            pool.shutdown()
            torch.set_num_threads(threads)
