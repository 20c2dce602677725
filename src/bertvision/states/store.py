"""A store: the states of all windows of one data set under one encoder, in shards.

    ROOT/KEY/plan.json             what it holds, written first
             windows.safetensors   the windows with their labels: it opens without the data it was made from
             shard-00000.safetensors ...
             info.json             written last: the plan, checksums, mean and std of every state

Shards may come in any order and from any process. Without info.json the store is unfinished, and every shard that is
there can be read.
"""

import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertvision.data.kept import keep_tokens, kept_tokens
from bertvision.data.window_store import pack_windows, unpack_windows
from bertvision.data.windows import Windows
from bertvision.errors import ArtifactError
from bertvision.states.about import INFO, PLAN, WINDOWS_FILE, identity_of, read_info, read_plan
from bertvision.states.folder import Folder, open_folder
from bertvision.states.identity import SCHEMA, Identity
from bertvision.states.layout import SHARD_TOKENS, ShardPlan
from bertvision.states.shard import OpenShard, ShardLayout, ShardWriter, shard_name

__all__ = ["INFO", "PLAN", "Store", "create_store", "open_store"]

_OPEN = 4096
"""Shards held open: systems allow some ten thousand files to be mapped."""

logger = logging.getLogger(__name__)


class Store:
    """Reads and writes the shards of one store."""

    def __init__(self, folder: Folder, about: dict[str, Any], windows: Windows) -> None:
        self.folder, self.about, self.windows = folder, about, windows
        self.identity = identity_of(about)
        self.kept = windows
        if self.identity.positions != "all":
            self.kept = keep_tokens(windows, kept_tokens(windows, self.identity.positions))
        self.plan = ShardPlan(windows.lengths, self.kept.lengths, about["shard_tokens"])
        self._lock = threading.Lock()
        self._open: OrderedDict[int, OpenShard] = OrderedDict()
        self._checked = np.zeros(len(windows), np.bool_)
        self._checksums: list[int] | None = None
        self._finished: set[int] = set()

    @property
    def key(self) -> str:
        return self.identity.key

    @property
    def num_shards(self) -> int:
        return len(self.plan.shards)

    @property
    def nbytes(self) -> int:
        """Bytes of all shards once they are there, exactly."""
        return sum(self.layout(number).nbytes for number in range(self.num_shards))

    def layout(self, number: int) -> ShardLayout:
        return ShardLayout(self.identity, self.plan, number)

    def path(self, number: int) -> str:
        """A shard's file, for people."""
        return f"{self.folder.address}/{shard_name(number)}"

    # ---- what is there

    def finished(self, *, look: bool = True) -> set[int]:
        """Shards that are there; without `look` those that were there when it was looked last."""
        if look:
            names = set(self.folder.names())
            self._finished = {n for n in range(self.num_shards) if shard_name(n) in names}
        return self._finished

    def missing(self) -> list[int]:
        there = self.finished()
        return [number for number in range(self.num_shards) if number not in there]

    @property
    def info(self) -> dict[str, Any] | None:
        """What info.json says; None for an unfinished store, and where it is damaged: it can be written again."""
        return read_info(self.folder, self.about, self.num_shards)[0]

    # ---- reading

    def shard(self, number: int) -> OpenShard:
        """A shard, its index checked; `DamagedShard` where it is not what was written."""
        with self._lock:
            if number in self._open:
                self._open.move_to_end(number)
                return self._open[number]
            if self._checksums is None:
                info = self.info
                self._checksums = [] if info is None else [s["checksum"] for s in info["shards"]]
            opened = self._fresh(number)
            self._open[number] = opened
            if len(self._open) > _OPEN:
                self._open.popitem(last=False)
            return opened

    def _fresh(self, number: int) -> OpenShard:
        known = self._checksums[number] if self._checksums else None
        return OpenShard(self.folder, self.layout(number), self._checked, known)

    def find(self, windows: NDArray[np.int64]) -> list[tuple[int, int]]:
        """The shard of each window, and which of its windows it is."""
        return list(
            zip(self.plan.shard_of[windows].tolist(), self.plan.row_of[windows].tolist(), strict=True)
        )

    def read(self, window: int) -> tuple[NDArray[Any], NDArray[np.float32] | None]:
        """The states (n, L, H) of a window in the dtype they are stored in, and its scales (n, L) for int8."""
        return self.shard(int(self.plan.shard_of[window])).states(int(self.plan.row_of[window]))

    def verify(self, number: int) -> None:
        """Check every byte of a shard as it is now; `DamagedShard` says what is wrong."""
        self.forget(number)
        self.shard(number).verify()

    def forget(self, number: int) -> None:
        """Look at a shard as if it had never been read."""
        with self._lock:
            self._open.pop(number, None)
            self._checksums = None
            self._checked[self.plan.shards[number]] = False

    # ---- writing

    @contextmanager
    def write(self, number: int) -> Iterator[ShardWriter]:
        """Append the windows of a shard; it is there when the block ends well."""
        with self.folder.write(shard_name(number)) as file:
            writer = ShardWriter(self.layout(number), file)
            yield writer
            writer.finish()
        self._finished.add(number)

    def drop(self, number: int) -> None:
        """Remove a shard; the store is unfinished until it is made anew."""
        self.folder.remove(INFO)
        self.folder.remove(shard_name(number))
        self.forget(number)
        self._finished.discard(number)

    def finish(self) -> bool:
        """Write info.json if every shard is there; whoever comes last does it."""
        if self.missing():
            return False
        if self.info is not None:
            return True
        shards, moments = [], np.zeros((2, len(self.identity.layers)))
        for number in range(self.num_shards):
            shard = self.shard(number)
            moments += shard.moments
            shards.append(
                {
                    "file": shard.layout.name,
                    "windows": len(shard.layout.windows),
                    "tokens": int(shard.layout.offsets[-1]),
                    "bytes": shard.layout.nbytes,
                    "checksum": shard.checksum,
                }
            )
        mean = moments[0] / max(self.kept.num_tokens * self.identity.hidden, 1)
        square = moments[1] / max(self.kept.num_tokens * self.identity.hidden, 1)
        std = np.sqrt(np.maximum(square - mean**2, 0))
        info = self.about | {"mean": mean.tolist(), "std": std.tolist(), "shards": shards}
        self.folder.sweep()
        with self.folder.write(INFO) as file:
            file.write(_json(info))
        return True


def create_store(
    root: str | Path,
    identity: Identity,
    windows: Windows,
    *,
    encoder: str,
    data: str,
    shard_tokens: int = SHARD_TOKENS,
) -> Store:
    """The store of `identity` below `root`: the one that is there, finished or not, or a new one."""
    folder = open_folder(root) / identity.key
    if folder.size(PLAN) is None:
        about = {
            "schema": SCHEMA,
            "key": identity.key,
            "encoder": encoder,
            "data": data,
            "windows": len(windows),
            "tokens": windows.num_tokens,
            "shard_tokens": shard_tokens,
            "identity": asdict(identity),
        }
        # The windows first: whoever finds a plan finds them too. Of two processes the first one's plan counts.
        folder.create(WINDOWS_FILE, pack_windows(windows))
        folder.create(PLAN, _json(about))
    stored = _stored_windows(folder)
    if stored is None:
        logger.warning("%s/%s is damaged and written again", folder.address, WINDOWS_FILE)
        with folder.write(WINDOWS_FILE) as file:
            file.write(pack_windows(windows))
    return _open(folder, stored or windows, identity.key)


def open_store(address: str | Path | Folder, key: str = "") -> Store:
    """A store by its folder, whose name does not count unless it was asked for by its `key`.

    Needs neither its data nor its encoder.
    """
    folder = open_folder(address) if isinstance(address, (str, Path)) else address
    return _open(folder, _stored_windows(folder), key)


def _open(folder: Folder, windows: Windows | None, key: str) -> Store:
    if folder.size(PLAN) is None:
        raise ArtifactError(
            f"{folder.address} holds no stored states: `bertvision cache ls` shows what there is"
        )
    about, why = read_plan(folder, key)
    if not why and (windows is None or about["windows"] != len(windows)):
        why = f"{WINDOWS_FILE} is damaged"
    if windows is None or why:
        raise ArtifactError(
            f"{folder.address} is damaged ({why}): `bertvision cache rm` it and let it be made again"
        )
    return Store(folder, about, windows)


def _stored_windows(folder: Folder) -> Windows | None:
    try:
        return unpack_windows(folder.read(WINDOWS_FILE))
    except FileNotFoundError:
        return None


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
