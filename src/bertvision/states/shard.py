"""A shard's file: the states of some windows as they are stored, each window with a checksum.

    scales   (n, L)     float32, int8 only: x is kept as round(x / s), s = max |x| / 127 over a token's H numbers
    crc      (w,)       CRC-32 of each window's states (and scales)
    states   (n, L, H)  the stored tokens of its windows, one window after another

The file is a safetensors file; its header holds the store's key and the shard's number. Every byte is checked: the
header when the file is opened, a window against its checksum when it is first read.
"""

import zlib
from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bertvision.artifacts import read_tensors, write_tensors
from bertvision.errors import ArtifactError, EncoderError
from bertvision.shapes import Float
from bertvision.states.config import StateType

if TYPE_CHECKING:
    from bertvision.states.store import Store

STORED = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.int8}
Encoded = tuple[Tensor, Tensor | None]
"""States (n, L, H) as they are stored, and the scales (n, L) of int8."""


class DamagedShard(Exception):
    """A shard that is not what was written."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.why = why


def encode(states: Float[Tensor, "L n H"], dtype: StateType) -> Encoded:
    """The states as they are stored. int8: round(x / s), s = max |x| / 127 over the H numbers of a token in a layer."""
    scales = None
    turned = states.transpose(0, 1)  # (n, L, H)
    if dtype == "int8":
        turned = turned.float()
        scale = turned.abs().amax(-1) / 127  # (n, L)
        # A scale that rounds by much would push numbers beyond 127.
        scale = torch.where(scale < torch.finfo(torch.float32).tiny, 0.0, scale)
        safe = torch.where(scale > 0, scale, torch.ones_like(scale))
        turned = (turned / safe[..., None]).round_()
        scales = scale.contiguous().cpu()
    stored = turned.to(STORED[dtype]).contiguous().cpu()
    if not bool((stored if scales is None else scales).isfinite().all()):
        if bool(states.isfinite().all()):
            raise EncoderError(f"states go beyond {dtype}: store them with --states.dtype bf16 or fp32")
        raise EncoderError("the encoder gives states that are no finite numbers: check its weights")
    return stored, scales


def load_into(target: Float[Tensor, "L n H"], stored: Tensor, scales: Tensor | None) -> None:
    """Write stored numbers (n, L, H) into a batch, in its dtype; with scales (n, L) they are int8."""
    target.copy_(stored.transpose(0, 1))
    if scales is not None:
        target.mul_(scales.T[..., None])


def _fresh(store: "Store", number: int, device: str) -> dict[str, Tensor]:
    """The tensors of a shard, without their numbers."""
    windows, layers = store.shards[number], len(store.identity.layers)
    tokens, dtype = int(store.kept[windows].sum()), store.identity.dtype
    shape = (tokens, layers, store.identity.hidden)
    tensors = {"crc": torch.empty(len(windows), dtype=torch.uint32, device=device)}
    tensors["states"] = torch.empty(shape, dtype=STORED[dtype], device=device)
    if dtype == "int8":
        tensors["scales"] = torch.empty(shape[:2], device=device)
    return tensors


def write_shard(store: "Store", number: int, parts: Iterable[Encoded]) -> None:
    """Write a shard from the states of its windows in their order, any number of windows a part."""
    tensors, done = _fresh(store, number, "cpu"), 0
    for states, scales in parts:
        end = done + len(states)
        assert states.dtype == tensors["states"].dtype
        tensors["states"][done:end] = states
        if scales is not None:
            tensors["scales"][done:end] = scales
        done = end
    offsets = store.offsets(number)
    assert done == offsets[-1]
    crc = [_checksum(tensors, first, last) for first, last in pairwise(offsets)]
    tensors["crc"] = torch.tensor(crc, dtype=torch.uint32)
    write_tensors(store.path(number), tensors, {"bertvision": store.key, "shard": str(number)})


class Shard:
    """The tensors of a shard, mapped from its file."""

    def __init__(self, store: "Store", number: int) -> None:
        self.windows, self.name = store.shards[number], store.path(number).name
        try:
            found, about = read_tensors(store.path(number))
        except ArtifactError as error:
            raise DamagedShard(self.name, str(error.__cause__ or "the file is missing")) from error
        wanted = _fresh(store, number, "meta")
        shapes = [{name: (t.dtype, t.shape) for name, t in one.items()} for one in (found, wanted)]
        header = {"format": "pt", "bertvision": store.key, "shard": str(number)}
        if shapes[0] != shapes[1] or {"format": "pt"} | about != header:
            raise DamagedShard(self.name, "its header is not the one that was written")
        self.states, self.scales = found["states"], found.get("scales")
        self._tensors = found
        # Plain numbers: they are looked up for every window of every batch.
        self._crc, self._offsets = found["crc"].tolist(), store.offsets(number)
        self._checked = [False] * len(self._crc)

    def place(self, row: int) -> tuple[int, int]:
        """The first token of a window and one past its last, once the window is checked."""
        first, last = self._offsets[row : row + 2]
        if not self._checked[row]:
            if _checksum(self._tensors, first, last) != self._crc[row]:
                raise DamagedShard(self.name, f"window {self.windows[row]} does not have its checksum")
            self._checked[row] = True
        return first, last


def _checksum(tensors: dict[str, Tensor], first: int, last: int) -> int:
    crc = 0
    for name in ("states", "scales"):
        if name in tensors:
            crc = zlib.crc32(tensors[name][first:last].view(torch.uint8).numpy().data, crc)
    return crc
