"""Fit many heads in one walk over the states of a frozen encoder.

Each head has its own optimiser, schedule, seed and metrics. All of them see the same batch, one after another,
and then its states are freed. A head whose loss is no longer a number is dropped with a word; it shares nothing
with the others, so they go on untouched.
"""

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from bertvision.console import progress
from bertvision.errors import ConfigError, TrainingError
from bertvision.feed.batches import Feed, StateBatch
from bertvision.heads.base import Geometry, Head, run_head
from bertvision.heads.spec import HeadSpec
from bertvision.tasks.span.loss import span_loss
from bertvision.train.checkpoint import load_checkpoint, save_checkpoint
from bertvision.train.log import MetricsLog
from bertvision.train.optim import OptimConfig, learning_rate, make_optimizer, update
from bertvision.train.randomness import seeded
from bertvision.train.stage import Stage

__all__ = ["Evaluate", "FitConfig", "FittedHead", "fit"]

logger = logging.getLogger(__name__)

Evaluate = Callable[[Mapping[str, Head]], Mapping[str, float]]
"""Scores of heads on a held-out split, higher is better; NaN for a head whose logits are not finite."""


@dataclass(frozen=True)
class FitConfig(OptimConfig):
    """How heads are fitted on the states of a frozen encoder."""

    heads: tuple[str, ...] = ("last_state", "learned_pooling", "adapter:size=64", "adapter", "adapter:skip")
    """Heads such as adapter:size=64,skip or learned_pooling:lr=3e-3 (`bertvision heads` lists them)."""
    seeds: tuple[int, ...] = (0,)
    """Fit every head once for each of these seeds."""
    epochs: int = 1
    """Passes over the states."""
    batch_size: int = 16
    """Windows per step."""
    patience: int = 0
    """Stop a head after this many epochs without a better dev score; 0 = never."""
    keep: Literal["last", "best"] = "last"
    """Keep the weights of the last epoch or of the best on dev."""
    checkpoint_seconds: float = 60.0
    """Time between two checkpoints."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"--{name.replace('_', '-')} of the fit must be at least 1, not {getattr(self, name)}"
                )
        if self.patience < 0:
            raise ConfigError(f"--patience must not be negative, not {self.patience}")
        if not self.heads:
            raise ConfigError("--heads names no head: give at least one (`bertvision heads` lists them)")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise ConfigError(f"--seeds must be different numbers, none negative, not {self.seeds}")

    @property
    def scores_epochs(self) -> bool:
        """Whether dev scores are needed during the fit."""
        return self.keep == "best" or self.patience > 0

    def optim(self, spec: HeadSpec, seed: int) -> OptimConfig:
        """What one head is fitted with: its own settings where it has some, else the fit's."""
        own = {k: v for k, v in dataclasses.asdict(spec.train).items() if v is not None and k != "seed"}
        return OptimConfig(
            lr=own.get("lr", self.lr),
            schedule=self.schedule,
            warmup=self.warmup,
            weight_decay=own.get("weight_decay", self.weight_decay),
            clip=self.clip,
            seed=seed,
        )


@dataclass
class FittedHead:
    """A head and what happened to it; everything but `head` survives in a checkpoint."""

    name: str
    spec: HeadSpec
    seed: int
    head: Head
    config: OptimConfig
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


class _Fit:
    """The state of one fit: heads, optimisers, best weights, position."""

    def __init__(self, feed: Feed, specs: Sequence[tuple[str, HeadSpec, int]], config: FitConfig) -> None:
        self.feed, self.config = feed, config
        geometry = Geometry(feed.encoder.num_states, feed.encoder.hidden)
        self.fitted: dict[str, FittedHead] = {}
        for name, spec, seed in specs:
            head = spec.build(geometry, seed=seed).to(feed.encoder.device)
            self.fitted[name] = FittedHead(name, spec, seed, head, config.optim(spec, seed))
        self.optimizers = {name: make_optimizer([f.head], f.config) for name, f in self.fitted.items()}
        self.best: dict[str, dict[str, Tensor]] = {}
        self.steps = feed.num_batches(config.batch_size)
        self.epoch = self.batch = 0

    def live(self) -> list[FittedHead]:
        return [f for f in self.fitted.values() if f.status == "fitting"]

    def train_batch(self, batch: StateBatch) -> None:
        """One step of every live head on the same states."""
        step = self.epoch * self.steps + self.batch
        for fitted in self.live():
            began = time.perf_counter()
            fitted.head.train()
            # Each head has its own stream for dropout, so that it does the same whoever is fitted beside it.
            with seeded(self.feed.encoder.device, fitted.seed, step), self.feed.encoder.autocast():
                logits = run_head(fitted.head, batch)
            loss = span_loss(logits, batch.mask, batch.labels, reduction="mean")
            loss.backward()
            lr = learning_rate(fitted.config, step, self.config.epochs * self.steps)
            update(self.optimizers[fitted.name], fitted.config, lr=lr)
            value = float(loss.detach())  # waits for the device, so the seconds beside it are this head's own
            fitted.loss_sum += value
            fitted.seconds += time.perf_counter() - began
            if not math.isfinite(value):
                self._drop(fitted, f"loss {value} at step {step + 1}")
        self.batch += 1

    @staticmethod
    def _drop(fitted: FittedHead, why: str) -> None:
        fitted.status = "diverged"
        logger.warning("head %s diverged (%s) and is dropped; the others go on", fitted.name, why)

    @torch.no_grad()
    def drop_broken(self) -> None:
        """Drop heads that the very last step broke: no loss came after it, and they would end the evaluation."""
        batch = next(iter(self.feed.walk()))
        for fitted in (f for f in self.fitted.values() if f.status != "diverged"):
            with self.feed.encoder.autocast():
                logits = run_head(fitted.head.eval(), batch)
            if not bool(logits[batch.mask].isfinite().all()):
                self._drop(fitted, "its logits are not finite")

    def end_epoch(self, evaluate: Evaluate | None, log: MetricsLog) -> None:
        """Score, remember the best, stop who does not improve any more."""
        live = self.live()
        scores = evaluate({f.name: f.head for f in live}) if evaluate and live else {}
        self.epoch, self.batch = self.epoch + 1, 0
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
                    if self.config.keep == "best":
                        self.best[fitted.name] = {
                            k: v.detach().clone() for k, v in fitted.head.state_dict().items()
                        }
                elif self.config.patience and self.epoch - fitted.best_epoch >= self.config.patience:
                    fitted.status = "stopped"
            fitted.history.append(record)
            log.write({"head": fitted.name, **record}, step=self.epoch, group=fitted.name)

    # ---- checkpoints

    def save(self, stage: Stage, log: MetricsLog) -> None:
        state = {
            "epoch": self.epoch,
            "batch": self.batch,
            "lines": log.lines,
            "seconds": stage.seconds,
            "heads": {name: f.progress() for name, f in self.fitted.items()},
        }
        best = {
            f"{name}/{key}": value for name, tensors in self.best.items() for key, value in tensors.items()
        }
        modules = {name: f.head for name, f in self.fitted.items()}
        save_checkpoint(stage.checkpoint, modules, self.optimizers, progress=state, extra=best)

    def load(self, stage: Stage) -> int:
        """Go on from the checkpoint; returns how many lines of the log it knew."""
        modules = {name: f.head for name, f in self.fitted.items()}
        state, best = load_checkpoint(stage.checkpoint, modules, self.optimizers)
        self.epoch, self.batch = state["epoch"], state["batch"]
        for name, saved in state["heads"].items():
            for key, value in saved.items():
                setattr(self.fitted[name], key, value)
        for path, value in best.items():
            name, _, key = path.rpartition("/")
            self.best.setdefault(name, {})[key] = value.to(self.feed.encoder.device)
        stage.went_on(state["seconds"])
        return state["lines"]


def fit(
    feed: Feed,
    specs: Sequence[tuple[str, HeadSpec, int]],
    config: FitConfig,
    stage: Stage,
    *,
    evaluate: Evaluate | None = None,
    tensorboard: bool = False,
) -> dict[str, FittedHead]:
    """Fit the heads `specs` (name, spec, seed); those that did not diverge come back, ready for evaluation."""
    run = _Fit(feed, specs, config)
    lines = 0
    if stage.checkpoint.exists():
        lines = run.load(stage)
        logger.info("fitting goes on at epoch %d, batch %d", run.epoch + 1, run.batch + 1)
    log = MetricsLog(stage.metrics, keep=lines, tensorboard=tensorboard)
    saved = time.monotonic()
    total, done = config.epochs * run.steps, run.epoch * run.steps + run.batch
    with progress(f"fit {len(run.fitted)} heads", total, unit="steps", done=done) as bar:
        while run.epoch < config.epochs and run.live():
            batches = feed.epoch(run.epoch, batch_size=config.batch_size, seed=config.seed, start=run.batch)
            for batch in batches:
                run.train_batch(batch)
                bar.advance()
                if not run.live():
                    break
                if time.monotonic() - saved >= config.checkpoint_seconds:
                    run.save(stage, log)
                    saved = time.monotonic()
            run.end_epoch(evaluate, log)
    log.close()
    for name, tensors in run.best.items():
        run.fitted[name].head.load_state_dict(tensors)
    run.drop_broken()
    survivors = {name: f for name, f in run.fitted.items() if f.status != "diverged"}
    if not survivors:
        raise TrainingError("every head diverged: lower --lr of the fit")
    for fitted in survivors.values():
        fitted.head.eval()
    return survivors
