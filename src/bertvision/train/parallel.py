"""Several processes that train as one: who this is, what is shared, and how all of them end.

`torchrun` and `accelerate launch` start every process with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its
environment. A step's batch of B windows is the same as with one process. Rank r of R takes every R-th window,

    loss of rank r = sum over its windows / B        gradient = sum over ranks

so clipping and updates, which every rank makes by itself, are those of one process up to rounding. Rank 0 alone
writes files and talks. What it decides (JSON) and what it must do alone goes through a gloo group of its own, in
which others may wait for hours; gradients use NCCL on GPUs. With one process every method does nothing.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch
import torch.distributed as distributed
from numpy.typing import NDArray
from torch import Tensor

from bertvision import console
from bertvision.errors import BertvisionError, ConfigError, TrainingError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

__all__ = ["ALONE", "Parallel", "Part", "rank_and_world", "rank_parts"]

T = TypeVar("T")

_BUCKET = 64 << 20
"""Bytes that travel in one collective."""
_STEP = timedelta(hours=1)
"""How long a rank waits for the gradients of another."""
_PATIENCE = timedelta(days=30)
"""How long ranks wait for what rank 0 does alone."""
_SAME = 10.0
"""Seconds a rank that fails waits to see whether rank 0 fails with the same sentence."""
_LAST = 0.5
"""Seconds for rank 0's last words: a launcher that sees another rank end ends it as well."""


def rank_and_world() -> tuple[int, int]:
    """Which of how many processes this is: of a process group, or as torchrun and accelerate set the environment."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    rank, world = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if rank.isdigit() and world.isdigit() and int(rank) < int(world):
        return int(rank), int(world)
    return 0, 1


@dataclass(frozen=True)
class Part:
    """What one rank reads of a batch."""

    indices: NDArray[np.int64]
    weight: float
    """1, or 0 where this rank has no window of its own and only takes part."""


class Parallel:
    """One of `world` processes; as a context manager it ends with the others."""

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        self.rank, self.world = rank, world
        self._waiting: distributed.ProcessGroup | None = None
        self._words: Store | None = None
        self._joined = False

    @classmethod
    def start(cls, device: torch.device) -> "Parallel":
        """Join the processes that the environment names; alone where it names none."""
        rank, world = rank_and_world()
        if world < 2:
            return cls()
        parallel = cls(rank, world)
        _check(device)
        if not distributed.is_initialized():
            from torch.distributed.distributed_c10d import PrefixStore
            from torch.distributed.rendezvous import rendezvous

            found, rank, world = next(iter(rendezvous("env://", timeout=_STEP)))
            parallel._words = PrefixStore("bertvision", found)
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            distributed.init_process_group(
                backend,
                store=PrefixStore("group", found),
                rank=rank,
                world_size=world,
                timeout=_STEP,
            )
            parallel._joined = True
        if rank:
            console.quiet()
        waiting = distributed.new_group(backend="gloo", timeout=_PATIENCE)
        parallel._waiting = cast("distributed.ProcessGroup", waiting)
        return parallel

    @property
    def main(self) -> bool:
        """Whether this is the process that writes files and talks."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        return self.world == 1

    # ---- what ranks give each other

    def part(self, indices: NDArray[np.int64], *, unit: int = 1) -> Part:
        """This rank's windows of a batch; `unit` neighbours are never parted."""
        if self.alone:
            return Part(indices, 1.0)
        units = np.arange(len(indices)) // unit
        own = indices[units % self.world == self.rank]
        return Part(own, 1.0) if len(own) else Part(indices[:unit], 0.0)

    def sum_(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over ranks, in as few collectives as there are buckets."""
        if self.alone:
            return
        with self._peers(), torch.no_grad():
            for bucket in _buckets(tensors):
                flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
                distributed.all_reduce(flat)
                pieces = flat.split([tensor.numel() for tensor in bucket])
                for tensor, piece in zip(bucket, pieces, strict=True):
                    tensor.copy_(piece.view(tensor.shape))

    def mean_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its mean over ranks."""
        if self.alone or not tensors:
            return
        self.sum_(tensors)
        torch._foreach_div_(list(tensors), self.world)  # pyright: ignore[reportPrivateImportUsage]

    def share(self, value: T) -> T:
        """Rank 0's JSON value; what other ranks pass is not looked at."""
        if self.alone:
            return value
        with self._peers():
            text = json.dumps(value).encode() if self.main else b""
            size = torch.tensor([len(text)])
            distributed.broadcast(size, 0, group=self._waiting)
            content = torch.empty(int(size), dtype=torch.uint8)
            if self.main:
                content.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
            distributed.broadcast(content, 0, group=self._waiting)
        return value if self.main else json.loads(content.numpy().tobytes())

    def every(self, tensor: Tensor) -> list[Tensor]:
        """The tensor (on the CPU, of one size everywhere) of each rank."""
        if self.alone:
            return [tensor]
        found = [torch.empty_like(tensor) for _ in range(self.world)]
        with self._peers():
            distributed.all_gather(found, tensor.contiguous(), group=self._waiting)
        return found

    def on_main(self, function: Callable[[], T]) -> T:
        """Rank 0 calls it while the others wait; its JSON result for everyone. Its error ends every rank."""
        if self.alone:
            return function()
        if not self.main:
            told: Any = self.share(None)
            if "failed" in told:
                raise SystemExit(told["failed"])  # rank 0 has said why
            return told["result"]
        failed = True
        try:
            result = function()
            failed = False
        finally:
            if failed:
                self.share({"failed": getattr(sys.exception(), "exit_code", 1)})
        self.share({"result": result})
        return result

    def wait(self) -> None:
        """Go on when all ranks have come here."""
        if not self.alone:
            with self._peers():
                distributed.barrier(group=self._waiting)

    # ---- the end

    def stop(self) -> None:
        """Leave together."""
        self.wait()
        self._leave()

    def __enter__(self) -> "Parallel":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.alone:
            return
        if error is None:
            self.stop()
            return
        quiet = isinstance(error, SystemExit | KeyboardInterrupt)
        if isinstance(error, KeyboardInterrupt):  # every rank gets it, and one tells
            error = error if self.main else SystemExit(130)
        if isinstance(error, BertvisionError) and self._told(str(error)):
            quiet, error = True, SystemExit(error.exit_code)
        if quiet and not self.main:
            time.sleep(_LAST)
            raise error
        if distributed.is_initialized() and "nccl" not in distributed.get_backend():
            self._leave()  # NCCL would wait for ranks that are busy

    def _leave(self) -> None:
        # A group that is still held here would end with the interpreter, when its threads cannot be joined any more.
        self._waiting = None
        if self._joined and distributed.is_initialized():
            distributed.destroy_process_group()
        self._joined = False

    def _told(self, sentence: str) -> bool:
        """Whether rank 0 tells this sentence: all ranks make the same mistake, and it should be read once."""
        if self._words is None:
            return False
        try:
            if self.main:
                self._words.set("failed", sentence)
                # It may be this process that holds the words: they must be read before it is gone.
                self._until([f"read/{rank}" for rank in range(1, self.world)], _LAST)
                return False
            self._until(["failed"], _SAME)
            same = self._words.check(["failed"]) and self._words.get("failed").decode() == sentence
            self._words.set(f"read/{self.rank}", "")
            return same
        except RuntimeError:
            return True  # rank 0, which holds the words, is gone

    def _until(self, words: list[str], seconds: float) -> None:
        """Wait for words of other ranks, but not for long."""
        assert self._words is not None
        end = time.monotonic() + seconds
        while not self._words.check(words) and time.monotonic() < end:
            time.sleep(0.02)

    @contextmanager
    def _peers(self) -> Iterator[None]:
        """A collective: where another process is gone rank 0 says so, and all end."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if not self.main:
                raise SystemExit(TrainingError.exit_code) from error
            raise TrainingError(
                "another process ended before the work was done: run the same command again, it goes on from the "
                "last checkpoint"
            ) from error


ALONE = Parallel()
"""One process."""


def rank_parts(
    indices: NDArray[np.int64], parallel: Parallel, *, group: int = 1, accumulate: int = 1
) -> list[Part]:
    """This rank's windows of a batch in at most `accumulate` parts, as many on every rank.

    The batch is shared out before it is cut, so that no rank waits while others have several windows. Windows of one
    example (`group`) stay together.
    """
    own = parallel.part(indices, unit=group)
    most = -(-len(indices) // (group * parallel.world))
    pieces = np.array_split(own.indices.reshape(-1, group), min(accumulate, most))
    return [Part(p.reshape(-1), own.weight) if len(p) else Part(indices[:group], 0.0) for p in pieces]


def _check(device: torch.device) -> None:
    """Refuse what cannot become a group."""
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing and not distributed.is_initialized():
        raise ConfigError(
            f"WORLD_SIZE is {os.environ.get('WORLD_SIZE')} but no {' and no '.join(missing)} is set: start the "
            "processes with `accelerate launch -m bertvision ...` or torchrun, or unset WORLD_SIZE"
        )
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"several processes cannot share --device {device.type}: use --device cpu")
    if device.type == "cuda":
        there, wanted = torch.cuda.device_count(), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        if wanted > there:
            raise ConfigError(
                f"{wanted} processes on a machine with {there} GPU{'s' if there > 1 else ''}: start at most {there}, "
                "or use --device cpu"
            )
        if wanted > 1 and device.index is None:
            raise ConfigError("--device cuda is one GPU for all processes: use --device auto")


def _buckets(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """The tensors by kind and place, in lists of about `_BUCKET` bytes; the same on every rank."""
    buckets: list[list[Tensor]] = []
    room: dict[Any, int] = {}
    open_: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        kind = (tensor.dtype, tensor.device)
        if kind not in open_ or room[kind] < tensor.nbytes:
            open_[kind], room[kind] = [], _BUCKET
            buckets.append(open_[kind])
        open_[kind].append(tensor)
        room[kind] -= tensor.nbytes
    return buckets
