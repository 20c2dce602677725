"""Fit many heads in one walk over the states of a frozen encoder; one walk for each seed.

All heads see the same batch, group after group (train/group.py), and then its states are freed. Heads share nothing:
one whose loss becomes NaN or infinite is dropped and logged, and the others go on untouched.

Of several processes (train/optim.py) each reads the states of its own windows of every batch. All see the summed
losses and make the same updates, so they drop and stop the same heads without asking each other. Rank 0 alone scores,
writes and prints.
"""

import copy
import dataclasses
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from bertvision.console import progress
from bertvision.encoder.device import Clock
from bertvision.errors import TrainingError
from bertvision.heads.base import Head, rows_at_once
from bertvision.heads.spec import HeadSpec
from bertvision.states.base import StateBatch, States
from bertvision.states.plan import head_batches
from bertvision.tasks.base import Task
from bertvision.tasks.span import SPAN
from bertvision.train.config import FitConfig
from bertvision.train.group import FittedHead, Graphs, Group, Share
from bertvision.train.job import geometry_of
from bertvision.train.optim import make_optimizer
from bertvision.train.parallel import ALONE, Parallel
from bertvision.train.run_folder import RunFolder

logger = logging.getLogger(__name__)

Evaluate = Callable[[Mapping[str, Head]], Mapping[str, float]]
"""Scores of heads on a held-out split, higher is better; NaN for a head whose logits are not finite."""
OnEpoch = Callable[[int, Mapping[str, float]], bool]
"""Called with the number of epochs done and the scores of the heads that are still fitted; True ends the fit."""

_UNREAD = 16  # steps whose losses may wait on a GPU before they are read
_SAVED = ("status", "seconds", "best_score", "best_epoch", "loss_sum", "history")
"""What a checkpoint holds of a head beside its weights."""


class FitRun:
    """The state of one fit: heads, optimisers, best weights, position."""

    def __init__(
        self,
        states: States,
        specs: Sequence[tuple[str, HeadSpec, int]],
        config: FitConfig,
        parallel: Parallel = ALONE,
        task: Task = SPAN,
    ) -> None:
        self.states, self.config, self.parallel, self.task = states, config, parallel, task
        self.encoder = states.encoder
        geometry = geometry_of(self.encoder, task, states.layers)
        self.on_gpu = on_gpu = self.encoder.device.type == "cuda"
        self.fitted: dict[str, FittedHead] = {}
        for name, spec, seed in specs:
            head = spec.build(geometry, seed=seed).to(self.encoder.device)
            optim = config.optim(spec, seed)
            optimizer = make_optimizer([head], optim, capturable=on_gpu)
            self.fitted[name] = FittedHead(name, spec, seed, head, optim, optimizer)
        keeps = config.keep == "best"
        self.best = {name: copy.deepcopy(f.head) for name, f in self.fitted.items()} if keeps else {}
        self.steps = states.num_batches(config.batch_size)
        self.orders = list(dict.fromkeys(config.order_of(spec, seed) for _, spec, seed in specs))
        """Seeds of the order of the data. An epoch walks over the states once for each, with the heads of that seed."""
        self.epoch = self.walk = self.batch = 0
        self.longest = int(states.lengths.max(initial=1))
        # A graph cannot hold the sum over ranks, nor parts of different sizes.
        graphs = on_gpu and parallel.alone
        self.graphs = Graphs(config.batch_size, self.longest, self.encoder.device) if graphs else None
        self.shares: list[Share] = []  # of every batch of the present walk
        self.groups: dict[int, list[Group]] = {}  # groups of heads by the order of their data
        self.pending: list[tuple[Group, int, Tensor, Clock]] = []  # steps whose losses were not read yet

    def live(self, order: int | None = None) -> list[FittedHead]:
        """The heads that are still fitted, of one order of the data or of all."""
        fitting = [f for f in self.fitted.values() if f.status == "fitting"]
        return [f for f in fitting if order in (None, self.config.order_of(f.spec, f.seed))]

    @property
    def order(self) -> int:
        return self.orders[self.walk]

    @property
    def done(self) -> int:
        """Batches read so far, of `total`."""
        return (self.epoch * len(self.orders) + self.walk) * self.steps + self.batch

    @property
    def total(self) -> int:
        return self.config.epochs * len(self.orders) * self.steps

    def batches(self) -> Iterator[StateBatch]:
        """The rest of the present epoch: a walk over the states for each order that still has heads to fit."""
        while self.walk < len(self.orders):
            if self.live(self.order):
                # Under no name: the states must be gone when the next batch is made.
                yield from takewhile(lambda _: self.live(self.order), self._walk())
            self.walk, self.batch = self.walk + 1, 0

    def _walk(self) -> Iterator[StateBatch]:
        size, lengths = self.config.batch_size, self.states.windows.lengths
        plan = head_batches(lengths, size, seed=self.order, epoch=self.epoch)
        parts = [self.parallel.parts(batch)[0] for batch in plan]  # of several processes, this one's
        self.shares = [(len(batch), part.weight) for batch, part in zip(plan, parts, strict=True)]
        place = self.graphs.states_place if self.graphs else None
        return self.states.stream([p.indices for p in parts], start=self.batch, place=place)

    def regroup(self) -> None:
        """Put the heads of the present walk into groups: those that differ only in rate, seed and dropout, as many
        as memory allows; everyone else alone."""
        config = self.config
        stack = config.stack == "on" or (config.stack == "auto" and self.on_gpu)
        alike: dict[Any, list[FittedHead]] = {}
        for fitted in self.live(self.order):
            own = fitted.spec.config
            if hasattr(own, "dropout"):
                own = dataclasses.replace(own, dropout=0.0)
            alone = "" if stack and fitted.pure else fitted.name
            alike.setdefault((fitted.spec.name, own, alone), []).append(fitted)
        self.groups[self.order] = []
        for equal in alike.values():
            rows = rows_at_once(equal[0].head, self.longest, config.activation_gb)
            most = max(1, rows // config.batch_size)
            for begin in range(0, len(equal), most):
                group = Group(
                    equal[begin : begin + most], self.encoder, self.task.loss,
                    activation_gb=config.activation_gb, parallel=self.parallel,
                )  # fmt: skip
                self.groups[self.order].append(group)

    def train_batch(self, batch: StateBatch) -> None:
        """One step of every live head on the same states, group after group."""
        if self.order not in self.groups:
            self.regroup()
        groups = self.groups[self.order]
        step, total = self.epoch * self.steps + self.batch, self.config.epochs * self.steps
        placed = self.graphs.place(batch) if self.graphs else batch
        for group in groups:
            clock = Clock(self.encoder.device)
            group.prepare(step, total)
            if self.graphs:
                losses = self.graphs.run(group, placed, step)
            else:
                losses = group.run(placed, step, self.shares[self.batch])
            clock.stop()
            self.pending.append((group, step, losses, clock))
        self.batch += 1
        # Reading a loss waits for the device, so on a GPU it is done for many steps at once.
        if not self.on_gpu or len(self.pending) >= _UNREAD * len(groups):
            self.settle()

    def settle(self) -> None:
        """Read the losses of the steps since the last time; drop the heads that broke."""
        if not self.pending:
            return
        values = iter(torch.cat([losses for _, _, losses, _ in self.pending]).tolist())
        for group, step, _, clock in self.pending:
            seconds = clock.seconds() / len(group.members)
            for fitted, value in zip(group.members, values, strict=False):
                fitted.seconds += seconds
                fitted.loss_sum += value
                if fitted.status == "fitting" and not math.isfinite(value):
                    self._drop(fitted, f"loss {value} at step {step + 1}")
        self.pending.clear()
        self._regroup_if_needed()

    def _regroup_if_needed(self) -> None:
        groups = [group for own in self.groups.values() for group in own]
        if any(f.status != "fitting" for group in groups for f in group.members):
            self.groups.clear()
            if self.graphs:
                self.graphs.forget()

    def _drop(self, fitted: FittedHead, why: str) -> None:
        fitted.status = "diverged"
        if self.parallel.main:
            logger.warning("head %s diverged (%s) and is dropped; the others go on", fitted.name, why)

    def drop_broken(self) -> None:
        """Drop heads that the very last step broke: no loss came after it, and they would end the evaluation."""
        for name in self.parallel.on_main(self._broken):
            self._drop(self.fitted[name], "its logits are not finite")

    @torch.no_grad()
    def _broken(self) -> list[str]:
        batch = next(iter(self.states.walk()))
        broken: list[str] = []
        for fitted in (f for f in self.fitted.values() if f.status != "diverged"):
            rows = slice(0, fitted.head.windows)  # one example is enough, and cheap for the largest heads
            with self.encoder.autocast():
                logits = fitted.head.eval()(batch.rows(rows))
            real = logits[batch.mask[rows]] if logits.ndim == 3 else logits
            if not bool(real.isfinite().all()):
                broken.append(fitted.name)
        return broken

    def end_epoch(self, evaluate: Evaluate | None, folder: RunFolder) -> Mapping[str, float]:
        """Score, remember the best weights, stop heads that no longer improve; returns the scores."""
        self.settle()
        live = self.live()
        scores: Mapping[str, float] = {}
        if evaluate and live:
            scores = self.parallel.on_main(lambda: dict(evaluate({f.name: f.head for f in live})))
        self.epoch, self.walk, self.batch = self.epoch + 1, 0, 0
        for fitted in live:
            record = {"epoch": float(self.epoch), "loss": fitted.loss_sum / self.steps}
            fitted.loss_sum = 0.0
            if fitted.name in scores:
                record["score"] = score = float(scores[fitted.name])
                if math.isnan(score):
                    self._drop(fitted, f"its dev logits after epoch {self.epoch} are not finite")
                    continue
                if fitted.best_score is None or score > fitted.best_score:
                    fitted.best_score, fitted.best_epoch = score, self.epoch
                    if fitted.name in self.best:
                        self.best[fitted.name].load_state_dict(fitted.head.state_dict())
                elif 0 < self.config.patience_of(fitted.spec) <= self.epoch - fitted.best_epoch:
                    fitted.status = "stopped"
            fitted.history.append(record)
            folder.log({"head": fitted.name, **record}, step=self.epoch, group=fitted.name)
        self._regroup_if_needed()
        return scores

    # ---- checkpoints

    @property
    def _state(self) -> tuple[dict[str, Head], dict[str, torch.optim.Optimizer]]:
        modules = {name: f.head for name, f in self.fitted.items()}
        modules |= {f"{name}.best": head for name, head in self.best.items()}
        return modules, {name: f.optimizer for name, f in self.fitted.items()}

    def save(self, folder: RunFolder) -> None:
        """Write a checkpoint. Weights are equal on all ranks and noise needs no state, so rank 0 does it alone."""
        self.settle()
        if not self.parallel.main:
            return
        progress: dict[str, Any] = {key: getattr(self, key) for key in ("epoch", "walk", "batch")}
        progress["heads"] = {
            name: {key: getattr(f, key) for key in _SAVED} for name, f in self.fitted.items()
        }
        folder.save(*self._state, progress, every_rank=False)

    def resume(self, folder: RunFolder) -> None:
        """Continue from the checkpoint where there is one."""
        progress = folder.resume(*self._state)
        if progress is None:
            return
        for name, saved in progress.pop("heads").items():
            vars(self.fitted[name]).update(saved)
        vars(self).update(progress)
        logger.info("the fit continues at epoch %d, batch %d", self.epoch + 1, self.batch + 1)


def fit(
    states: States,
    specs: Sequence[tuple[str, HeadSpec, int]],
    config: FitConfig,
    folder: RunFolder,
    *,
    evaluate: Evaluate | None = None,
    task: Task = SPAN,
    on_epoch: OnEpoch | None = None,
) -> dict[str, FittedHead]:
    """Fit the heads `specs` (name, spec, seed); returns those that did not diverge, ready for evaluation."""
    run = FitRun(states, specs, config, folder.parallel, task)
    run.resume(folder)
    saved = time.monotonic()
    trained = sum(one.seconds for one in run.fitted.values())
    # A source in memory has encoded everything by now.
    began = time.perf_counter() - states.times.encode
    with progress(f"fit {len(run.fitted)} heads", run.total, unit="steps", done=run.done) as bar:
        while run.epoch < config.epochs and run.live():
            for batch in run.batches():
                run.train_batch(batch)
                bar.update()
                # Only where all ranks have read the same losses may one of them stop to save.
                agreed = run.parallel.alone or not run.pending
                if agreed and time.monotonic() - saved >= config.checkpoint_seconds:
                    run.save(folder)
                    saved = time.monotonic()
            scores = run.end_epoch(evaluate, folder)
            if on_epoch is not None and run.parallel.on_main(partial(on_epoch, run.epoch, scores)):
                break
    folder.close_log()
    heads = sum(one.seconds for one in run.fitted.values()) - trained
    total, now = time.perf_counter() - began, states.times
    spent = {"encoder": now.encode, "heads": heads, "waiting": now.wait, "writing": now.write}
    # What is left went into evaluation, checkpoints and the loop itself.
    other = max(0.0, total - sum(spent.values()))
    folder.profile = {"total": total, **spent, "other": other, "reading": now.read}
    for name, best in run.best.items():
        if run.fitted[name].best_epoch:
            run.fitted[name].head.load_state_dict(best.state_dict())
    run.drop_broken()
    survivors = {name: f for name, f in run.fitted.items() if f.status != "diverged"}
    if not survivors:
        raise TrainingError("every head diverged: lower --lr of the fit")
    for fitted in survivors.values():
        fitted.head.eval()
    return survivors
