"""Fine-tune an encoder with a linear span head, in one continuous run, with snapshots on the way.

A snapshot is the encoder at a fraction of an epoch: `snapshot-0.3/` holds `encoder/` (Hugging Face format) and
`head/` (its own output layer, a head like any other).
"""

import logging
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from bertvision.artifacts import atomic_folder
from bertvision.config import to_mapping
from bertvision.console import progress
from bertvision.data.windows import Windows
from bertvision.encoder.batch import collate
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ConfigError, TrainingError
from bertvision.feed.plan import epoch_batches
from bertvision.heads.base import Geometry, Head
from bertvision.heads.files import save_head
from bertvision.heads.spec import parse_head
from bertvision.tasks.span.loss import span_loss
from bertvision.train.checkpoint import load_checkpoint, save_checkpoint
from bertvision.train.log import MetricsLog
from bertvision.train.optim import OptimConfig, learning_rate, make_optimizer, update
from bertvision.train.splits import Split
from bertvision.train.stage import Stage

__all__ = ["FinetuneConfig", "finetune", "snapshot_name", "tune"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FinetuneConfig(OptimConfig):
    """How the encoder is tuned before heads are fitted on it."""

    lr: float = 5e-5
    """Highest learning rate."""
    schedule: Literal["constant", "linear"] = "linear"
    """constant, or linear decay to zero at the end."""
    warmup: float = 0.1
    """Part of all steps over which the rate rises from zero."""
    weight_decay: float = 0.01
    """Decoupled weight decay of matrices; biases and norms are never decayed."""
    epochs: float = 1.0
    """Length of the run; the schedule ends here. 0 = leave the encoder as it is."""
    snapshots: tuple[float, ...] = ()
    """Fractions of an epoch at which the encoder is kept, such as 0.3,1.0; the end is always kept."""
    batch_size: int = 16
    """Windows per step."""
    accumulate: int = 1
    """Cut each batch into this many encoder calls; the step stays the same, memory shrinks."""
    freeze: Literal["nothing", "embeddings"] = "nothing"
    """embeddings = leave the embedding tables as they are."""
    log_every: int = 10
    """Steps between two lines of metrics.jsonl."""
    checkpoint_seconds: float = 60.0
    """Time between two checkpoints."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.epochs >= 0 and math.isfinite(self.epochs)):
            raise ConfigError(f"--epochs of fine-tuning must be finite and not negative, not {self.epochs}")
        if self.log_every < 1:
            raise ConfigError(f"--log-every must be at least 1, not {self.log_every}")
        for fraction in self.snapshots:
            if not 0 < fraction <= self.epochs:
                raise ConfigError(
                    f"snapshot {fraction:g} lies outside the run of {self.epochs:g} epochs: "
                    "raise --epochs or lower --snapshots"
                )
        if self.batch_size < 1 or not 1 <= self.accumulate <= self.batch_size:
            raise ConfigError(
                f"--batch-size {self.batch_size} of fine-tuning must be at least 1 and --accumulate "
                f"{self.accumulate} between 1 and the batch size"
            )


def tune(
    encoder: Encoder,
    train: Split,
    *,
    folder: Path,
    config: FinetuneConfig,
    overwrite: bool = False,
    tensorboard: bool = False,
) -> tuple[Stage, list[Path]]:
    """Fine-tune in `folder`, reusing or continuing what is there; returns the stage and the snapshots."""
    settings = to_mapping(config)
    for name in ("checkpoint_seconds", "log_every"):  # these change no result
        settings.pop(name)
    key = {
        "encoder": encoder.fingerprint,
        "train": train.fingerprint,
        "finetune": settings,
        "arithmetic": [encoder.device.type, encoder.precision],
    }
    stage = Stage(folder, key, overwrite=overwrite)
    about = {
        "task": "span",
        "windows": to_mapping(train.config),
        "fit": settings,
        "encoder": {"name": encoder.name},
    }
    return stage, finetune(encoder, train.windows, config, stage, about=about, tensorboard=tensorboard)


def snapshot_name(fraction: float) -> str:
    return f"snapshot-{fraction:g}"


def finetune(
    encoder: Encoder,
    windows: Windows,
    config: FinetuneConfig,
    stage: Stage,
    *,
    about: dict[str, Any],
    tensorboard: bool = False,
) -> list[Path]:
    """Train `encoder` in place; returns the snapshot folders in order. Goes on where a killed run stopped."""
    per_epoch = math.ceil(len(windows) / config.batch_size)
    total = max(1, round(config.epochs * per_epoch))
    # On little data two fractions may fall on one step; each gets its folder all the same.
    marks = {f: max(1, round(f * per_epoch)) for f in sorted({*config.snapshots, config.epochs})}
    folders = [stage.folder / snapshot_name(f) for f in marks]
    if stage.done:
        return folders
    torch.manual_seed(config.seed)
    encoder.model.to(encoder.device)  # a frozen one may be parked elsewhere
    head = parse_head("last_state").build(Geometry(encoder.num_states, encoder.hidden), seed=config.seed)
    head.to(encoder.device)
    if config.freeze == "embeddings":
        encoder.freeze_embeddings()
    modules = {"encoder": encoder.model, "head": head}
    optimizer = make_optimizer(modules.values(), config)
    step, lines = _resume(stage, modules, optimizer)
    log = MetricsLog(stage.metrics, keep=lines, tensorboard=tensorboard)
    saved = time.monotonic()
    with progress("fine-tune", total, unit="steps", done=step) as bar:
        while step < total:
            epoch = step // per_epoch
            batches = epoch_batches(windows.lengths, config.batch_size, seed=config.seed, epoch=epoch)
            for indices in batches[step % per_epoch :]:
                lr = learning_rate(config, step, total)
                loss = _step(encoder, head, windows, indices, config)
                update(optimizer, config, lr=lr)
                step += 1
                bar.advance()
                if step % config.log_every == 0 or step == total:
                    value = _finite(loss, step)
                    bar.tell(loss=value, lr=lr)
                    record = {"step": step, "epoch": step / per_epoch, "loss": value, "lr": lr}
                    log.write(record, step=step, group="finetune")
                for fraction in [f for f, mark in marks.items() if mark == step]:
                    _finite(loss, step)
                    folder = stage.folder / snapshot_name(fraction)
                    _snapshot(encoder, head, folder, about | {"fraction": fraction})
                if step < total and time.monotonic() - saved >= config.checkpoint_seconds:
                    _finite(loss, step)
                    where = {"step": step, "lines": log.lines, "seconds": stage.seconds}
                    save_checkpoint(stage.checkpoint, modules, {"all": optimizer}, progress=where)
                    saved = time.monotonic()
                if step == total:
                    break
    log.close()
    encoder.model.eval().requires_grad_(False)
    stage.finish({"steps": total, "tokens_per_second": config.epochs * windows.num_tokens / stage.seconds})
    return folders


def _resume(stage: Stage, modules: dict[str, nn.Module], optimizer: torch.optim.Optimizer) -> tuple[int, int]:
    """Go on from the stage's checkpoint where there is one; the steps done, and the lines of metrics written."""
    if not stage.checkpoint.exists():
        return 0, 0
    where, _ = load_checkpoint(stage.checkpoint, modules, {"all": optimizer})
    stage.went_on(where["seconds"])
    logger.info("fine-tuning goes on at step %d", where["step"])
    return where["step"], where["lines"]


def _step(
    encoder: Encoder, head: Head, windows: Windows, indices: np.ndarray, config: FinetuneConfig
) -> torch.Tensor:
    """Gradients of one batch's mean loss, in `accumulate` calls."""
    encoder.model.train()
    head.train()
    total = torch.zeros((), device=encoder.device)
    for part in np.array_split(indices, min(config.accumulate, len(indices))):
        batch = collate(windows, part, pad_id=encoder.pad_id, device=encoder.device)
        labels = torch.from_numpy(windows.labels[part].astype(np.int64)).to(encoder.device)
        states = encoder.trainable_states(batch)
        with encoder.autocast():
            logits = head(states, batch.mask)
        loss = span_loss(logits, batch.mask, labels, reduction="sum") / len(indices)
        loss.backward()
        total += loss.detach()
    return total


def _finite(loss: torch.Tensor, step: int) -> float:
    value = float(loss)
    if not math.isfinite(value):
        raise TrainingError(
            f"the loss became {value} at step {step} of fine-tuning: lower --lr of fine-tuning"
        )
    return value


def _snapshot(encoder: Encoder, head: Head, folder: Path, about: dict[str, Any]) -> None:
    if not all(bool(p.isfinite().all()) for module in (encoder.model, head) for p in module.parameters()):
        raise TrainingError(f"the weights of {folder.name} are not finite: lower --lr of fine-tuning")
    encoder.changed()
    encoder_about = about.get("encoder", {}) | {"path": "../encoder", "fingerprint": encoder.fingerprint}
    with atomic_folder(folder) as temporary:
        encoder.save(temporary / "encoder")
        (temporary / "head").mkdir()
        save_head(head, temporary / "head", about=about | {"encoder": encoder_about, "label": folder.name})
