"""Fine-tune an encoder with a head, or with one for each of several tasks, in one continuous run with snapshots.

A policy (encoder/policy.py) says what of the encoder trains. A snapshot is the encoder at a fraction of an epoch, with
its own output layers, which are heads like any other (train/snapshots.py).
"""

import logging
import math
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
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
from bertvision.train.parallel import ALONE, Parallel, rank_parts
from bertvision.train.randomness import rank_seed
from bertvision.train.run_folder import RunFolder
from bertvision.train.sharded import is_sharded
from bertvision.train.snapshots import Scores, keep_snapshot, score_kept_snapshot, score_snapshot
from bertvision.train.splits import Split, null_weighted
from bertvision.train.steps import TokenSource, make_steps
from bertvision.train.tuning import Tuning, check_tuning

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
    """Fine-tune `encoder` in place, for one task; returns the run's folder and the snapshots in order.

    Finished work in `folder` is reused and interrupted work continued. Snapshots are scored on `dev` where there is
    one, also those of a run that is done.
    """
    train = null_weighted(train, config.null_weight)
    job = Job(train, dev, head=config.head, sampling=config.sampling)
    return tune_jobs(encoder, [job], folder=folder, config=config, overwrite=overwrite, parallel=parallel)


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
        "finetune": config.identity,
        # In bf16 one process computes on a copy of the weights, several under autocast: other numbers.
        "arithmetic": [encoder.device.type, encoder.precision, parallel.world],
    } | (jobs[0].identity if alone else {"tasks": {job.name: job.identity for job in jobs}})
    check_tuning(encoder, jobs, config, parallel)  # before anything is written
    if overwrite:
        check_apart(encoder.name, folder)
    run_folder = RunFolder(folder, key, overwrite=overwrite, parallel=parallel, track=config.track)
    run = _Run(encoder, jobs, config, run_folder)
    if run_folder.done:
        run.score_again()
    else:
        run.begin()
        run.go()
    return run_folder, run.snapshots


class _Run:
    """One run: where it stands, its losses that nobody read yet, and what its snapshots scored."""

    def __init__(self, encoder: Encoder, jobs: Sequence[Job], config: TuneConfig, folder: RunFolder) -> None:
        self.encoder, self.jobs, self.config = encoder, jobs, config
        self.folder, self.parallel = folder, folder.parallel
        mixing: dict[str, Any] = {}
        if isinstance(config, MultitaskConfig):
            mixing = {"order": config.order, "temperature": config.temperature}
        plans = [job.plan(config.batch_size, config.batch_tokens) for job in jobs]
        self.plan = Batching(plans, seed=config.seed, epochs=config.epochs, **mixing)
        devs = [job.dev.fingerprint if job.dev else None for job in jobs]
        self.dev = devs if any(devs) else None
        """What the snapshots are scored on: a fingerprint for each task; None = nothing."""
        # On little data two fractions may fall on one step; each gets its folder all the same.
        self.marks = {f: self.plan.step_of(f) for f in sorted({*config.snapshots, config.epochs})}
        """Step of each snapshot."""
        self.total = self.plan.step_of(config.epochs)
        self.evaluate_steps: set[int] = set()
        """Steps after which tasks are scored on dev without a snapshot."""
        if config.score_every and self.dev is not None:
            count = math.floor(config.epochs / config.score_every + 1e-9)
            fractions = [min(config.score_every * i, config.epochs) for i in range(1, count + 1)]
            self.evaluate_steps = {self.plan.step_of(f) for f in fractions} - {*self.marks.values()}
        self.step = 0
        self.saved: int | None = None
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
    def snapshots(self) -> list[Path]:
        """Their folders, in order."""
        return [self._snapshot_folder(fraction) for fraction in self.marks]

    def _snapshot_folder(self, fraction: float) -> Path:
        return self.folder.folder / f"snapshot-{fraction:g}"

    # ---- the loop

    def begin(self) -> None:
        """Make what trains, and go on from a checkpoint where there is one."""
        begin_peak(self.encoder.device)
        torch.manual_seed(rank_seed(self.config.seed, self.parallel.rank))
        self.tuning = Tuning(self.encoder, self.jobs, self.config, self.parallel)
        self.steps = make_steps(self.tuning)
        self.sources = [TokenSource(self.encoder, job.train.windows) for job in self.jobs]
        if self.parallel.main:
            logger.info("%s: %s", self.config.identity["policy"], counts_text(*self.tuning.counts))
        where = self.folder.resume(*self.tuning.state)
        if where is not None:
            self.steps.refresh()
            self.step = self.saved = where["step"]
            self._remember(where["scores"], where["dev"])
            self.aside = where["aside"]
            self.losses = [(job, loss) for job, loss in where["losses"]]
            logger.info("fine-tuning continues at step %d", self.step)

    def go(self) -> None:
        """Take all steps that are left."""
        saved = time.monotonic()
        with progress("fine-tune", self.total, unit="steps", done=self.step) as bar:
            for batch in self.plan.steps(self.step, self.total):
                lr = learning_rate(self.config, self.step, self.total)
                self._take(batch, lr)
                bar.advance()
                if self.encoder.device.type == "cpu":  # nothing has to be waited for
                    self._read_losses()
                if self.step % self.config.log_every == 0 or self.step == self.total:
                    self._read_losses()
                    bar.show(loss=self._log_losses(lr), lr=lr)
                fractions = [f for f, mark in self.marks.items() if mark == self.step]
                for fraction in [*fractions, *([None] if self.step in self.evaluate_steps else [])]:
                    self._read_losses()
                    self._evaluate(fraction)
                if self.step < self.total and self._due(saved):
                    self._checkpoint()
                    saved = time.monotonic()
        self.folder.close_log()
        self._end()

    def _take(self, batch: Batch, lr: float) -> None:
        """One step: this process's windows of the batch, part by part, then the update."""
        job, windows = batch
        self.steps.prepare(self.step, self.total, lr, job)
        group, share = self.jobs[job].task.group, self.jobs[job].weight / len(windows)
        parts = rank_parts(windows, self.parallel, group=group, accumulate=self.config.accumulate)
        losses = [
            self.steps.backward(self.sources[job].batch(part.indices), part.weight * share, part=number)
            for number, part in enumerate(parts)
        ]
        self.steps.update()
        self.step += 1
        self.last = batch
        self.unread.append((self.step, batch, torch.stack(losses).sum()))

    def _end(self) -> None:
        self.encoder.model.eval().requires_grad_(False)
        self._score_missing()
        seconds = max(self.folder.seconds - self.aside, 1e-9)
        trainable, total = self.tuning.counts
        tokens = sum(
            int(self.jobs[job].train.windows.lengths[windows].sum())
            for job, windows in self.plan.steps(0, self.total)
        )
        self.folder.finish(
            {
                "steps": self.total,
                "policy": self.config.identity["policy"],
                "trainable": trainable,
                "parameters": total,
                "train_seconds": seconds,
                "tokens_per_second": tokens / seconds,
                "peak_bytes": self.peak,
                "snapshots": {f.name: self.scores[f.name] for f in self.snapshots if f.name in self.scores},
                "dev": self.dev,
            }
        )

    # ---- losses

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

    def _log_losses(self, lr: float) -> float:
        """Write a line of the log: the mean loss since the last one, of several tasks theirs too."""
        mean = sum(loss for _, loss in self.losses) / len(self.losses)
        record = {"step": self.step, "epoch": self.plan.epochs_done(self.step), "loss": mean, "lr": lr}
        if len(self.jobs) > 1:
            for number, job in enumerate(self.jobs):
                own = [loss for which, loss in self.losses if which == number]
                if own:
                    record[f"loss_{job.name}"] = sum(own) / len(own)
        self.losses.clear()
        self.folder.log(record, step=self.step, group="finetune")
        return mean

    def _broken(self, what: str, step: int, batch: Batch) -> str:
        train = self.jobs[batch[0]].train
        named = train.ids(batch[1])
        more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
        where = f"on the examples {', '.join(named[:_NAMED])}{more}"
        kept = "no checkpoint was written before"
        if self.saved is not None:
            kept = f"the last good checkpoint, of step {self.saved}, is kept in {self.folder.folder}"
        return f"{what} step {step} of fine-tuning {where}: lower --lr of fine-tuning ({kept})"

    def _check_weights(self, name: str) -> None:
        """Refuse to keep what the last step broke: its loss was a number, as it came before the update."""
        trained: list[Any] = self.steps.parameters
        own: list[Tensor] = [p.to_local() if is_sharded(p) else p for p in trained]
        broken = torch.stack([(~part.isfinite()).any() for part in own]).any().float()
        self.parallel.sum_([broken])  # a rank may hold a part of the weights
        if broken:
            what = f"the weights of {name} are not finite after"
            raise TrainingError(self._broken(what, self.step, self.last))

    # ---- checkpoints

    def _due(self, saved: float) -> bool:
        """Whether it is time for a checkpoint; rank 0's clock counts, and is not asked for at every step."""
        due = time.monotonic() - saved >= self.config.checkpoint_seconds
        if self.parallel.alone:
            return due
        return self.step % _ASKED == 0 and self.parallel.share(due)

    def _checkpoint(self) -> None:
        self._read_losses()
        self._check_weights("the checkpoint")
        names = ("step", "losses", "scores", "dev", "aside")
        self.folder.save(*self.tuning.state, {name: getattr(self, name) for name in names})
        self.saved = self.step

    # ---- snapshots and scores

    def _evaluate(self, fraction: float | None) -> None:
        """Keep the snapshot of this fraction, if one is given, and score every task where there is a dev set."""
        began = time.monotonic()
        folder = None if fraction is None else self._snapshot_folder(fraction)
        if folder is not None:
            self.peak = max(self.peak, peak_bytes(self.encoder.device))
            self._check_weights(folder.name)
        encoder, heads = self.tuning.whole()

        def keep_and_score() -> Scores | None:
            if folder is not None and fraction is not None:
                encoder.changed()
                about: dict[str, Any] = {"name": self.encoder.name, "settings": self.config.identity}
                keep_snapshot(folder, encoder, self.jobs, heads, fraction=fraction, **about)
            return None if self.dev is None else score_snapshot(encoder.copy(), self.jobs, heads, folder)

        scores = self.parallel.on_main(keep_and_score)
        if scores is not None and folder is not None:
            self.scores[folder.name] = scores
        if scores is not None:
            self._log_scores(scores, {} if folder is None else {"snapshot": folder.name})
        self.aside += time.monotonic() - began
        if folder is not None:
            begin_peak(self.encoder.device)

    def _log_scores(self, scores: Scores, more: dict[str, Any]) -> None:
        record = {"step": self.step, "epoch": self.plan.epochs_done(self.step)} | more
        if len(self.jobs) == 1:
            self.folder.log(record | scores, step=self.step, group="dev")
            return
        for name, own in scores.items():
            self.folder.log(record | {"task": name} | own, step=self.step, group=f"dev/{name}")

    def _remember(self, scores: dict[str, Scores], dev: Any) -> None:
        """Take over scores of snapshots, unless they are of another dev set."""
        self.scores = scores if self.dev is not None and dev == self.dev else {}

    def _score_missing(self) -> bool:
        """Score the snapshots that were not scored on this dev set; whether there were any."""
        missing = [folder for folder in self.snapshots if folder.name not in self.scores]
        if self.dev is None or not missing:
            return False
        began = time.monotonic()
        for folder in missing:
            score = partial(score_kept_snapshot, folder, self.encoder, self.jobs)
            self.scores[folder.name] = self.parallel.on_main(score)
        self.aside += time.monotonic() - began
        return True

    def score_again(self) -> None:
        """Score a finished run's snapshots on a dev set that they were not scored on."""
        if self.dev is None:
            return
        results = self.folder.results
        self._remember(results["snapshots"], results["dev"])
        if self._score_missing():
            self.folder.finish(results | {"snapshots": self.scores, "dev": self.dev})
