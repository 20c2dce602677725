"""Shards: which windows each of them holds, and its file, whose size and header are known before anything is computed.

    scales   (n, L)     float32, int8 only: x is kept as round(x / s), s = max |x| / 127 over a token's H numbers
    crc      (w,)       CRC-32 of each window's states (and scales)
    states   (n, L, H)  the stored tokens of its windows, one window after another

The file is a safetensors file; its header holds the store's key. Every byte is checked: the header against the one it
must be, a window against its checksum when it is first read.
"""

import json
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from bertvision.states.plan import SHARD_TOKENS, tokens_cut

if TYPE_CHECKING:
    from torch import Tensor

    from bertvision.states.store import Identity

StateType = Literal["fp32", "bf16", "fp16", "int8"]
Encoded = tuple[NDArray[Any], NDArray[np.float32] | None]
"""States (n, L, H) as they are stored, and the scales (n, L) of int8."""
_STORAGE: dict[str, tuple[str, Any]] = {
    "fp32": ("F32", np.float32), "bf16": ("BF16", np.uint16), "fp16": ("F16", np.float16), "int8": ("I8", np.int8),
}  # fmt: skip
"""What safetensors calls a dtype, and how numpy holds it: the bits of a bfloat16, which it lacks, as uint16."""


def shard_name(number: int) -> str:
    return f"shard-{number:05d}.safetensors"


class DamagedShard(Exception):
    """A shard that is not what was written."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(f"{shard_name(number)}: {why}")
        self.number, self.why = number, why


@dataclass(frozen=True)
class ShardPlan:
    """Shards over windows of `lengths` tokens, of which `kept` are stored."""

    lengths: NDArray[np.int64]
    """(W,) tokens the encoder reads."""
    kept: NDArray[np.int64]
    """(W,) tokens that are stored."""
    shard_tokens: int = SHARD_TOKENS

    @cached_property
    def shards(self) -> list[NDArray[np.int64]]:
        """Windows of each shard in the order they are encoded and stored in: the longest first."""
        cut = tokens_cut(self.lengths, self.shard_tokens)
        return [windows[np.argsort(-self.lengths[windows], kind="stable")] for windows in cut]

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """(W, 2) the shard of each window, and which of its windows it is."""
        found = np.empty((len(self.lengths), 2), np.int64)
        for number, windows in enumerate(self.shards):
            found[windows, 0], found[windows, 1] = number, np.arange(len(windows))
        return found


class ShardLayout:
    """Where everything stands in a shard's file."""

    def __init__(self, identity: "Identity", plan: ShardPlan, number: int) -> None:
        self.number, self.dtype, self.windows = number, identity.dtype, plan.shards[number]
        self.offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(plan.kept[self.windows])])
        """(w + 1,) where each window begins in the stored tokens, and where the last ends."""
        name, self.storage = _STORAGE[identity.dtype]
        self.scales = (int(self.offsets[-1]), len(identity.layers))  # (n, L)
        self.shape = (*self.scales, identity.hidden)
        parts: dict[str, tuple[str, tuple[int, ...], int]] = {}
        if identity.dtype == "int8":
            parts["scales"] = ("F32", self.scales, 4)
        parts["crc"] = ("U32", self.windows.shape, 4)
        parts["states"] = (name, self.shape, np.dtype(self.storage).itemsize)
        entries: dict[str, Any] = {"__metadata__": {"bertvision": identity.key, "shard": str(number)}}
        at = 0
        for part, (dtype, shape, size) in parts.items():
            end = at + int(np.prod(shape, dtype=np.int64)) * size
            entries[part] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
            at = end
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self.header = struct.pack("<Q", len(text)) + text
        begin = len(self.header)
        self.places = {part: tuple(begin + o for o in entries[part]["data_offsets"]) for part in parts}
        """First byte and end of each part."""
        self.nbytes = begin + at


def write_shard(layout: ShardLayout, file: BinaryIO, parts: Iterable[Encoded]) -> None:
    """Write a shard from the states of its windows in their order, any number of windows a part."""
    crc, all_scales = list[int](), list[NDArray[np.float32]]()
    file.write(layout.header)
    file.seek(layout.places["states"][0])
    for states, scales in parts:
        assert states.dtype == layout.storage
        offsets = layout.offsets[len(crc) :] - layout.offsets[len(crc)]
        for first, last in pairwise(offsets[offsets <= len(states)].tolist()):
            crc.append(_checksum(states[first:last], None if scales is None else scales[first:last]))
        file.write(states.data.cast("B"))
        if scales is not None:
            all_scales.append(scales)
    assert len(crc) == len(layout.windows)
    file.seek(len(layout.header))
    for part in (*all_scales, np.array(crc, np.uint32)):
        file.write(part.data.cast("B"))


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
        if "scales" in parts:
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
        scales = None if self.scales is None else as_tensor(self.scales, "fp32")
        return as_tensor(self.states, self.layout.dtype), scales


def as_tensor(stored: NDArray[Any], dtype: str) -> "Tensor":
    """Stored numbers as torch sees them, without a copy."""
    import torch

    if dtype == "bf16":
        return torch.from_numpy(stored.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(stored)


def _checksum(states: NDArray[Any], scales: NDArray[np.float32] | None) -> int:
    crc = zlib.crc32(states.data.cast("B"))
    return crc if scales is None else zlib.crc32(scales.data.cast("B"), crc)
