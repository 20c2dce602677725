"""Heads that are computed together: one, or several of equal shape as one batched computation.

Equal-shaped heads (a sweep over rates, seeds, dropout) have their parameters stacked, (k, ...), and one vmapped
pass gives all k losses and gradients. The heads stay modules of their own: their parameters are views into the
stack, and each is updated by its own optimiser. So nothing else needs to know that they are stacked.

Memory is bounded by `FitConfig.activation_gb`: a stack takes only as many heads as fit at a whole batch, and a
head that does not fit alone reads its batch in several parts, adding up gradients. A head that cannot even keep
one window recomputes instead of keeping (`ConvHead.recompute`).

Of several processes each has some windows of a batch (train/parallel.py). Gradients and losses are summed over ranks
before the update, so that all ranks keep the same heads. Batch norm takes the statistics of a rank's own windows, as it
does of a part's; the running ones, which evaluation uses, are the mean over ranks.
"""

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from bertvision.encoder.encoder import Encoder
from bertvision.heads import fused
from bertvision.heads.base import Head, running_statistics
from bertvision.heads.costs import rows_at_once
from bertvision.heads.layers import Dropout, set_noise
from bertvision.heads.papers.conv import ConvHead
from bertvision.heads.spec import HeadSpec
from bertvision.shapes import Float
from bertvision.states.base import StateBatch
from bertvision.train.config import OptimConfig
from bertvision.train.optim import apply_gradients, learning_rate, set_rate
from bertvision.train.parallel import Parallel
from bertvision.train.randomness import noise_numbers, seeded

Loss = Callable[[Tensor, StateBatch], Tensor]
"""(logits, batch) -> one loss a window (B,)."""


@dataclass(frozen=True)
class Share:
    """What this rank computes of a batch."""

    parallel: Parallel
    windows: int
    """B of the whole batch."""
    weight: float
    """0 where the windows are another rank's, and only taken so that this one takes part."""


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

    _SAVED = ("status", "seconds", "best_score", "best_epoch", "loss_sum", "history")

    def progress(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in self._SAVED}


class Group:
    """One or more heads that take a step together."""

    def __init__(
        self, members: Sequence[FittedHead], encoder: Encoder, loss: Loss, *, activation_gb: float
    ) -> None:
        self.members, self.encoder, self.loss = list(members), encoder, loss
        self.activation_gb = activation_gb
        self.stacked: dict[str, nn.Parameter] = {}
        self._progress = 0.0
        if len(self.members) > 1:
            self._stack()

    @property
    def pure(self) -> bool:
        """Whether a step can be captured once and replayed: nothing in it depends on values."""
        return all(m.head.stackable and m.head.penalty(0.0) is None for m in self.members)

    def prepare(self, step: int, total: int, rank: int = 0) -> None:
        """Set what differs from step to step: rates, keys of dropout, whatever a head does by itself."""
        self._progress = step / total
        for member in self.members:
            member.head.train()
            set_noise(member.head, *noise_numbers(member.seed, step, rank=rank))
            set_rate(member.optimizer, learning_rate(member.config, step, total))

    def run(self, batch: StateBatch, step: int, share: Share | None = None) -> Float[Tensor, " k"]:
        """Gradients and an update of every member; returns their losses, without waiting for the device."""
        losses = self._stacked_backward(batch, share) if self.stacked else self._backward(batch, step, share)
        if share is not None:
            self._sum(losses, share.parallel)
        for member in self.members:
            apply_gradients(member.optimizer, member.config.clip)
        return losses

    def _sum(self, losses: Float[Tensor, " k"], parallel: Parallel) -> None:
        """Make gradients, losses and running statistics the same on every rank."""
        heads = [member.head for member in self.members]
        gradients = [p.grad for head in heads for p in head.parameters() if p.grad is not None]
        parallel.sum_([losses, *gradients])
        parallel.mean_([value for head in heads for value in running_statistics(head)])

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

    def _backward(self, batch: StateBatch, step: int, share: Share | None) -> Float[Tensor, " 1"]:
        (member,) = self.members
        total = torch.zeros(1, device=batch.mask.device)
        windows = share.windows if share else len(batch.windows)
        rank = share.parallel.rank if share else 0
        penalty = member.head.penalty(self._progress)
        for i, part in enumerate(self.parts(batch)):
            numbers = noise_numbers(member.seed, step, i, rank)
            if i:
                set_noise(member.head, *numbers)
            # Dropout of a user's own head draws from a stream that belongs to it alone.
            with _noise(member, batch, numbers), self.encoder.autocast(cache=False):
                logits = member.head(part)
            loss = self.loss(logits, part).sum() / windows
            if share is not None:
                loss = loss * share.weight
            if i == 0 and penalty is not None:
                loss = loss + (penalty if share is None else penalty / share.parallel.world)
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
        dropouts = [m for m in base.modules() if isinstance(m, Dropout)]
        for i, module in enumerate(dropouts):
            module.active = any(
                [m for m in head.modules() if isinstance(m, Dropout)][i].active for head in heads
            )
        self.base = base.train()

    def _stacked_backward(self, batch: StateBatch, share: Share | None) -> Float[Tensor, " k"]:
        heads = [member.head for member in self.members]
        buffers = {
            name: torch.stack([dict(head.named_buffers())[name] for head in heads])
            for name, _ in heads[0].named_buffers()
        }

        def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
            with self.encoder.autocast(cache=False):
                logits = functional_call(self.base, (parameters, buffers), (batch,))
            losses = self.loss(logits, batch)
            return losses.mean() if share is None else losses.sum() * (share.weight / share.windows)

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


def _noise(
    member: FittedHead, batch: StateBatch, numbers: tuple[int, ...]
) -> contextlib.AbstractContextManager[None]:
    if member.head.stackable:
        return contextlib.nullcontext()
    return seeded(batch.mask.device, *numbers)


def make_groups(
    members: Sequence[FittedHead],
    encoder: Encoder,
    loss: Loss,
    *,
    activation_gb: float,
    batch_size: int,
    tokens: int,
    stack: bool = True,
) -> list[Group]:
    """Groups of heads that differ only in rate, seed and dropout; everyone else alone."""
    alike: dict[Any, list[FittedHead]] = {}
    for member in members:
        config = member.spec.config
        if hasattr(config, "dropout"):
            config = dataclasses.replace(config, dropout=0.0)
        own = None if stack and member.head.stackable and member.head.penalty(0.0) is None else member.name
        alike.setdefault((member.spec.name, config, own), []).append(member)
    groups: list[Group] = []
    for equal in alike.values():
        fitting = max(1, rows_at_once(equal[0].head, tokens, activation_gb) // batch_size)
        for begin in range(0, len(equal), fitting):
            groups.append(Group(equal[begin : begin + fitting], encoder, loss, activation_gb=activation_gb))
    return groups
