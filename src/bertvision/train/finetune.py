"""Fine-tune an encoder with a head, or with one for each of several tasks, in one continuous run with snapshots.

A policy (encoder/policy.py) says what of the encoder trains. A snapshot is the encoder at a fraction of an epoch, with
its own output layers, which are heads like any other (train/snapshots.py).
"""

import logging
import math
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertvision.console import progress
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.load import check_apart
from bertvision.encoder.policy import counts_text
from bertvision.errors import TrainingError
from bertvision.train.batching import Batch, Batching
from bertvision.train.config import FinetuneConfig, MultitaskConfig, TuneConfig
from bertvision.train.job import Job
from bertvision.train.memory import begin_peak, peak_bytes
from bertvision.train.optim import learning_rate
from bertvision.train.parallel import ALONE, Parallel, Part, rank_parts
from bertvision.train.randomness import rank_seed
from bertvision.train.run_folder import RunFolder
from bertvision.train.sharded import is_sharded
from bertvision.train.snapshots import (
    Scores,
    keep_snapshot,
    score_kept_snapshot,
    score_snapshot,
    snapshot_name,
)
from bertvision.train.splits import Split, null_weighted
from bertvision.train.tuning import Tuning, check_tuning

__all__ = ["finetune", "snapshot_name", "tune", "tune_jobs"]

logger = logging.getLogger(__name__)

_NAMED = 8
"""Questions of a broken batch that are named."""
_ASKED = 8
"""Steps after which several processes agree on whether a checkpoint is due."""


def tune(
    encoder: Encoder,
    train: Split,
    *,
    folder: Path,
    config: FinetuneConfig,
    dev: Split | None = None,
    overwrite: bool = False,
    parallel: Parallel = ALONE,
) -> tuple[RunFolder, list[Path]]:
    """Fine-tune in `folder`, reusing or continuing what is there; returns the stage and the snapshots.

    Snapshots are scored on `dev` where there is one, also those of a run that is done.
    """
    train = null_weighted(train, config.null_weight)
    job = Job(train, dev, head=config.head, sampling=config.sampling)
    return tune_jobs(
        encoder,
        [job],
        folder=folder,
        config=config,
        overwrite=overwrite,
        parallel=parallel,
    )


def tune_jobs(
    encoder: Encoder,
    jobs: Sequence[Job],
    *,
    folder: Path,
    config: TuneConfig,
    overwrite: bool = False,
    parallel: Parallel = ALONE,
) -> tuple[RunFolder, list[Path]]:
    """The same with any number of tasks over one encoder."""
    alone = len(jobs) == 1 and not jobs[0].name
    key: dict[str, Any] = {
        "encoder": encoder.fingerprint,
        "train": jobs[0].train.fingerprint if alone else [job.identity for job in jobs],
        "finetune": config.identity,
        # In bf16 one process computes on a copy of the weights, several under autocast: other numbers.
        "arithmetic": [encoder.device.type, encoder.precision, parallel.world],
    }
    if alone:
        key["task"] = jobs[0].train.about
    check_tuning(encoder, jobs, config, parallel)  # before anything is written
    if overwrite:
        check_apart(encoder.name, folder)
    stage = RunFolder(folder, key, overwrite=overwrite, parallel=parallel, track=config.track)
    return stage, finetune(encoder, jobs, config, stage)


def finetune(
    encoder: Encoder,
    jobs: Sequence[Job],
    config: TuneConfig,
    stage: RunFolder,
) -> list[Path]:
    """Train `encoder` in place; returns the snapshot folders in order. Goes on where a killed run stopped."""
    run = _Run(encoder, jobs, config, stage)
    if not stage.done:
        run.begin()
        run.go()
    elif run.dev is not None:
        run.remember(stage.results["snapshots"], stage.results["dev"])
        if run.score_kept():
            stage.finish(stage.results | {"snapshots": run.scores, "dev": run.dev})
    return run.folders


class _Run:
    """One run: where it stands, its losses that nobody read yet, and what its snapshots scored."""

    def __init__(self, encoder: Encoder, jobs: Sequence[Job], config: TuneConfig, stage: RunFolder) -> None:
        self.encoder, self.jobs, self.config = encoder, jobs, config
        self.stage, self.parallel = stage, stage.parallel
        mixing: dict[str, Any] = {}
        if isinstance(config, MultitaskConfig):
            mixing = {"order": config.order, "temperature": config.temperature}
        self.plan = Batching(
            jobs,
            batch_size=config.batch_size,
            tokens=config.batch_tokens,
            seed=config.seed,
            epochs=config.epochs,
            **mixing,
        )
        devs = [job.dev.fingerprint if job.dev else None for job in jobs]
        self.dev: Any = devs[0] if len(jobs) == 1 else devs if any(devs) else None
        """What the snapshots are scored on: a fingerprint, or one for each task; None = nothing."""
        # On little data two fractions may fall on one step; each gets its folder all the same.
        self.marks = {f: self.plan.step_of(f) for f in sorted({*config.snapshots, config.epochs})}
        self.total = self.plan.step_of(config.epochs)
        self.looks = self._looks()
        self.step = 0
        self.kept: int | None = None
        """Step of the last checkpoint."""
        self.unread: list[tuple[int, Batch, Tensor]] = []
        """Steps, their batches and losses, which may still be on the device."""
        self.last: Batch = (0, np.zeros(0, np.int64))
        """Batch of the last step."""
        self.losses: list[tuple[int, float]] = []
        """Since the last line of the log, each with its task."""
        self.scores: dict[str, Scores] = {}
        self.aside = 0.0
        """Seconds that snapshots and their scores took."""
        self.peak = 0
        """Most bytes held while training; scores on the way are not counted."""

    @property
    def folders(self) -> list[Path]:
        """Of the snapshots, in order."""
        return [self.stage.folder / snapshot_name(fraction) for fraction in self.marks]

    def _looks(self) -> set[int]:
        """Steps after which tasks are scored on dev without a snapshot."""
        every = self.config.score_every
        if not every or self.dev is None:
            return set()
        fractions = [every * i for i in range(1, math.floor(self.config.epochs / every + 1e-9) + 1)]
        return {self.plan.step_of(min(f, self.config.epochs)) for f in fractions} - {*self.marks.values()}

    def remember(self, scores: dict[str, Scores], dev: Any) -> None:
        """Scores of snapshots by an earlier try, unless they are of another dev set."""
        self.scores = scores if self.dev is not None and dev == self.dev else {}

    def begin(self) -> None:
        """Make what trains, and go on from a checkpoint where there is one."""
        begin_peak(self.encoder.device)
        torch.manual_seed(rank_seed(self.config.seed, self.parallel.rank))
        self.tuning = Tuning(self.encoder, self.jobs, self.config, self.parallel)
        if self.parallel.main:
            logger.info("%s: %s", self.config.identity["policy"], counts_text(*self.tuning.counts))
        found = self.stage.resume(*self.tuning.state)
        if found is not None:
            where, _ = found
            self.tuning.steps.refresh()
            self.step = self.kept = where["step"]
            self.remember(where["scores"], where["dev"])
            self.aside = where["aside"]
            self.losses = [(job, loss) for job, loss in where["losses"]]
            logger.info("fine-tuning continues at step %d", self.step)

    def go(self) -> None:
        """All steps that are left."""
        saved = time.monotonic()
        with progress("fine-tune", self.total, unit="steps", done=self.step) as bar:
            for batch, parts in self._batches():
                job, indices = batch
                lr = learning_rate(self.config, self.step, self.total)
                self.tuning.steps.prepare(self.step, self.total, lr, job)
                share = self.jobs[job].weight / len(indices)
                losses = [
                    self.tuning.steps.backward(inputs, weight * share, part=number)
                    for number, (inputs, weight) in enumerate(parts)
                ]
                self.tuning.steps.update()
                self.step += 1
                self.last = batch
                self.unread.append((self.step, batch, torch.stack(losses).sum()))
                bar.advance()
                if self.encoder.device.type == "cpu":  # nothing has to be waited for
                    self._read_losses()
                if self.step % self.config.log_every == 0 or self.step == self.total:
                    self._read_losses()
                    bar.tell(loss=self._log_losses(lr), lr=lr)
                if self.step in self.looks:
                    self._read_losses()
                    self._look()
                for fraction in [f for f, mark in self.marks.items() if mark == self.step]:
                    self._read_losses()
                    self._snapshot(fraction)
                if self.step < self.total and self._due(saved):
                    self._checkpoint()
                    saved = time.monotonic()
        self.stage.close_log()
        self._end()

    def _log_losses(self, lr: float) -> float:
        """A line of the log: the mean loss since the last one, of several tasks theirs too."""
        mean = sum(loss for _, loss in self.losses) / len(self.losses)
        record = {"step": self.step, "epoch": self.plan.epochs_done(self.step), "loss": mean, "lr": lr}
        if len(self.jobs) > 1:
            for number, job in enumerate(self.jobs):
                own = [loss for which, loss in self.losses if which == number]
                if own:
                    record[f"loss_{job.name}"] = sum(own) / len(own)
        self.losses.clear()
        self.stage.log(record, step=self.step, group="finetune")
        return mean

    def _batches(self) -> Iterator[tuple[Batch, list[tuple[Any, float]]]]:
        """Batches from here to the end: task and windows, and what this process reads of them, with weights."""
        while self.step < self.total:
            epoch, begin = self.plan.place(self.step)
            batches = self.plan.batches(epoch)[: begin + self.total - self.step]
            shares = [self._shares(*batch) for batch in batches]
            streams = []
            for number, source in enumerate(self.tuning.sources):
                own = [share for (job, _), share in zip(batches, shares, strict=True) if job == number]
                done = [
                    share
                    for (job, _), share in zip(batches[:begin], shares[:begin], strict=True)
                    if job == number
                ]
                # The whole epoch with a place to start at: what is encoded together follows from all of it.
                parts = [piece.indices for pieces in own for piece in pieces]
                streams.append(source.stream(parts, start=sum(len(pieces) for pieces in done)))
            for batch, own in zip(batches[begin:], shares[begin:], strict=True):
                yield batch, [(next(streams[batch[0]]), share.weight) for share in own]

    def _shares(self, job: int, indices: NDArray[np.int64]) -> list[Part]:
        """What this process reads of a batch, part by part; windows of one example stay together."""
        group = self.jobs[job].task.group
        return rank_parts(indices, self.parallel, group=group, accumulate=self.config.accumulate)

    def _due(self, saved: float) -> bool:
        """Whether it is time for a checkpoint; rank 0's clock counts, and is not asked for at every step."""
        due = time.monotonic() - saved >= self.config.checkpoint_seconds
        if self.parallel.alone:
            return due
        return self.step % _ASKED == 0 and self.parallel.share(due)

    def _read_losses(self) -> None:
        """Look at the losses of the steps since the last time; one that is no number ends the run."""
        if not self.unread:
            return
        losses = torch.stack([loss for _, _, loss in self.unread]).float()
        self.parallel.sum_([losses])
        for (step, batch, _), value in zip(self.unread, losses.tolist(), strict=True):
            if not math.isfinite(value):
                raise TrainingError(self._broken(f"the loss became {value} at", step, batch))
            self.losses.append((batch[0], value))
        self.unread.clear()

    def _broken(self, what: str, step: int, batch: Batch) -> str:
        train = self.jobs[batch[0]].train
        named = train.ids(batch[1])
        more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
        where = f"on the {train.task.examples_are} {', '.join(named[:_NAMED])}{more}"
        kept = "no checkpoint was written before"
        if self.kept is not None:
            kept = f"the last good checkpoint, of step {self.kept}, is kept in {self.stage.folder}"
        return f"{what} step {step} of fine-tuning {where}: lower --lr of fine-tuning ({kept})"

    def _check_weights(self, name: str) -> None:
        """Refuse to keep what the last step broke: its loss was a number, as it came before the update."""
        trained: list[Any] = self.tuning.steps.parameters
        own: list[Tensor] = [p.to_local() if is_sharded(p) else p for p in trained]
        broken = torch.stack([(~part.isfinite()).any() for part in own]).any().float()
        self.parallel.sum_([broken])  # a rank may hold a part of the weights
        if broken:
            what = f"the weights of {name} are not finite after"
            raise TrainingError(self._broken(what, self.step, self.last))

    def _checkpoint(self) -> None:
        self._read_losses()
        self._check_weights("the checkpoint")
        where = {
            "step": self.step,
            "losses": self.losses,
            "scores": self.scores,
            "dev": self.dev,
            "aside": self.aside,
        }
        self.stage.save(*self.tuning.state, where)
        self.kept = self.step

    def _look(self) -> None:
        """Score every task on dev, on the way."""
        began = time.monotonic()
        encoder, heads = self.tuning.whole()
        found = self.parallel.on_main(lambda: score_snapshot(encoder.copy(), self.jobs, heads))
        self._log_scores(found)
        self.aside += time.monotonic() - began

    def _log_scores(self, found: Scores, **more: Any) -> None:
        record = {"step": self.step, "epoch": self.plan.epochs_done(self.step)} | more
        if len(self.jobs) == 1:
            self.stage.log(record | found, step=self.step, group="dev")
            return
        for name, scores in found.items():
            self.stage.log(record | {"task": name} | scores, step=self.step, group=f"dev/{name}")

    def _snapshot(self, fraction: float) -> None:
        """Keep the encoder and its heads, and score them where there is a dev set."""
        began = time.monotonic()
        self.peak = max(self.peak, peak_bytes(self.encoder.device))
        folder = self.stage.folder / snapshot_name(fraction)
        self._check_weights(folder.name)
        encoder, heads = self.tuning.whole()

        def keep() -> Scores | None:
            encoder.changed()
            keep_snapshot(
                folder,
                encoder,
                self.jobs,
                heads,
                name=self.encoder.name,
                settings=self.config.identity,
                fraction=fraction,
            )
            return None if self.dev is None else score_snapshot(encoder.copy(), self.jobs, heads, folder)

        found = self.parallel.on_main(keep)
        if found is not None:
            self.scores[folder.name] = found
            self._log_scores(found, snapshot=folder.name)
        self.aside += time.monotonic() - began
        begin_peak(self.encoder.device)

    def score_kept(self) -> bool:
        """Score the snapshots that nobody scored on this dev set; whether there were any."""
        missing = [folder for folder in self.folders if folder.name not in self.scores]
        if self.dev is None or not missing:
            return False
        began = time.monotonic()
        for folder in missing:
            score = partial(score_kept_snapshot, folder, self.encoder, self.jobs)
            self.scores[folder.name] = self.parallel.on_main(score)
        self.aside += time.monotonic() - began
        return True

    def _end(self) -> None:
        self.encoder.model.eval().requires_grad_(False)
        self.score_kept()
        seconds = max(self.stage.seconds - self.aside, 1e-9)
        trainable, total = self.tuning.counts
        self.stage.finish(
            {
                "steps": self.total,
                "policy": self.config.identity["policy"],
                "trainable": trainable,
                "parameters": total,
                "train_seconds": seconds,
                "tokens_per_second": self.plan.tokens_of(self.total) / seconds,
                "peak_bytes": self.peak,
                "snapshots": {f.name: self.scores[f.name] for f in self.folders if f.name in self.scores},
                "dev": self.dev,
            }
        )
