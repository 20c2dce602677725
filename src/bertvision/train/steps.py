"""How a step of fine-tuning is taken: gradients of one part of a batch after another, then an update.

On a GPU small kernels launched one by one leave it idle, so both halves of a step are captured as CUDA graphs and
replayed: the gradients of a part once for every shape, the update (clipping, AdamW, new copies of the weights) once.
In bf16 the body is computed by a copy whose weights are bf16; the float32 weights, which the optimiser, checkpoints
and snapshots know, get its gradients and give it its values. What reads values on the way (gradient checkpointing),
and several processes, take their steps one kernel at a time.
"""

import copy
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bertvision.encoder.encoder import Encoder
from bertvision.encoder.stack import in_bf16
from bertvision.heads.base import Head, running_statistics
from bertvision.heads.layers import set_noise
from bertvision.shapes import Float
from bertvision.train.config import OptimConfig
from bertvision.train.optim import set_rate
from bertvision.train.parallel import Parallel
from bertvision.train.randomness import noise_numbers
from bertvision.train.sharded import clip_, is_sharded
from bertvision.train.tunable import BodyStates, Inputs, Tunable

__all__ = ["GraphSteps", "Steps"]

logger = logging.getLogger(__name__)

_WARM_UP = 3
"""Steps taken plainly before anything is captured: optimisers and libraries make their buffers in them."""
_MOST = 128
"""Shapes that are captured, each when it comes the second time; others run as they are."""


class Steps:
    """Steps taken one operation at a time."""

    def __init__(
        self,
        tunable: Tunable,
        optimizers: Sequence[Sequence[torch.optim.Optimizer]],
        config: OptimConfig,
        encoder: Encoder,
        parallel: Parallel,
    ) -> None:
        self.tunable, self.optimizers, self.config = tunable, optimizers, config
        """Of each task, those that take a step with it: the encoder's and its head's."""
        self.encoder, self.parallel = encoder, parallel
        every = {id(o): o for own in optimizers for o in own}.values()
        self.parameters = [p for o in every for group in o.param_groups for p in group["params"]]
        self._step = self._job = 0
        self._progress = 0.0

    def prepare(self, step: int, total: int, lr: float, job: int = 0) -> None:
        """Set what differs from step to step; the batch is of task number `job`."""
        self._step, self._job, self._progress = step, job, step / total
        self.tunable.train()
        for optimizer in self.optimizers[job]:
            set_rate(optimizer, lr)

    @property
    def _head(self) -> Head:
        return self.tunable.head(self._job)

    def _own(self) -> list[nn.Parameter]:
        """What the present task trains."""
        return [p for o in self.optimizers[self._job] for group in o.param_groups for p in group["params"]]

    def backward(self, inputs: Inputs, weight: float, *, part: int = 0) -> Float[Tensor, ""]:
        """Add the gradients of weight * (sum of the windows' losses); returns that weighted sum.

        The head's own penalty is counted with the first part of a batch.
        """
        set_noise(self._head, *noise_numbers(self.config.seed, self._step, part, self.parallel.rank))
        return self._part(inputs, weight, part == 0)

    def _part(self, inputs: Inputs, weight: float, first: bool) -> Float[Tensor, ""]:
        return self._gradients(inputs, torch.full((), weight, device=self.encoder.device), first)

    def _gradients(self, inputs: Inputs, weight: Float[Tensor, ""], first: bool) -> Float[Tensor, ""]:
        penalty = self._head.penalty(self._progress) if first else None
        with self.encoder.autocast(cache=not self._captures):
            states = self._states(inputs)
            total = self.tunable(states, inputs, self._job).sum() * weight
        if penalty is not None:
            total = total + penalty / self.parallel.world
        total.backward()
        return total.detach()

    _captures = False

    def _states(self, inputs: Inputs) -> BodyStates:
        return self.tunable.body(inputs)

    def refresh(self) -> None:
        """Follow weights that were loaded."""

    def update(self) -> None:
        """Gradients of all ranks together, clipped; one step; no gradients left."""
        given = [p for p in self._own() if p.grad is not None]
        self.parallel.sum_([p.grad for p in given if p.grad is not None and not is_sharded(p)])
        self.parallel.mean_(running_statistics(self._head))
        self._apply(given)
        for optimizer in self.optimizers[self._job]:
            optimizer.zero_grad(set_to_none=True)

    def _apply(self, given: Sequence[nn.Parameter]) -> None:
        if self.config.clip:
            if any(is_sharded(p) for p in given):
                clip_(given, self.config.clip, self.parallel)
            else:
                nn.utils.clip_grad_norm_(given, self.config.clip)
        for optimizer in self.optimizers[self._job]:
            optimizer.step()


class GraphSteps(Steps):
    """Steps captured once for a shape and replayed; one process on a CUDA device."""

    _captures = True

    def __init__(self, tunable: Tunable, *others: Any) -> None:
        super().__init__(tunable, *others)
        self.body = tunable.body
        self._pairs: list[tuple[nn.Parameter, nn.Parameter]] = []
        """Weights that train, in float32 and in bf16."""
        if self.encoder.precision == "bf16":
            self.body = in_bf16(copy.deepcopy(tunable.body))
            theirs = dict(self.body.named_parameters())
            self._pairs = [(p, theirs[n]) for n, p in tunable.body.named_parameters() if p.requires_grad]
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()
        self._done: Counter[int] = Counter()
        """Steps of each task."""
        self._seen: Counter[tuple[int, ...]] = Counter()
        self._parts: dict[tuple[int, ...], tuple[torch.cuda.CUDAGraph, Inputs, Tensor, Tensor]] = {}
        self._updates: dict[int, torch.cuda.CUDAGraph] = {}
        """One for each task: the encoder's weights and its head's."""
        self._reached: dict[int, set[nn.Parameter]] = {}
        """Of each task, what its gradients come to: those of spans do not come to the pooler."""
        # A penalty depends on the progress, which a captured step would not see.
        self._possible = all(tunable.head(i).penalty(0.0) is None for i in range(len(tunable.tasks)))

    def prepare(self, step: int, total: int, lr: float, job: int = 0) -> None:
        super().prepare(step, total, lr, job)
        self.body.train(self.tunable.body.training)

    def _states(self, inputs: Inputs) -> BodyStates:
        if self.body is self.tunable.body:
            return self.body(inputs)
        with torch.autocast(self.encoder.device.type, enabled=False):
            return self.body(inputs)

    def _part(self, inputs: Inputs, weight: float, first: bool) -> Float[Tensor, ""]:
        key = (*inputs["mask"].shape, int(first), self._job)
        self._seen[key] += 1
        if key not in self._parts:
            # A shape that comes once would cost more to capture than it takes.
            wanted = self._possible and self._done[self._job] >= _WARM_UP and self._seen[key] > 1
            if not wanted or len(self._parts) == _MOST or not self._capture(key, inputs, weight, first):
                return self._beside(inputs, weight, first)
        graph, static, factor, loss = self._parts[key]
        factor.fill_(weight)
        for name, tensor in inputs.items():
            static[name].copy_(tensor, non_blocking=True)
        graph.replay()
        return loss.clone()  # at once: the next graph may use its memory

    def _beside(self, inputs: Inputs, weight: float, first: bool) -> Tensor:
        """The same operations, on the stream that graphs are captured on."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            loss = self._gradients(inputs, torch.full((), weight, device=self.encoder.device), first)
        torch.cuda.current_stream().wait_stream(self._stream)
        return loss

    def _gradients(self, inputs: Inputs, weight: Float[Tensor, ""], first: bool) -> Float[Tensor, ""]:
        if self._job in self._reached:
            return self._added(inputs, weight, first)
        # The first time gradients begin from nothing, and whoever has one then was reached.
        kept = {p: p.grad for p in self._own()}
        for p in kept:
            p.grad = None
        loss = self._added(inputs, weight, first)
        self._reached[self._job] = {p for p in kept if p.grad is not None}
        for p, memory in kept.items():  # other tasks' graphs add to this very memory
            if memory is not None:
                p.grad = memory if p.grad is None else memory.add_(p.grad)
        return loss

    def _added(self, inputs: Inputs, weight: Float[Tensor, ""], first: bool) -> Float[Tensor, ""]:
        """Gradients, brought from the copy to the weights."""
        loss = super()._gradients(inputs, weight, first)
        ours, theirs = [], []
        for master, copied in self._pairs:
            if copied.grad is None:
                continue
            if master.grad is None:
                master.grad = torch.zeros_like(master)
            ours.append(master.grad)
            theirs.append(copied.grad)
            copied.grad = None
        if ours:
            torch._foreach_add_(ours, theirs)  # pyright: ignore[reportPrivateImportUsage]
        return loss

    def _capture(self, key: tuple[int, ...], inputs: Inputs, weight: float, first: bool) -> bool:
        static = {name: tensor.clone() for name, tensor in inputs.items()}
        factor = torch.full((), weight, device=self.encoder.device)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                loss = self._gradients(static, factor, first)
        except RuntimeError as error:
            # Some architectures and heads look at values on their way; they run as they are.
            logger.info("steps cannot be captured (%s)", str(error).splitlines()[0])
            self._possible = False
            self._parts.clear()  # where memory was wanting, plain steps need theirs
            for _, copied in self._pairs:
                copied.grad = None  # of an operation that was written down and never done
            return False
        self._parts[key] = graph, static, factor, loss
        return True

    def update(self) -> None:
        self._done[self._job] += 1
        if self._job not in self._updates:
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                self._whole_update()
            torch.cuda.current_stream().wait_stream(self._stream)
            if self._possible and self._done[self._job] > _WARM_UP:
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                    self._whole_update()
                self._updates[self._job] = graph
            return
        self._updates[self._job].replay()

    def _whole_update(self) -> None:
        # Gradients stay where they are, because graphs add to the same memory in every step. To an optimiser one that
        # is zero is no rest: it would go on by its momentum and its decay.
        resting = [(p, p.grad) for p in self._own() if p not in self._reached[self._job]]
        for p, _ in resting:
            p.grad = None
        given = [p for p in self._own() if p.grad is not None]
        self._apply(given)
        torch._foreach_zero_([p.grad for p in given])  # pyright: ignore[reportPrivateImportUsage, reportArgumentType]
        for p, memory in resting:
            p.grad = memory
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Give the copy the weights' values."""
        if self._pairs:
            ours, theirs = zip(*self._pairs, strict=True)
            torch._foreach_copy_(list(_values(theirs)), list(_values(ours)))  # pyright: ignore[reportPrivateImportUsage]


def _values(parameters: Iterable[nn.Parameter]) -> Iterable[Tensor]:
    return (p.detach() for p in parameters)
