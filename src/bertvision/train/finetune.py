"""Fine-tune an encoder with a head, or with one for each of several tasks, in one continuous run with snapshots.

A policy (encoder/policy.py) says what of the encoder trains. A snapshot is the encoder at a fraction of an epoch, with
its own output layers, which are heads like any other:

    snapshot-1/encoder/        Hugging Face format, or a delta of its base
    snapshot-1/head/           of the only task; of several snapshot-1/heads/NAME/
"""

import logging
import math
import os
import re
import resource
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertvision.artifacts import atomic_folder
from bertvision.config import to_mapping
from bertvision.console import progress
from bertvision.encoder.batch import collate
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.freeze import check_policy
from bertvision.encoder.load import check_apart
from bertvision.encoder.policy import counts_text, parse_policy
from bertvision.errors import ConfigError, TrainingError
from bertvision.heads.base import load_head, save_head
from bertvision.train.config import TuneConfig
from bertvision.train.job import Batching, Job, dev_logits, score_logits
from bertvision.train.optim import learning_rate, rank_seed
from bertvision.train.parallel import ALONE, Parallel
from bertvision.train.run_folder import RunFolder
from bertvision.train.steps import make_steps

logger = logging.getLogger(__name__)

Scores = dict[str, Any]  # of one task its metrics; of several their metrics by name
_NAMED = 8  # examples of a broken batch that are named
_ASKED = 8  # steps after which several processes agree on whether a checkpoint is due


def tune(
    encoder: Encoder,
    jobs: Sequence[Job],
    *,
    folder: Path,
    config: TuneConfig,
    overwrite: bool = False,
    parallel: Parallel = ALONE,
) -> tuple[RunFolder, list[Path]]:
    """Fine-tune `encoder` in place; returns the run's folder and the snapshots in order.

    Finished work in `folder` is reused and interrupted work continued. Snapshots are scored on the jobs' dev sets, also
    those of a run that is done.
    """
    alone = len(jobs) == 1 and not jobs[0].name
    key: dict[str, Any] = {
        "encoder": encoder.fingerprint,
        "finetune": config.identity,
        # In bf16 one process computes on a copy of the weights, several under autocast: other numbers.
        "arithmetic": [encoder.device.type, encoder.precision, parallel.world],
    } | (jobs[0].identity if alone else {"tasks": {job.name: job.identity for job in jobs}})
    _check(encoder, jobs, config)
    plan = Batching(jobs, config)
    if overwrite:
        check_apart(encoder.name, folder)
    run_folder = RunFolder(folder, key, overwrite=overwrite, parallel=parallel, track=config.track)
    run = _Run(encoder, jobs, config, run_folder, plan)
    run.end(run_folder.results if run_folder.done else run.train())
    return run_folder, list(run.marks)


def _check(encoder: Encoder, jobs: Sequence[Job], config: TuneConfig) -> None:
    """Refuse what this encoder cannot do, before anything is changed or written."""
    check_policy(encoder.model, parse_policy(config.policy), name=encoder.name)
    if config.checkpointing:
        encoder.check_checkpointing()
    for job in jobs:
        with torch.device("meta"):  # shapes alone: some heads do not fit every encoder
            job.build(encoder, seed=config.seed)
    names = [job.name for job in jobs]
    distinct = len(set(names)) == len(names) and all(re.fullmatch(r"\w[\w.+-]*", name) for name in names)
    if names != [""] and not distinct:
        raise ConfigError(
            f"the tasks need names of their own of letters, digits and - (they become folders), not {names}"
        )
    windows = jobs[0].train.windows
    longest = np.array([windows.lengths.argmax()])
    encoder.check_states(collate(windows, longest, pad_id=encoder.pad_id, device=encoder.device))


class _Run:
    """One run: where it stands, its losses that nobody read yet, and what its snapshots scored."""

    def __init__(
        self, encoder: Encoder, jobs: Sequence[Job], config: TuneConfig, folder: RunFolder, plan: Batching
    ) -> None:
        self.encoder, self.jobs, self.config, self.plan = encoder, jobs, config, plan
        self.folder, self.parallel = folder, folder.parallel
        self.total = plan.step_of(config.epochs)
        # What the snapshots are scored on: a fingerprint for each task.
        devs = [job.dev.fingerprint if job.dev else None for job in jobs]
        self.dev = devs if any(devs) else None
        # Fraction of an epoch and step of each snapshot; on little data two may fall on one step.
        fractions = sorted({*config.snapshots, config.epochs})
        self.marks = {folder.folder / f"snapshot-{f:g}": (f, plan.step_of(f)) for f in fractions}
        # Steps after which tasks are scored on dev without a snapshot.
        self.evaluate_steps: set[int] = set()
        if config.score_every and self.dev is not None:
            count = math.floor(config.epochs / config.score_every + 1e-9)
            scored = [min(config.score_every * i, config.epochs) for i in range(1, count + 1)]
            self.evaluate_steps = {*map(plan.step_of, scored)} - {step for _, step in self.marks.values()}
        self.step = 0
        self.saved: int | None = None  # step of the last checkpoint
        self.unread: list[Tensor] = []  # losses of the last steps, which may still be on the device
        self.losses: list[float] = []  # since the last line of the log
        self.scores: dict[str, Scores] = {}  # of snapshots, by the names of their folders
        self.aside = 0.0  # seconds that snapshots and their scores took
        self.peak = 0  # most bytes held while training; scores on the way are not counted

    # ---- the loop

    def train(self) -> dict[str, Any]:
        """Take all steps, or those that are left after a checkpoint; returns what the run was."""
        begin_peak(self.encoder.device)
        torch.manual_seed(rank_seed(self.config.seed, self.parallel.rank))
        self.steps = make_steps(self.encoder, self.jobs, self.config, self.parallel)
        if self.parallel.main:
            logger.info("%s: %s", self.config.policy, counts_text(self.steps.trainable, self.steps.total))
        where = self.folder.resume(*self.steps.state)
        if where is not None:
            self.steps.refresh()
            self.step = self.saved = where["step"]
            self.losses, self.aside = where["losses"], where["aside"]
            self._remember(where)
            logger.info("fine-tuning continues at step %d", self.step)
        saved = time.monotonic()
        with progress("fine-tune", self.total, unit="steps", done=self.step) as bar:
            for job, windows in self.plan.steps(self.step, self.total):
                lr = learning_rate(self.config, self.step, self.total)
                self.unread.append(self.steps.take(self.step, self.total, lr, job, windows))
                self.step += 1
                bar.update()
                if self.encoder.device.type == "cpu":  # nothing has to be waited for
                    self._read_losses()
                if self.step % self.config.log_every == 0 or self.step == self.total:
                    bar.set_postfix(loss=self._log_losses(lr), lr=lr)
                for folder, (fraction, step) in self.marks.items():
                    if step == self.step:
                        self._keep(folder, fraction)
                if self.step in self.evaluate_steps:
                    self._read_losses()
                    self._log_scores(self._score(None))
                due = time.monotonic() - saved >= self.config.checkpoint_seconds
                if not self.parallel.alone:  # rank 0's clock counts, and is not asked for at every step
                    due = self.step % _ASKED == 0 and self.parallel.share(due)
                if self.step < self.total and due:
                    self._checkpoint()
                    saved = time.monotonic()
        self.folder.close_log()
        self.encoder.model.eval().requires_grad_(False)
        seconds = max(self.folder.seconds - self.aside, 1e-9)
        lengths = [job.train.windows.lengths for job in self.jobs]
        tokens = sum(int(lengths[job][windows].sum()) for job, windows in self.plan.steps(0, self.total))
        return {
            "steps": self.total,
            "policy": self.config.policy,
            "trainable": self.steps.trainable,
            "parameters": self.steps.total,
            "train_seconds": seconds,
            "tokens_per_second": tokens / seconds,
            "peak_bytes": self.peak,
            "snapshots": self.scores,
            "dev": self.dev,
        }

    def end(self, results: dict[str, Any]) -> None:
        """Score the snapshots that were not scored on this dev set, and write the results down."""
        self._remember(results)
        missing = [folder for folder in self.marks if folder.name not in self.scores and self.dev is not None]
        for folder in missing:
            self.scores[folder.name] = self._score(folder, live=False)
        if missing or not self.folder.done:
            self.folder.finish(results | {"snapshots": self.scores, "dev": self.dev})

    # ---- losses

    def _read_losses(self) -> None:
        """Look at the losses of the steps since the last time; one that is no number ends the run."""
        if not self.unread:
            return
        losses = torch.stack(self.unread).float()
        self.parallel.sum_([losses])
        for step, value in enumerate(losses.tolist(), self.step + 1 - len(self.unread)):
            if not math.isfinite(value):
                raise TrainingError(self._broken(f"the loss became {value} at", step))
            self.losses.append(value)
        self.unread.clear()

    def _log_losses(self, lr: float) -> float:
        self._read_losses()
        mean = sum(self.losses) / len(self.losses)
        record = {"step": self.step, "epoch": self.plan.epochs_done(self.step), "loss": mean, "lr": lr}
        if len(self.jobs) > 1:
            taken = [job for job, _ in self.plan.steps(self.step - len(self.losses), self.step)]
            for number, job in enumerate(self.jobs):
                own = [loss for which, loss in zip(taken, self.losses, strict=True) if which == number]
                if own:
                    record[f"loss_{job.name}"] = sum(own) / len(own)
        self.losses.clear()
        self.folder.log(record, step=self.step, group="finetune")
        return mean

    def _broken(self, what: str, step: int) -> str:
        """A sentence that names the step, its first examples, and what is left to go on from."""
        ((job, windows),) = self.plan.steps(step - 1, step)
        named = self.jobs[job].train.ids(windows)
        where = f"on the examples {', '.join(named[:_NAMED])}{', ...' * (len(named) > _NAMED)}"
        kept = "no checkpoint was written before"
        if self.saved is not None:
            kept = f"the last good checkpoint, of step {self.saved}, is kept in {self.folder.folder}"
        return f"{what} step {step} of fine-tuning {where}: lower --lr of fine-tuning ({kept})"

    def _check_weights(self, name: str) -> None:
        """Refuse to keep what the last step broke: its loss was a number, as it came before the update."""
        self._read_losses()
        if not torch.stack([p.isfinite().all() for p in self.steps.parameters]).all():
            raise TrainingError(self._broken(f"the weights of {name} are not finite after", self.step))

    # ---- checkpoints, snapshots and scores

    def _checkpoint(self) -> None:
        self._check_weights("the checkpoint")
        where = {"step": self.step, "losses": self.losses, "aside": self.aside}
        self.folder.save(*self.steps.state, where | {"snapshots": self.scores, "dev": self.dev})
        self.saved = self.step

    def _keep(self, folder: Path, fraction: float) -> None:
        """Keep a snapshot, and score it where there is a dev set."""
        began = time.monotonic()
        self.peak = max(self.peak, peak_bytes(self.encoder.device))
        self._check_weights(folder.name)
        self.encoder.changed()
        self.parallel.on_main(lambda: self._write(folder, fraction))
        self.aside += time.monotonic() - began
        if self.dev is not None:
            self.scores[folder.name] = self._score(folder)
            self._log_scores(self.scores[folder.name], snapshot=folder.name)
        begin_peak(self.encoder.device)

    def _write(self, folder: Path, fraction: float) -> None:
        """Write the encoder and the heads that answer anything, in one step."""
        with atomic_folder(folder) as temporary:
            self.encoder.save(temporary / "encoder")
            for job, head in zip(self.jobs, self.steps.heads, strict=True):
                if not job.task.predicts:
                    continue
                own = job.folder(temporary)
                own.mkdir(parents=True)
                path = os.path.relpath(temporary / "encoder", own)
                about = job.train.about | {
                    "windows": to_mapping(job.train.config),
                    "fit": self.config.identity,
                    "encoder": {
                        "name": self.encoder.name,
                        "path": path,
                        "fingerprint": self.encoder.fingerprint,
                    },
                    "fraction": fraction,
                    "label": job.name or folder.name,
                }
                save_head(head, own, about=about)

    def _score(self, folder: Path | None, *, live: bool = True) -> Scores:
        """Scores on dev of every task, by what is in training or (not live) by the snapshot that `folder` holds.

        Logits are kept beside the heads of a snapshot.
        """
        began = time.monotonic()
        how: dict[str, Any] = {"device": str(self.encoder.device), "precision": self.encoder.precision}

        def score() -> Scores:
            twin, scores = self.encoder.copy() if live else None, {}

            def load() -> Encoder:
                return twin or Encoder.load(f"{folder}/encoder", **how)

            for number, job in enumerate(self.jobs):
                if job.dev is None:
                    continue
                kept = job.folder(folder) if folder is not None and job.task.predicts else None
                if twin is None and kept is None:
                    continue  # a head that answers nothing is in no snapshot
                head = self.steps.heads[number] if twin or kept is None else load_head(kept)[0]
                scores[job.name] = score_logits(dev_logits(job.dev, head, load, kept), job.dev)
            return scores if len(self.jobs) > 1 else next(iter(scores.values()), {})

        scores = self.parallel.on_main(score)
        self.aside += time.monotonic() - began
        return scores

    def _log_scores(self, scores: Scores, **more: str) -> None:
        record = {"step": self.step, "epoch": self.plan.epochs_done(self.step)} | more
        if len(self.jobs) == 1:
            self.folder.log(record | scores, step=self.step, group="dev")
        else:
            for name, own in scores.items():
                self.folder.log(record | {"task": name} | own, step=self.step, group=f"dev/{name}")

    def _remember(self, found: dict[str, Any]) -> None:
        """Take over scores of snapshots, unless they are of another dev set."""
        self.scores = found["snapshots"] if self.dev is not None and found["dev"] == self.dev else {}


# ---- memory: on a CUDA device what tensors held at most, on a CPU what this process did


def begin_peak(device: torch.device) -> None:
    """Forget what was held at most before; only CUDA and Linux can."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):  # not Linux, or not allowed
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes(device: torch.device) -> int:
    """The most bytes held since `begin_peak`."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError):
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
