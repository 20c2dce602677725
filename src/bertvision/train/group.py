"""Heads that are computed together: one, or several of equal shape as one batched computation.

Equal-shaped heads (a sweep over rates, seeds, dropout) have their parameters stacked, (k, ...), and one vmapped pass
gives all k losses and gradients. The heads stay modules of their own: their parameters are views into the stack, and
each is updated by its own optimiser.

Memory is bounded by `FitConfig.activation_gb`: a stack takes as many heads as fit at a whole batch; a head that does
not fit alone reads its batch in parts, adding up gradients; one that cannot even keep one window recomputes
(`ConvHead.recompute`).

Of several processes each has some windows of a batch. Gradients and losses are summed over ranks before the update, so
all ranks keep the same heads. Batch norm takes the statistics of a rank's own windows, as it does of a part's; the
running ones, which evaluation uses, are the mean over ranks.

On a GPU a CUDA graph replays the kernels of a whole step (forward, backward, clipping, update) on the same memory: no
Python, no launches one by one. Each group has a graph for every shape of batch; the states are copied into one buffer
that all of them read. What differs from step to step (rates, keys of dropout) lives on the device and is set before.
"""

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from bertvision.encoder.batch import GraphCache
from bertvision.encoder.encoder import Encoder
from bertvision.heads import fused
from bertvision.heads.base import Head, rows_at_once, running_statistics
from bertvision.heads.layers import Dropout, set_noise
from bertvision.heads.papers.cnn import ConvHead
from bertvision.heads.spec import HeadSpec
from bertvision.shapes import Float
from bertvision.states.base import StateBatch
from bertvision.train.config import OptimConfig
from bertvision.train.optim import apply_gradients, learning_rate, noise_numbers, seeded, set_rate
from bertvision.train.parallel import ALONE, Parallel

Loss = Callable[[Tensor, StateBatch], Tensor]  # (logits, batch) -> one loss a window (B,)
_WARM_UP = 3
"""Steps taken plainly before a group is captured: optimisers and libraries make their buffers in them."""
Share = tuple[int, float]
"""B of the whole batch, and the weight of this rank's windows of it: 0 where they are another rank's."""


@dataclass
class FittedHead:
    """A head and what happened to it; everything but `head` survives in a checkpoint."""

    name: str
    spec: HeadSpec
    seed: int
    head: Head
    config: OptimConfig
    optimizer: torch.optim.Optimizer
    status: Literal["fitting", "stopped", "diverged"] = "fitting"
    seconds: float = 0.0
    best_score: float | None = None
    best_epoch: int = 0
    loss_sum: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)
    """One record an epoch: epoch, loss, and score where a dev split was given."""

    @property
    def pure(self) -> bool:
        """Whether nothing in a step depends on values, so that it can be stacked, and captured on a GPU."""
        return self.head.stackable and self.head.penalty(0.0) is None


class Group:
    def __init__(
        self,
        members: Sequence[FittedHead],
        encoder: Encoder,
        loss: Loss,
        *,
        activation_gb: float,
        parallel: Parallel = ALONE,
    ) -> None:
        self.members, self.encoder, self.loss = members, encoder, loss
        self.activation_gb, self.parallel = activation_gb, parallel
        self.stacked: dict[str, nn.Parameter] = {}
        self._progress = 0.0
        if len(members) > 1:
            self._stack()

    @property
    def pure(self) -> bool:
        """Whether a step can be captured once and replayed."""
        return all(member.pure for member in self.members)

    def prepare(self, step: int, total: int) -> None:
        """Set what differs from step to step: rates and keys of dropout."""
        self._progress = step / total
        for member in self.members:
            member.head.train()
            set_noise(member.head, *noise_numbers(member.seed, step, rank=self.parallel.rank))
            set_rate(member.optimizer, learning_rate(member.config, step, total))

    def run(self, batch: StateBatch, step: int, share: Share | None = None) -> Float[Tensor, " k"]:
        """Gradients and an update of every member; returns their losses, without waiting for the device."""
        share = share or (len(batch.windows), 1.0)
        losses = self._stacked_backward(batch, share) if self.stacked else self._backward(batch, step, share)
        if not self.parallel.alone:  # gradients, losses and running statistics become the same on every rank
            heads = [member.head for member in self.members]
            gradients = [p.grad for head in heads for p in head.parameters() if p.grad is not None]
            self.parallel.sum_([losses, *gradients])
            self.parallel.mean_([value for head in heads for value in running_statistics(head)])
        for member in self.members:
            apply_gradients(member.optimizer, member.config.clip)
        return losses

    # ---- one head

    def parts(self, batch: StateBatch) -> list[StateBatch]:
        """The batch, cut so that the activations of every part fit."""
        B, T = batch.mask.shape
        head = self.members[0].head
        rows = rows_at_once(head, T, self.activation_gb)
        if isinstance(head, ConvHead):
            head.recompute = rows < 1
        # A pair of texts stands in neighbouring rows and is never parted.
        rows = max(rows // head.windows, 1) * head.windows
        return [batch.rows(slice(begin, begin + rows)) for begin in range(0, B, rows)]

    def _backward(self, batch: StateBatch, step: int, share: Share) -> Float[Tensor, " 1"]:
        (member,) = self.members
        total = torch.zeros(1, device=batch.mask.device)
        windows, weight = share
        penalty = member.head.penalty(self._progress)
        for i, part in enumerate(self.parts(batch)):
            numbers = noise_numbers(member.seed, step, i, self.parallel.rank)
            if i:
                set_noise(member.head, *numbers)
            # Dropout of a user's own head draws from a stream that belongs to it alone.
            own = nullcontext() if member.head.stackable else seeded(batch.mask.device, *numbers)
            with own, self.encoder.autocast(cache=False):
                logits = member.head(part)
            loss = self.loss(logits, part).sum() / windows * weight
            if i == 0 and penalty is not None:
                loss = loss + penalty / self.parallel.world
            loss.backward()
            total += loss.detach()
        return total

    # ---- several

    def _stack(self) -> None:
        heads = [member.head for member in self.members]
        named = [dict(head.named_parameters()) for head in heads]
        for name in named[0]:
            stack = nn.Parameter(torch.stack([own[name].detach() for own in named]))
            for i, own in enumerate(named):
                own[name].data = stack.detach()[i]
            self.stacked[name] = stack
        base = copy.deepcopy(heads[0]).to("meta")
        dropouts, *active = [[m for m in one.modules() if isinstance(m, Dropout)] for one in (base, *heads)]
        for i, module in enumerate(dropouts):
            module.active = any(own[i].active for own in active)
        self.base = base.train()

    def _stacked_backward(self, batch: StateBatch, share: Share) -> Float[Tensor, " k"]:
        windows, weight = share
        heads = [member.head for member in self.members]
        buffers = {
            name: torch.stack([dict(head.named_buffers())[name] for head in heads])
            for name, _ in heads[0].named_buffers()
        }

        def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
            with self.encoder.autocast(cache=False):
                logits = functional_call(self.base, (parameters, buffers), (batch,))
            return self.loss(logits, batch).sum() / windows * weight

        with fused.plain():
            losses = vmap(one)(dict(self.stacked), buffers)  # (k,)
        losses.sum().backward()
        for name, stack in self.stacked.items():
            if stack.grad is None:
                continue
            for i, head in enumerate(heads):
                head.get_parameter(name).grad = stack.grad[i]
            stack.grad = None
        return losses.detach()


# ---- on a GPU


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
