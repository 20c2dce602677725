"""Several processes that train as one: who this is, what is shared, and how all of them end.

`torchrun` and `accelerate launch` start every process with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its
environment. A step's batch of B windows is the same as with one process. Rank r of R takes every R-th window,

    loss of rank r = sum over its windows / B        gradient = sum over ranks

so clipping and updates, which every rank makes by itself, are those of one process up to rounding. Rank 0 alone
writes files and prints. Its decisions (JSON) and the waiting for its work use a gloo group of their own, in which
others may wait for hours; gradients use NCCL on GPUs. With one process every method does nothing.

accelerate and torchrun only launch the processes: accelerate's PartialState has no group that may wait that long, no
bucketed sum and no way to print a mistake of all ranks once.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
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


T = TypeVar("T")

_BUCKET = 64 << 20
"""Bytes that travel in one collective."""
_STEP = timedelta(hours=1)
"""How long a rank waits for the gradients of another."""
_PATIENCE = timedelta(days=30)
"""How long ranks wait for what rank 0 does alone."""
_SAME = 10.0
"""Seconds that a failing rank waits for rank 0 to fail with the same sentence."""
_LAST = 0.5
"""Seconds in which rank 0 may print its error: a launcher that sees another rank end kills it."""


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
        self._store: Store | None = None
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
            parallel._store = PrefixStore("bertvision", found)
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
        """Whether this is the process that writes files and prints."""
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
        """Rank 0's JSON value; what other ranks pass is ignored."""
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
            shared: Any = self.share(None)
            if "failed" in shared:
                raise SystemExit(shared["failed"])  # rank 0 reports the error
            return shared["result"]
        try:
            result = function()
        except BaseException as error:
            self.share({"failed": getattr(error, "exit_code", 1)})
            raise
        self.share({"result": result})
        return result

    def wait(self) -> None:
        """Go on when all ranks have come here."""
        if not self.alone:
            with self._peers():
                distributed.barrier(group=self._waiting)

    # ---- the end

    def __enter__(self) -> "Parallel":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.alone:
            return
        if error is None:
            self.wait()
            self._leave()
            return
        if not self.main:
            quiet = error if isinstance(error, SystemExit) else None
            if isinstance(error, KeyboardInterrupt):  # every rank gets it, and rank 0 reports it
                quiet = SystemExit(130)
            elif isinstance(error, BertvisionError) and self._same_as_main(str(error)):
                quiet = SystemExit(error.exit_code)
            if quiet is not None:
                time.sleep(_LAST)
                raise quiet
        elif isinstance(error, BertvisionError):
            self._publish(str(error))
        if distributed.is_initialized() and "nccl" not in distributed.get_backend():
            self._leave()  # NCCL would wait for ranks that are busy

    def _leave(self) -> None:
        # A group that is still held here would end with the interpreter, when its threads cannot be joined any more.
        self._waiting = None
        if self._joined and distributed.is_initialized():
            distributed.destroy_process_group()
        self._joined = False

    # All ranks make the same mistakes, and a mistake should be printed once: rank 0 publishes its sentence, and a rank
    # with the same one stays silent.

    def _publish(self, sentence: str) -> None:
        """Rank 0: show the sentence of its error, and stay until it is read: this process may be the store."""
        with suppress(RuntimeError):
            if self._store is not None:
                self._store.set("failed", sentence)
                self._until([f"read/{rank}" for rank in range(1, self.world)], _LAST)

    def _same_as_main(self, sentence: str) -> bool:
        """Another rank: whether rank 0 fails with the same sentence."""
        if self._store is None:
            return False
        try:
            self._until(["failed"], _SAME)
            same = self._store.check(["failed"]) and self._store.get("failed").decode() == sentence
            self._store.set(f"read/{self.rank}", "")
            return same
        except RuntimeError:
            return True  # rank 0, which is the store, is gone

    def _until(self, keys: list[str], seconds: float) -> None:
        """Wait until the store has these keys, but not for long."""
        assert self._store is not None
        end = time.monotonic() + seconds
        while not self._store.check(keys) and time.monotonic() < end:
            time.sleep(0.02)

    @contextmanager
    def _peers(self) -> Iterator[None]:
        """Around a collective: where another process is gone, rank 0 reports it and all end."""
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
