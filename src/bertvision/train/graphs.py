"""Steps of heads captured once and replayed: no Python and no kernel launches one by one.

A CUDA graph replays the kernels of a whole step (forward, backward, clipping, update) on the same memory. Each
group of heads has one graph for every shape of batch; the states are copied into one buffer that all of them
read. What differs from step to step (rates, keys of dropout) lives on the device and is set before the replay.
"""

import math

import torch
from torch import Tensor

from bertvision.encoder.captured import GraphCache
from bertvision.shapes import Float
from bertvision.states.base import StateBatch
from bertvision.train.group import Group

_WARM_UP = 3
"""Steps taken plainly before a group is captured: optimisers and libraries make their buffers in them."""


class Graphs:
    """Replays the steps of groups on a CUDA device; whatever cannot be captured runs as it is."""

    def __init__(self, batch_size: int, tokens: int, device: torch.device) -> None:
        self.batch_size, self.tokens, self.device = batch_size, tokens, device
        self._graphs = GraphCache("steps of heads")
        self._buffers: dict[str, Tensor] = {}
        self._static: dict[tuple[int, ...], StateBatch] = {}
        self._losses: dict[tuple[int, tuple[int, ...]], Tensor] = {}
        self._warm: dict[int, int] = {}
        self._groups: list[Group] = []  # held, so that no id is given twice

    def states_place(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor | None:
        """Where a source may write the states of a batch, so that they need not be copied here."""
        if shape[1] != self.batch_size:
            return None
        return self._view("states", shape, dtype)

    def place(self, batch: StateBatch) -> StateBatch:
        """The batch in the memory that graphs read; a batch of another size than usual stays where it is."""
        if len(batch.windows) != self.batch_size:
            return batch
        names = [
            n
            for n in ("states", "mask", "targets", "bounds", "pooled", "cls")
            if getattr(batch, n) is not None
        ]
        shape = tuple(batch.states.shape)
        if shape not in self._static:
            views = {n: self._view(n, getattr(batch, n).shape, getattr(batch, n).dtype) for n in names}
            self._static[shape] = StateBatch(**views, windows=batch.windows)
        static = self._static[shape]
        for name in names:
            ours, theirs = getattr(static, name), getattr(batch, name)
            if ours.data_ptr() != theirs.data_ptr():
                ours.copy_(theirs)
        return static

    def _view(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor in the buffer that all shapes share, made for the widest batch there can be."""
        size = math.prod(shape)
        if name not in self._buffers:
            # targets and bounds have no token axis and are as large in every batch
            axis = {"states": 2, "mask": 1}.get(name)
            most = size if axis is None else size // shape[axis] * self.tokens
            self._buffers[name] = torch.empty(most, dtype=dtype, device=self.device)
        return self._buffers[name][:size].view(shape)

    def forget(self) -> None:
        """Drop all graphs: the groups were made anew."""
        self._losses.clear()
        self._graphs.clear()
        self._warm.clear()
        self._groups.clear()

    def run(self, group: Group, batch: StateBatch, step: int) -> Float[Tensor, " k"]:
        """One step of the group, replayed where that is possible."""
        usual = batch is self._static.get(tuple(batch.states.shape))
        if not (usual and self._graphs.possible and group.pure and len(group.parts(batch)) == 1):
            return group.run(batch, step)
        done = self._warm.get(id(group), 0)
        if done < _WARM_UP:
            self._warm[id(group)] = done + 1
            self._groups.append(group)
            return group.run(batch, step)
        key = (id(group), tuple(batch.states.shape))
        if key not in self._graphs:
            losses = self._graphs.capture(key, lambda: group.run(batch, step))
            if losses is None:
                return group.run(batch, step)
            self._losses[key] = losses
        self._graphs.replay(key)
        return self._losses[key].clone()
