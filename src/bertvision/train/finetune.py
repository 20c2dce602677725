"""Fine-tune an encoder with a head, in one continuous run, with snapshots on the way.

A policy (encoder/policy.py) says what of the encoder trains. A snapshot is the encoder at a fraction of an epoch:
`snapshot-0.3/` holds `encoder/` (Hugging Face format, or a delta of its base) and `head/` (its own output layer, a head
like any other, with its logits on dev where there is a dev set).

Under `cut-K` the layers below the cut are an encoder of their own whose one state a feed keeps or computes
(encoder/cut.py), and a step costs the layers above alone.
"""

import logging
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertvision.artifacts import atomic_folder
from bertvision.config import to_mapping
from bertvision.console import progress
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.load import check_apart
from bertvision.encoder.policy import counts_text, parse_policy
from bertvision.errors import TrainingError
from bertvision.feed import FeedConfig
from bertvision.heads.files import save_head
from bertvision.train.batching import Batching
from bertvision.train.checkpoint import load_checkpoint, save_checkpoint
from bertvision.train.finetune_config import FinetuneConfig
from bertvision.train.log import MetricsLog
from bertvision.train.memory import begin_peak, peak_bytes
from bertvision.train.optim import learning_rate
from bertvision.train.parallel import ALONE, Parallel
from bertvision.train.scoring import kept_logits, score_logits, score_snapshot
from bertvision.train.sharded import is_sharded
from bertvision.train.splits import Split
from bertvision.train.stage import Stage
from bertvision.train.tuning import Tuning, check_tuning

__all__ = ["FinetuneConfig", "finetune", "snapshot_name", "tune"]

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
    feed: FeedConfig | None = None,
    overwrite: bool = False,
    tensorboard: bool = False,
    parallel: Parallel = ALONE,
) -> tuple[Stage, list[Path]]:
    """Fine-tune in `folder`, reusing or continuing what is there; returns the stage and the snapshots.

    Snapshots are scored on `dev` where there is one, also those of a run that is done; `feed` says where states at a
    cut come from.
    """
    feed = feed or FeedConfig()
    key: dict[str, Any] = {
        "encoder": encoder.fingerprint,
        "train": train.fingerprint,
        "finetune": config.identity,
        "arithmetic": [encoder.device.type, encoder.precision],
    }
    if parse_policy(config.policy).cut is not None:  # states that were kept are rounded
        key["states"] = {"source": feed.source, "dtype": feed.dtype}
    check_tuning(encoder, config, feed, parallel)  # before anything is written
    if overwrite:
        check_apart(encoder.name, folder)
    stage = Stage(folder, key, overwrite=overwrite, parallel=parallel)
    return stage, finetune(encoder, train, config, stage, dev=dev, feed=feed, tensorboard=tensorboard)


def snapshot_name(fraction: float) -> str:
    return f"snapshot-{fraction:g}"


def finetune(
    encoder: Encoder,
    train: Split,
    config: FinetuneConfig,
    stage: Stage,
    *,
    dev: Split | None = None,
    feed: FeedConfig,
    tensorboard: bool = False,
) -> list[Path]:
    """Train `encoder` in place; returns the snapshot folders in order. Goes on where a killed run stopped."""
    run = _Run(encoder, train, config, stage, dev)
    if not stage.done:
        run.begin(feed, tensorboard)
        run.go()
    elif dev is not None:
        run.remember(stage.results["snapshots"], stage.results["dev"])
        if run.score_kept():
            stage.finish(stage.results | {"snapshots": run.scores, "dev": dev.fingerprint})
    return run.folders


class _Run:
    """One run: where it stands, its losses that nobody read yet, and what its snapshots scored."""

    def __init__(
        self, encoder: Encoder, train: Split, config: FinetuneConfig, stage: Stage, dev: Split | None
    ) -> None:
        self.encoder, self.train, self.config = encoder, train, config
        self.stage, self.dev, self.parallel = stage, dev, stage.parallel
        self.plan = Batching(
            train.windows,
            batch_size=config.batch_size,
            tokens=config.batch_tokens,
            balanced=config.sampling == "balanced",
            seed=config.seed,
            epochs=config.epochs,
        )
        # On little data two fractions may fall on one step; each gets its folder all the same.
        self.marks = {f: self.plan.step_of(f) for f in sorted({*config.snapshots, config.epochs})}
        self.total = self.plan.step_of(config.epochs)
        self.step = 0
        self.kept: int | None = None
        """Step of the last checkpoint."""
        self.unread: list[tuple[int, NDArray[np.int64], Tensor]] = []
        """Steps, their windows and losses, which may still be on the device."""
        self.last = np.zeros(0, np.int64)
        """Windows of the last step."""
        self.losses: list[float] = []
        """Since the last line of the log."""
        self.scores: dict[str, dict[str, float]] = {}
        self.aside = 0.0
        """Seconds that snapshots and their scores took."""
        self.peak = 0
        """Most bytes held while training; scores on the way are not counted."""

    @property
    def folders(self) -> list[Path]:
        """Of the snapshots, in order."""
        return [self.stage.folder / snapshot_name(fraction) for fraction in self.marks]

    def remember(self, scores: dict[str, dict[str, float]], dev: str | None) -> None:
        """Scores of snapshots by an earlier try, unless they are of another dev set."""
        self.scores = scores if self.dev is not None and dev == self.dev.fingerprint else {}

    def begin(self, feed: FeedConfig, tensorboard: bool) -> None:
        """Make what trains, and go on from a checkpoint where there is one."""
        begin_peak(self.encoder.device)
        torch.manual_seed(self.config.seed + self.parallel.rank)
        self.tuning = Tuning(self.encoder, self.train, self.config, self.stage, feed)
        if self.parallel.main:
            logger.info("%s: %s", self.config.identity["policy"], counts_text(*self.tuning.counts))
        lines = 0
        if self.stage.resumes:
            where, _ = load_checkpoint(self.stage.checkpoint, *self.tuning.state, parallel=self.parallel)
            self.tuning.steps.refresh()
            self.step = self.kept = where["step"]
            self.remember(where["scores"], where["dev"])
            self.aside, self.losses, lines = where["aside"], where["losses"], where["lines"]
            self.stage.went_on(where["seconds"])
            logger.info("fine-tuning goes on at step %d", self.step)
        self.log = MetricsLog(
            self.stage.metrics, keep=lines, tensorboard=tensorboard, main=self.parallel.main
        )

    def go(self) -> None:
        """All steps that are left."""
        saved = time.monotonic()
        with progress("fine-tune", self.total, unit="steps", done=self.step) as bar:
            for indices, parts in self._batches():
                lr = learning_rate(self.config, self.step, self.total)
                self.tuning.steps.prepare(self.step, self.total, lr)
                losses = [
                    self.tuning.steps.backward(inputs, weight / len(indices), part=number)
                    for number, (inputs, weight) in enumerate(parts)
                ]
                self.tuning.steps.update()
                self.step += 1
                self.last = indices
                self.unread.append((self.step, indices, torch.stack(losses).sum()))
                bar.advance()
                if self.encoder.device.type == "cpu":  # nothing has to be waited for
                    self._read_losses()
                if self.step % self.config.log_every == 0 or self.step == self.total:
                    self._read_losses()
                    mean = sum(self.losses) / len(self.losses)
                    self.losses.clear()
                    bar.tell(loss=mean, lr=lr)
                    epoch = self.plan.epochs_done(self.step)
                    record = {"step": self.step, "epoch": epoch, "loss": mean, "lr": lr}
                    self.log.write(record, step=self.step, group="finetune")
                for fraction in [f for f, mark in self.marks.items() if mark == self.step]:
                    self._read_losses()
                    self._snapshot(fraction)
                if self.step < self.total and self._due(saved):
                    self._checkpoint()
                    saved = time.monotonic()
        self.log.close()
        self._end()

    def _batches(self) -> Iterator[tuple[NDArray[np.int64], list[tuple[Any, float]]]]:
        """Batches from here to the end: their windows, and what this process reads of them, in parts with weights."""
        while self.step < self.total:
            epoch, begin = self.plan.place(self.step)
            batches = self.plan.epoch(epoch)[: begin + self.total - self.step]
            cut = [np.array_split(b, min(self.config.accumulate, len(b))) for b in batches]
            shares = [[self.parallel.part(piece) for piece in pieces] for pieces in cut]
            # The whole epoch with a place to start at: what is encoded together follows from all of it.
            parts = [share.indices for own in shares for share in own]
            stream = self.tuning.source.stream(parts, start=sum(len(own) for own in shares[:begin]))
            for indices, own in zip(batches[begin:], shares[begin:], strict=True):
                yield indices, [(next(stream), share.weight) for share in own]

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
        for (step, indices, _), value in zip(self.unread, losses.tolist(), strict=True):
            if not math.isfinite(value):
                raise TrainingError(self._broken(f"the loss became {value} at", step, indices))
            self.losses.append(value)
        self.unread.clear()

    def _broken(self, what: str, step: int, indices: NDArray[np.int64]) -> str:
        examples = self.train.data.examples
        numbers = dict.fromkeys(self.train.windows.example[indices].tolist())
        named = [examples[i].id if examples else f"number {i}" for i in numbers]
        more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
        where = f"on the questions {', '.join(named[:_NAMED])}{more}"
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
            "lines": self.log.lines,
            "seconds": self.stage.seconds,
            "losses": self.losses,
            "scores": self.scores,
            "dev": self.dev.fingerprint if self.dev else None,
            "aside": self.aside,
        }
        modules, optimizers = self.tuning.state
        save_checkpoint(self.stage.checkpoint, modules, optimizers, progress=where, parallel=self.parallel)
        self.kept = self.step

    def _snapshot(self, fraction: float) -> None:
        """Keep the encoder and its head, and score them where there is a dev set."""
        began = time.monotonic()
        self.peak = max(self.peak, peak_bytes(self.encoder.device))
        folder = self.stage.folder / snapshot_name(fraction)
        self._check_weights(folder.name)
        encoder, head = self.tuning.whole()

        def keep() -> dict[str, float] | None:
            encoder.changed()
            about = {
                "task": "span",
                "windows": to_mapping(self.train.config),
                "fit": self.config.identity,
                "encoder": {
                    "name": self.encoder.name,
                    "path": "../encoder",
                    "fingerprint": encoder.fingerprint,
                },
                "fraction": fraction,
                "label": folder.name,
            }
            with atomic_folder(folder) as temporary:
                encoder.save(temporary / "encoder")
                (temporary / "head").mkdir()
                save_head(head, temporary / "head", about=about)
            if self.dev is None:
                return None
            return score_snapshot(encoder.copy(), head, self.dev, folder / "head")

        found = self.parallel.on_main(keep)
        if found is not None:
            self.scores[folder.name] = found
            record = {"step": self.step, "epoch": self.plan.epochs_done(self.step), "snapshot": folder.name}
            self.log.write(record | found, step=self.step, group="dev")
        self.aside += time.monotonic() - began
        begin_peak(self.encoder.device)

    def score_kept(self) -> bool:
        """Score the snapshots that nobody scored on this dev set; whether there were any."""
        missing = [folder for folder in self.folders if folder.name not in self.scores]
        if self.dev is None or not missing:
            return False
        began, dev = time.monotonic(), self.dev
        for folder in missing:

            def score(folder: Path = folder) -> dict[str, float]:
                device, precision = str(self.encoder.device), self.encoder.precision
                return score_logits(kept_logits(folder, dev, device=device, precision=precision), dev)

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
                "states": self.stage.choices.get("states at the cut"),
                "snapshots": {f.name: self.scores[f.name] for f in self.folders if f.name in self.scores},
                "dev": self.dev.fingerprint if self.dev else None,
            }
        )
