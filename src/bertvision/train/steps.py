"""What trains together in a fine-tuning, and its steps: from a batch to losses, gradients and an update.

    tokens ──► every layer of the encoder ──► states ──► the job's head ──► logits ──► loss of each window

On a GPU small kernels launched one by one leave it idle, so both halves of a step are captured as CUDA graphs and
replayed: the gradients of a part once for every shape, the update (clipping, AdamW, new copies of the weights) once.
In bf16 the encoder is computed by a copy whose weights are bf16; the float32 weights, which the optimiser, checkpoints
and snapshots know, get its gradients and give it its values. What reads values on the way (gradient checkpointing),
and several processes, take their steps one kernel at a time.
"""

import copy
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertvision.data.windows import Windows
from bertvision.encoder.batch import GraphCache, in_bf16, pooled_by, read_tokens
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.freeze import count_trainable
from bertvision.encoder.policy import parse_policy
from bertvision.heads.base import Head, running_statistics
from bertvision.heads.layers import set_noise
from bertvision.shapes import Bool, Float
from bertvision.states.base import StateBatch, target_tensor, widths
from bertvision.train.config import TuneConfig
from bertvision.train.job import Job
from bertvision.train.optim import make_optimizer, noise_numbers, set_rate
from bertvision.train.parallel import Parallel

Inputs = dict[str, Tensor]
"""A batch: ids, types and mask (B, T), targets (B, K), bounds (B, 2), and cls (B,) where it is not the first token.

The names are the same every time, so that a step can be captured once for a shape."""

_GPU_WIDTH = 16
"""Batches on a GPU are padded to multiples of this: pads are trained on, so closer than where they are only encoded."""
_WARM_UP = 3
"""Steps taken plainly before anything is captured: optimisers and libraries make their buffers in them."""
_MOST = 128  # shapes that are captured; others run as they are


class TokenSource:
    """Batches of windows' tokens. The flat arrays lie on the encoder's device: only numbers of windows travel."""

    def __init__(self, encoder: Encoder, windows: Windows) -> None:
        place = encoder.device
        self.pad_id, self.device = encoder.pad_id, place
        self.widths = widths(encoder, windows.lengths, multiple=_GPU_WIDTH)
        self.ids = torch.from_numpy(windows.ids).to(place)  # (N,)
        self.types = torch.from_numpy(windows.types).to(place)  # (N,)
        self.begins = torch.from_numpy(windows.offsets[:-1]).to(place)  # (W,)
        self.lengths = torch.from_numpy(windows.lengths).to(place)  # (W,)
        self.labels = target_tensor(windows.labels, place)
        self.bounds = torch.from_numpy(windows.context.astype(np.int64)).to(place)
        null = windows.null.astype(np.int64)
        self.cls = torch.from_numpy(null).to(place) if null.any() else None

    def batch(self, windows: NDArray[np.int64]) -> Inputs:
        """These windows, padded to the longest."""
        numbers = torch.from_numpy(np.asarray(windows, dtype=np.int64))
        if self.device.type == "cuda":  # from pinned memory the host does not wait for the device
            numbers = numbers.pin_memory()
        numbers = numbers.to(self.device, non_blocking=True)
        place = torch.arange(int(self.widths[windows].max()), device=self.device)
        mask: Bool[Tensor, "B T"] = place < self.lengths[numbers][:, None]
        flat = torch.where(mask, self.begins[numbers][:, None] + place, 0)  # (B, T)
        cls = {} if self.cls is None else {"cls": self.cls[numbers]}
        return cls | {
            "ids": torch.where(mask, self.ids[flat].long(), self.pad_id),
            "types": torch.where(mask, self.types[flat].long(), 0),
            "mask": mask,
            "targets": self.labels[numbers],
            "bounds": self.bounds[numbers],
        }


def make_steps(encoder: Encoder, jobs: Sequence[Job], config: TuneConfig, parallel: Parallel) -> "Steps":
    """The steps that suit the device; `encoder` begins to train."""
    captured = encoder.device.type == "cuda" and parallel.alone and not config.checkpointing
    return (GraphSteps if captured else Steps)(encoder, jobs, config, parallel)


class Steps:
    """An encoder and a head for each job that train together, one operation at a time.

    A checkpoint holds their parameters that train and the optimiser; all else follows from the settings.
    """

    captured = False

    def __init__(self, encoder: Encoder, jobs: Sequence[Job], config: TuneConfig, parallel: Parallel) -> None:
        self.encoder, self.jobs, self.config, self.parallel = encoder, jobs, config, parallel
        encoder.model.to(encoder.device)  # a frozen one may be parked elsewhere
        encoder.tune(parse_policy(config.policy), seed=config.seed)
        if config.checkpointing:
            encoder.checkpoint_gradients()
        self.model: Any = encoder.model  # the one that is computed
        self.heads = [job.build(encoder, seed=config.seed).to(encoder.device) for job in jobs]
        modules = [encoder.model, *self.heads]
        self.trainable, self.total = count_trainable(modules)
        # A parameter that a batch gives no gradient rests: the heads of other jobs, the pooler under a loss of tokens.
        self.optimizer = make_optimizer(modules, config, capturable=self.captured)
        own = {p for head in self.heads for p in head.parameters()}
        trained = [p for group in self.optimizer.param_groups for p in group["params"]]
        # In the order in which a clip adds up: of several jobs the encoder's come first.
        self.parameters = sorted(trained, key=lambda p: len(jobs) > 1 and p in own)
        self.sources = [TokenSource(encoder, job.train.windows) for job in jobs]
        names = ["encoder", *(f"head{i}" for i in range(len(jobs)))]
        self.state = dict(zip(names, modules, strict=True)), {"all": self.optimizer}  # of a checkpoint
        self._tunes = any(p.requires_grad for p in self.model.parameters())
        self._last_only = all(head.last_only for head in self.heads)
        self._pooled = any(head.geometry.pooled for head in self.heads)
        self._step = self._job = 0
        self._progress = 0.0

    def take(
        self, step: int, total: int, lr: float, job: int, windows: NDArray[np.int64]
    ) -> Float[Tensor, ""]:
        """Step `step` of `total` on a batch of one job; this process's part of the loss."""
        self._step, self._job, self._progress = step, job, step / total
        self.model.train(self._tunes)  # a frozen encoder is read as it is used later: without dropout
        self._head.train()
        set_rate(self.optimizer, lr)
        share = self.jobs[job].weight / len(windows)
        parts = self.parallel.parts(windows, unit=self.jobs[job].task.group, cut=self.config.accumulate)
        losses = []
        for number, part in enumerate(parts):
            set_noise(self._head, *noise_numbers(self.config.seed, step, number, self.parallel.rank))
            inputs = self.sources[job].batch(part.indices)
            losses.append(self._part(inputs, part.weight * share, number == 0))
        self.update()
        return torch.stack(losses).sum()

    @property
    def _head(self) -> Head:
        return self.heads[self._job]

    # ---- from a batch to gradients

    def _part(self, inputs: Inputs, weight: float, first: bool) -> Float[Tensor, ""]:
        """Add the gradients of weight * (sum of the windows' losses), and return that sum.

        The head's own penalty is counted with the first part of a batch.
        """
        return self._gradients(inputs, torch.full((), weight, device=self.encoder.device), first)

    def _gradients(self, inputs: Inputs, weight: Float[Tensor, ""], first: bool) -> Float[Tensor, ""]:
        penalty = self._head.penalty(self._progress) if first else None
        with self.encoder.autocast(cache=not self.captured):
            total = self._losses(inputs).sum() * weight
        if penalty is not None:
            total = total + penalty / self.parallel.world
        total.backward()
        return total.detach()

    def _losses(self, inputs: Inputs) -> Float[Tensor, " B"]:
        states, pooled = self._states(inputs)
        mask, cls = inputs["mask"], inputs.get("cls")
        windows = np.zeros(len(mask), np.int64)
        batch = StateBatch(
            torch.stack(states), mask, inputs["targets"], windows, inputs["bounds"], pooled, cls
        )
        return self.jobs[self._job].task.loss(self._head(batch), batch)

    def _states(
        self, inputs: Inputs
    ) -> tuple[tuple[Float[Tensor, "B T H"], ...], Float[Tensor, "B H"] | None]:
        types = inputs["types"] if self.encoder.passes_types else None
        states = read_tokens(self.model, inputs["ids"], inputs["mask"], types, last_only=self._last_only)
        return states, pooled_by(self.model, states[-1], inputs.get("cls")) if self._pooled else None

    # ---- from gradients to an update

    def refresh(self) -> None:
        """Follow weights that were loaded."""

    def update(self) -> None:
        """Gradients of all ranks together, clipped; one step; no gradients left."""
        given = [p for p in self.parameters if p.grad is not None]
        self.parallel.sum_([p.grad for p in given if p.grad is not None])
        self.parallel.mean_(running_statistics(self._head))
        self._apply(given)
        self.optimizer.zero_grad(set_to_none=True)

    def _apply(self, given: Sequence[nn.Parameter]) -> None:
        if self.config.clip:
            nn.utils.clip_grad_norm_(given, self.config.clip)
        self.optimizer.step()


class GraphSteps(Steps):
    """Steps captured once for a shape and replayed; one process on a CUDA device."""

    captured = True

    def __init__(self, *values: Any, **more: Any) -> None:
        super().__init__(*values, **more)
        self._pairs: list[tuple[nn.Parameter, nn.Parameter]] = []
        """Weights that train, in float32 and in bf16."""
        if self.encoder.precision == "bf16":
            masters = dict(self.model.named_parameters())
            self.model = in_bf16(copy.deepcopy(self.model))
            theirs = dict(self.model.named_parameters())
            self._pairs = [(p, theirs[name]) for name, p in masters.items() if p.requires_grad]
        self.graphs = GraphCache("steps", most=_MOST)
        # A penalty depends on the progress, which a captured step would not see.
        self.graphs.possible = all(head.penalty(0.0) is None for head in self.heads)
        self._static: dict[tuple[int, ...], tuple[Inputs, Tensor, Tensor]] = {}
        """Of each captured part: its inputs, weight and loss."""
        self._done: Counter[int] = Counter()  # steps of each job
        self._reached: dict[int, set[nn.Parameter]] = {}
        """Of each job, what its gradients come to: those of spans do not come to the pooler."""

    def _states(self, inputs: Inputs) -> Any:
        if self.model is self.encoder.model:
            return super()._states(inputs)
        with torch.autocast(self.encoder.device.type, enabled=False):
            return super()._states(inputs)

    def _part(self, inputs: Inputs, weight: float, first: bool) -> Float[Tensor, ""]:
        key = (*inputs["mask"].shape, int(first), self._job)
        wanted = self.graphs.wanted(key) and self._done[self._job] >= _WARM_UP
        if key not in self.graphs and not (wanted and self._capture(key, inputs, weight, first)):
            factor = torch.full((), weight, device=self.encoder.device)
            return self.graphs.beside(lambda: self._gradients(inputs, factor, first))
        static, factor, loss = self._static[key]
        factor.fill_(weight)
        for name, tensor in inputs.items():
            static[name].copy_(tensor, non_blocking=True)
        self.graphs.replay(key)
        return loss.clone()  # at once: the next graph may use its memory

    def _gradients(self, inputs: Inputs, weight: Float[Tensor, ""], first: bool) -> Float[Tensor, ""]:
        if self._job in self._reached:
            return self._added(inputs, weight, first)
        # The first time gradients begin from nothing, and whoever has one then was reached.
        kept = {p: p.grad for p in self.parameters}
        for p in kept:
            p.grad = None
        loss = self._added(inputs, weight, first)
        self._reached[self._job] = {p for p in kept if p.grad is not None}
        for p, memory in kept.items():  # other jobs' graphs add to this very memory
            if memory is not None:
                p.grad = memory if p.grad is None else memory.add_(p.grad)
        return loss

    def _added(self, inputs: Inputs, weight: Float[Tensor, ""], first: bool) -> Float[Tensor, ""]:
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
        loss = self.graphs.capture(key, lambda: self._gradients(static, factor, first))
        if loss is None:
            self._static.clear()
            self.graphs.clear()  # where memory was wanting, plain steps need theirs
            for _, copied in self._pairs:
                copied.grad = None  # of an operation that was written down and never done
            return False
        self._static[key] = static, factor, loss
        return True

    def update(self) -> None:
        self._done[self._job] += 1
        key = ("update", self._job)  # one for each job: the encoder's weights and its head's
        if key in self.graphs:
            self.graphs.replay(key)
            return
        self.graphs.beside(self._whole_update)
        if self.graphs.possible and self._done[self._job] > _WARM_UP:
            self.graphs.capture(key, self._whole_update)

    def _whole_update(self) -> None:
        # Gradients stay where they are, because graphs add to the same memory in every step. To an optimiser one that
        # is zero is no rest: it would go on by its momentum and its decay.
        resting = [(p, p.grad) for p in self.parameters if p not in self._reached[self._job]]
        for p, _ in resting:
            p.grad = None
        given = [p for p in self.parameters if p.grad is not None]
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
