"""One shard: a safetensors file whose size and header follow from the plan before anything is computed.

    states   (n, L, H)  the stored tokens of its windows, one window after another
    pad      (p,)       0 to 7 zeros, so that what follows can be read where it stands
    windows  (w,)       which windows, in the order of their tokens
    offsets  (w + 1,)   where each begins
    moments  (2, L)     float64, sums and sums of squares of each state's numbers
    scales   (n, L)     float32, int8 only: a number is int8 * scale
    crc      (w,)       CRC-32 of each window's states
    seal     (1,)       CRC-32 of the header and of everything between states and seal

States come first and are appended as they are computed; the rest, the tail, is a few bytes a window. Each byte is
guarded, also before the store is finished, and a reader checks just what it reads. info.json repeats the seals.
"""

import json
import struct
import zlib
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from bertvision.states.folder import Folder, will_need
from bertvision.states.identity import Identity
from bertvision.states.layout import ShardPlan

__all__ = ["DamagedShard", "OpenShard", "ShardLayout", "ShardWriter", "shard_name"]

_NAMES = {"fp32": "F32", "bf16": "BF16", "fp16": "F16", "int8": "I8"}  # as safetensors writes them
_STORAGE: dict[str, Any] = {"fp32": np.float32, "bf16": np.uint16, "fp16": np.float16, "int8": np.int8}
"""How numpy holds them; it has no bfloat16, whose bits travel as uint16."""


def shard_name(number: int) -> str:
    return f"shard-{number:05d}.safetensors"


class DamagedShard(Exception):
    """A shard that is not what was written; whoever has the encoder makes it anew."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(f"{shard_name(number)}: {why}")
        self.number, self.why = number, why


@dataclass(frozen=True)
class _Part:
    dtype: str
    storage: Any
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.storage).itemsize


class ShardLayout:
    """Names, shapes and places of everything in a shard."""

    def __init__(self, identity: Identity, plan: ShardPlan, number: int) -> None:
        self.number, self.name = number, shard_name(number)
        self.windows, self.offsets = plan.shards[number], plan.offsets(number)
        self.storage = _STORAGE[identity.dtype]
        tokens, layers = int(self.offsets[-1]), len(identity.layers)
        states = _Part(_NAMES[identity.dtype], self.storage, (tokens, layers, identity.hidden))
        # The widest numbers first: behind the pad all of them are aligned.
        self.tail_parts = {
            "pad": _Part("U8", np.uint8, (-states.nbytes % 8,)),
            "windows": _Part("I64", np.int64, self.windows.shape),
            "offsets": _Part("I64", np.int64, self.offsets.shape),
            "moments": _Part("F64", np.float64, (2, layers)),
            "scales": _Part("F32", np.float32, (tokens, layers)),
            "crc": _Part("U32", np.uint32, self.windows.shape),
            "seal": _Part("U32", np.uint32, (1,)),
        }
        if identity.dtype != "int8":
            del self.tail_parts["scales"]
        self.states = states
        self.header = self._header({"states": states, **self.tail_parts}, identity.key)
        self.tail_at = len(self.header) + states.nbytes
        self.nbytes = self.tail_at + sum(part.nbytes for part in self.tail_parts.values())

    def _header(self, parts: dict[str, _Part], key: str) -> bytes:
        entries: dict[str, Any] = {"__metadata__": {"bertvision": key, "shard": str(self.number)}}
        at = 0
        for name, part in parts.items():
            entries[name] = {
                "dtype": part.dtype,
                "shape": list(part.shape),
                "data_offsets": [at, at + part.nbytes],
            }
            at += part.nbytes
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return struct.pack("<Q", len(text)) + text

    def parse_tail(self, tail: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """Everything behind the states, as it stands in the file's bytes."""
        arrays, at = {}, 0
        for name, part in self.tail_parts.items():
            arrays[name] = tail[at : at + part.nbytes].view(part.storage).reshape(part.shape)
            at += part.nbytes
        return arrays

    def seal(self, tail: Any) -> int:
        """The checksum of the header and of the tail without its last 4 bytes, which hold it."""
        return zlib.crc32(memoryview(tail)[:-4], zlib.crc32(self.header))

    def states_bytes(self, row: int) -> tuple[int, int]:
        """Where a window's states begin and end in the file."""
        step = self.states.nbytes // max(int(self.offsets[-1]), 1)
        begin, end = self.offsets[row : row + 2].tolist()
        return len(self.header) + begin * step, len(self.header) + end * step


class ShardWriter:
    """Appends the windows of one shard, in their order, to an open file."""

    def __init__(self, layout: ShardLayout, file: BinaryIO) -> None:
        self.layout, self._file = layout, file
        self._lengths: list[int] = np.diff(layout.offsets).tolist()
        self._scales: list[NDArray[np.float32]] = []
        self._crc = np.zeros(len(layout.windows), np.uint32)
        self._row = 0
        self._moments = np.zeros(layout.tail_parts["moments"].shape)
        file.write(layout.header)

    def append(
        self,
        states: NDArray[Any],
        moments: NDArray[np.float64],
        scales: NDArray[np.float32] | None = None,
    ) -> None:
        """The states (n, L, H) of the next windows, as many as their tokens fill."""
        data, at = np.ascontiguousarray(states), 0
        assert data.dtype == self.layout.storage, "states come in the dtype they are stored in"
        while at < len(data):
            tokens = self._lengths[self._row]
            self._crc[self._row] = zlib.crc32(data[at : at + tokens].data.cast("B"))
            at, self._row = at + tokens, self._row + 1
        self._file.write(data.data.cast("B"))
        self._moments += moments
        if scales is not None:
            self._scales.append(scales)

    def finish(self) -> None:
        """Write the tail."""
        layout = self.layout
        assert self._row == len(layout.windows), "every window of the shard was appended"
        tail = np.zeros(layout.nbytes - layout.tail_at, np.uint8)
        parts = layout.parse_tail(tail)
        parts["windows"][:], parts["offsets"][:] = layout.windows, layout.offsets
        parts["crc"][:], parts["moments"][:] = self._crc, self._moments
        if "scales" in parts:
            parts["scales"][:] = np.concatenate(self._scales)
        parts["seal"][:] = layout.seal(tail)
        self._file.write(tail.data)


class OpenShard:
    """A shard that is read: header and tail checked at once, each window when it is first read."""

    def __init__(
        self, folder: Folder, layout: ShardLayout, checked: NDArray[np.bool_], checksum: int | None = None
    ) -> None:
        """`checked` (W,) marks the windows that were found right; it outlives the shard."""
        self.folder, self.layout, self._checked = folder, layout, checked
        size = folder.size(layout.name)
        if size is None:
            raise DamagedShard(layout.number, "the file is missing")
        if size != layout.nbytes:
            raise DamagedShard(layout.number, f"it has {size:,} bytes instead of {layout.nbytes:,}")
        try:
            self._map = folder.mapped(layout.name)
        except FileNotFoundError as error:
            raise DamagedShard(layout.number, "the file is missing") from error
        if self._bytes(0, len(layout.header)).tobytes() != layout.header:
            raise DamagedShard(layout.number, "its header is not the one that was written")
        tail = self._bytes(layout.tail_at, layout.nbytes)
        arrays = layout.parse_tail(tail)
        self.checksum = layout.seal(tail)
        known = np.array_equal(arrays["windows"], layout.windows) and np.array_equal(
            arrays["offsets"], layout.offsets
        )
        if not known or self.checksum != arrays["seal"][0] or checksum not in (None, self.checksum):
            raise DamagedShard(layout.number, "its index does not have the checksum it was written with")
        self.scales: NDArray[np.float32] | None = arrays.get("scales")
        self.moments: NDArray[np.float64] = arrays["moments"]
        self._crc = arrays["crc"]
        # Plain numbers: this is looked up for every window of every batch.
        self._windows: list[int] = layout.windows.tolist()
        self._offsets: list[int] = layout.offsets.tolist()
        self._whole: NDArray[Any] | None = None  # (n, L, H) of all windows, where they are mapped
        if self._map is not None:
            raw = self._map[len(layout.header) : layout.tail_at]
            self._whole = raw.view(layout.storage).reshape(layout.states.shape)

    def _bytes(self, begin: int, end: int) -> NDArray[np.uint8]:
        if self._map is not None:
            return self._map[begin:end]
        try:
            raw = self.folder.read(self.layout.name, begin, end)
        except FileNotFoundError as error:
            raise DamagedShard(self.layout.number, "the file is missing") from error
        if len(raw) != end - begin:
            raise DamagedShard(self.layout.number, f"it ends before byte {end:,}")
        return np.frombuffer(bytearray(raw), np.uint8)  # torch wants memory it may write to

    def states(self, row: int, *, check: bool = False) -> tuple[NDArray[Any], NDArray[np.float32] | None]:
        """The states (n, L, H) of a window as they are stored, and its scales (n, L).

        A window is checked when it is read the first time, and again where `check` asks for it.
        """
        window, (first, last) = self._windows[row], self._offsets[row : row + 2]
        if self._whole is not None:
            states = self._whole[first:last]
        else:
            raw = self._bytes(*self.layout.states_bytes(row))
            states = raw.view(self.layout.storage).reshape(last - first, *self.layout.states.shape[1:])
        if check or not self._checked[window]:
            if zlib.crc32(states.data.cast("B")) != self._crc[row]:
                self._checked[window] = False
                raise DamagedShard(
                    self.layout.number, f"window {window} does not have the checksum it was written with"
                )
            self._checked[window] = True
        return states, None if self.scales is None else self.scales[first:last]

    def expect(self, row: int) -> None:
        """Say that a window will be read soon: the system may fetch it from the disk in the meantime."""
        if self._whole is not None:
            first, last = self._offsets[row : row + 2]
            will_need(self._whole[first:last])

    def verify(self) -> None:
        """Check every window."""
        for row in range(len(self.layout.windows)):
            self.states(row, check=True)
