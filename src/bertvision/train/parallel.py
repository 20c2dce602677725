"""Several processes that train as one.

`torchrun` and `accelerate launch` start every process with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its
environment. A step's batch of B windows is the same as with one process. Rank r of R takes every R-th window,

    loss of rank r = sum over its windows / B        gradient = sum over ranks

so clipping and updates, which every rank makes by itself, are those of one process up to rounding. Rank 0 alone
writes files and prints; its decisions reach the others through gloo, gradients through NCCL on GPUs. With one process
every method does nothing.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
import torch.distributed as distributed
from numpy.typing import NDArray
from torch import Tensor

from bertvision import console
from bertvision.errors import ConfigError, TrainingError

T = TypeVar("T")

_PATIENCE = timedelta(days=7)
"""How long ranks wait for each other: rank 0 scores snapshots and writes files alone."""


def rank_and_world() -> tuple[int, int]:
    """Which of how many processes this is: of a process group, or as torchrun and accelerate set the environment."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class Part(NamedTuple):
    """What one rank reads of a batch."""

    indices: NDArray[np.int64]
    weight: float  # 1, or 0 where this rank has no window of its own and only takes part


class Parallel:
    """One of `world` processes; a context manager that leaves the group it joined."""

    def __init__(self, rank: int = 0, world: int = 1, *, joined: bool = False) -> None:
        self.rank, self.world, self._joined = rank, world, joined
        self.main = rank == 0  # the process that writes files and prints
        self.alone = world == 1

    @classmethod
    def start(cls, device: torch.device) -> "Parallel":
        """Join the processes that the environment names; alone where it names none."""
        rank, world = rank_and_world()
        if world < 2:
            return cls()
        joins = not distributed.is_initialized()
        if joins:
            _check(device)
            # Imported while there is a group, its functions would keep the group as a default value until the
            # interpreter ends, where a thread of gloo that still holds a tensor aborts the process.
            import torch.distributed.nn  # noqa: F401

            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            distributed.init_process_group(backend, timeout=_PATIENCE)
        if rank:
            console.quiet()
        return cls(rank, world, joined=joins)

    def parts(self, indices: NDArray[np.int64], *, unit: int = 1, cut: int = 1) -> list[Part]:
        """This rank's windows of a batch in at most `cut` parts, as many on every rank.

        The batch is shared out before it is cut, so that no rank waits while others have several windows. `unit`
        neighbours, which are one example, stay together.
        """
        units = indices.reshape(-1, unit)
        most = -(-len(units) // self.world)
        pieces = np.array_split(units[self.rank :: self.world], min(cut, most))
        return [Part(p.reshape(-1), 1.0) if len(p) else Part(indices[:unit], 0.0) for p in pieces]

    def sum_(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over ranks."""
        if not self.alone:
            works: list[Any] = [distributed.all_reduce(tensor, async_op=True) for tensor in tensors]
            for work in works:
                work.wait()

    def mean_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its mean over ranks."""
        if not self.alone and tensors:
            self.sum_(tensors)
            torch._foreach_div_(list(tensors), self.world)  # pyright: ignore[reportPrivateImportUsage]

    def share(self, value: T) -> T:
        """Rank 0's value."""
        values = [value]
        if not self.alone:
            distributed.broadcast_object_list(values, 0)
        return values[0]

    def every(self, value: T) -> list[T]:
        """The value of each rank."""
        values = [value] * self.world
        if not self.alone:
            distributed.all_gather_object(values, value)
        return values

    def on_main(self, function: Callable[[], T]) -> T:
        """Rank 0 calls it while the others wait; its result for everyone. Its error, which it reports, ends all."""
        result: Any = None
        try:
            result = function() if self.main else None
        except BaseException as error:
            self.share((getattr(error, "exit_code", 1), None))
            raise
        code, result = self.share((0, result))
        if code:
            raise SystemExit(code)
        return result

    def __enter__(self) -> "Parallel":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
        if self._joined:
            if error is None:
                self.every(None)  # rank 0 holds the store through which the others leave
            # NCCL would wait for ranks that are busy.
            if error is None or "nccl" not in distributed.get_backend():
                distributed.destroy_process_group()
        # What gloo says of a process that is gone.
        if isinstance(error, RuntimeError) and "Connection" in str(error):
            raise TrainingError(
                "another process ended before the work was done: run the same command again, it goes on from the "
                "last checkpoint"
            ) from error


ALONE = Parallel()


def _check(device: torch.device) -> None:
    """Refuse what cannot become a group."""
    if os.environ.get("ACCELERATE_USE_FSDP", "").lower() in ("1", "true", "yes"):
        raise ConfigError(
            "--use_fsdp splits an encoder over processes, and bertvision keeps it whole: leave it out"
        )
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise ConfigError(
            f"WORLD_SIZE is {os.environ.get('WORLD_SIZE')} but no {' and no '.join(missing)} is set: start the "
            "processes with `accelerate launch -m bertvision ...` or torchrun, or unset WORLD_SIZE"
        )
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"several processes cannot share --device {device.type}: use --device cpu")
    wanted, there = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
    if device.type == "cuda" and wanted > there:
        raise ConfigError(f"{wanted} processes on a machine with {there} GPUs: start at most {there}")
