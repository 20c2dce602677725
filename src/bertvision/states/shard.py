"""One shard: a safetensors file whose size and header follow from the plan before anything is computed.

    scales   (n, L)     float32, int8 only: a number is int8 * scale
    crc      (w,)       CRC-32 of each window's states (and scales)
    states   (n, L, H)  the stored tokens of its windows, one window after another

Which windows these are follows from the plan (layout.py). The header holds the store's key. Every byte is checked: the
header against the one it must be, a window against its checksum when it is first read.
"""

import json
import struct
import zlib
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from bertvision.states.identity import Identity
from bertvision.states.layout import ShardPlan

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["DamagedShard", "Shard", "ShardLayout", "ShardWriter", "shard_name"]

_NAMES = {"fp32": "F32", "bf16": "BF16", "fp16": "F16", "int8": "I8"}  # as safetensors writes them
_STORAGE: dict[str, Any] = {"fp32": np.float32, "bf16": np.uint16, "fp16": np.float16, "int8": np.int8}
"""How numpy holds them; it has no bfloat16, whose bits are kept as uint16."""


def shard_name(number: int) -> str:
    return f"shard-{number:05d}.safetensors"


class DamagedShard(Exception):
    """A shard that is not what was written; whoever has the encoder makes it again."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(f"{shard_name(number)}: {why}")
        self.number, self.why = number, why


class ShardLayout:
    """Where everything stands in a shard's file."""

    def __init__(self, identity: Identity, plan: ShardPlan, number: int) -> None:
        self.number, self.name = number, shard_name(number)
        self.windows, self.offsets = plan.shards[number], plan.offsets(number)
        self.storage, self.dtype = _STORAGE[identity.dtype], identity.dtype
        tokens, layers = int(self.offsets[-1]), len(identity.layers)
        self.shape = (tokens, layers, identity.hidden)
        self.scales = (tokens, layers) if identity.dtype == "int8" else None
        parts: dict[str, tuple[str, tuple[int, ...], int]] = {}
        if self.scales:
            parts["scales"] = ("F32", self.scales, 4)
        parts["crc"] = ("U32", self.windows.shape, 4)
        parts["states"] = (_NAMES[identity.dtype], self.shape, np.dtype(self.storage).itemsize)
        entries: dict[str, Any] = {"__metadata__": {"bertvision": identity.key, "shard": str(number)}}
        self.places: dict[str, tuple[int, int]] = {}
        at = 0
        for name, (dtype, shape, size) in parts.items():
            end = at + int(np.prod(shape, dtype=np.int64)) * size
            entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
            self.places[name] = (at, end)
            at = end
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self.header = struct.pack("<Q", len(text)) + text
        self.places = {n: (a + len(self.header), b + len(self.header)) for n, (a, b) in self.places.items()}
        self.nbytes = len(self.header) + at


class ShardWriter:
    """Appends the windows of one shard, in their order, to an open file."""

    def __init__(self, layout: ShardLayout, file: BinaryIO) -> None:
        self.layout, self._file = layout, file
        self._crc = list[int]()
        self._scales = list[NDArray[np.float32]]()
        file.write(layout.header)
        file.seek(layout.places["states"][0])

    def append(self, states: NDArray[Any], scales: NDArray[np.float32] | None = None) -> None:
        """The states (n, L, H) of the next windows, as many as their tokens fill."""
        data, done = np.ascontiguousarray(states), len(self._crc)
        if data.dtype != self.layout.storage:
            raise TypeError(f"states are {data.dtype}, the shard is {self.layout.dtype}")
        offsets = self.layout.offsets[done:] - self.layout.offsets[done]
        for first, last in pairwise(offsets[offsets <= len(data)].tolist()):
            self._crc.append(_checksum(data[first:last], None if scales is None else scales[first:last]))
        self._file.write(data.data.cast("B"))
        if scales is not None:
            self._scales.append(scales)

    def finish(self) -> None:
        """Write what stands before the states."""
        layout = self.layout
        if len(self._crc) != len(layout.windows):
            raise ValueError(f"{layout.name} has {len(self._crc)} of {len(layout.windows)} windows")
        self._file.seek(len(layout.header))
        for scales in self._scales:
            self._file.write(np.ascontiguousarray(scales).data.cast("B"))
        self._file.write(np.array(self._crc, np.uint32).data.cast("B"))


class Shard:
    """The content of a shard: its header is checked at once, each window when it is first read."""

    def __init__(self, layout: ShardLayout, content: NDArray[np.uint8]) -> None:
        """`content` is the file in memory, or mapped there."""
        if len(content) != layout.nbytes:
            raise DamagedShard(layout.number, f"it has {len(content):,} bytes instead of {layout.nbytes:,}")
        if content[: len(layout.header)].tobytes() != layout.header:
            raise DamagedShard(layout.number, "its header is not the one that was written")
        parts = {name: content[begin:end] for name, (begin, end) in layout.places.items()}
        self.layout = layout
        self.states: NDArray[Any] = parts["states"].view(layout.storage).reshape(layout.shape)
        self.scales: NDArray[np.float32] | None = None
        if layout.scales:
            self.scales = parts["scales"].view(np.float32).reshape(layout.scales)
        # Plain numbers: they are looked up for every window of every batch.
        self._crc: list[int] = parts["crc"].view(np.uint32).tolist()
        self._offsets: list[int] = layout.offsets.tolist()
        self._checked = [False] * len(self._crc)

    def place(self, row: int) -> tuple[int, int]:
        """The first token of a window and one past its last, once the window is checked."""
        first, last = self._offsets[row : row + 2]
        if not self._checked[row]:
            scales = None if self.scales is None else self.scales[first:last]
            if _checksum(self.states[first:last], scales) != self._crc[row]:
                window = self.layout.windows[row]
                raise DamagedShard(self.layout.number, f"window {window} does not have its checksum")
            self._checked[row] = True
        return first, last

    @cached_property
    def tensors(self) -> "tuple[Tensor, Tensor | None]":
        """States (n, L, H) and scales (n, L) as torch sees them, without a copy."""
        from bertvision.states.codec import as_tensor

        scales = None if self.scales is None else as_tensor(self.scales, "fp32")
        return as_tensor(self.states, self.layout.dtype), scales

    def verify(self) -> None:
        """Check every window."""
        for row in range(len(self._crc)):
            self.place(row)


def _checksum(states: NDArray[Any], scales: NDArray[np.float32] | None) -> int:
    crc = zlib.crc32(states.data.cast("B"))
    return crc if scales is None else zlib.crc32(np.ascontiguousarray(scales).data.cast("B"), crc)
