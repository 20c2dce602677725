"""Several processes that fill one store: which one this is, and how all of them end together.

`torchrun` starts them with RANK and WORLD_SIZE in the environment, and `accelerate launch` sets the same variables;
machines that share no network get them by hand. A process group is not needed, but where there is one it counts.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import cast

import torch.distributed

from bertvision.errors import OutputError

__all__ = ["ending_together", "rank_and_world"]

_PATIENCE = timedelta(days=30)
"""How long a rank that is done waits for the others: they may have hours of work left."""


def rank_and_world() -> tuple[int, int]:
    """Which of how many processes this is: of a process group, or as torchrun and accelerate tell by environment."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    rank, world = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if rank.isdigit() and world.isdigit() and int(rank) < int(world):
        return int(rank), int(world)
    return 0, 1


@contextmanager
def ending_together(world: int) -> Iterator[None]:
    """Leave the block when all `world` ranks of the process group have; without such a group nobody waits."""
    distributed = torch.distributed
    grouped = distributed.is_available() and distributed.is_initialized()
    if world < 2 or not grouped or distributed.get_world_size() != world:
        yield
        return
    # A group of its own: the caller's may give up after minutes, or keep a GPU busy with waiting.
    group = cast("torch.distributed.ProcessGroup", distributed.new_group(backend="gloo", timeout=_PATIENCE))
    try:
        yield
        try:
            distributed.barrier(group)
        except RuntimeError as error:
            raise OutputError(
                "another rank ended before its shards were done: run the same command again, "
                "it makes only what is missing"
            ) from error
    finally:
        distributed.destroy_process_group(group)
