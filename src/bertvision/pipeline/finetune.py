"""What is kept of a fine-tuning when it is done: the records of its snapshots' heads; and what a snapshot takes."""

import time
from collections.abc import Sequence
from pathlib import Path

from bertvision.encoder.device import Precision
from bertvision.encoder.encoder import Encoder
from bertvision.model.record import Made, record
from bertvision.model.trained import load_encoder, read_trained
from bertvision.states.live import LiveStates
from bertvision.tasks.walk import head_logits
from bertvision.train.job import Job
from bertvision.train.scoring import kept_logits
from bertvision.train.splits import Split

__all__ = ["inference_seconds", "record_snapshots"]


def record_snapshots(snapshots: Sequence[Path], jobs: Sequence[Job], encoder: Encoder, command: str) -> None:
    """Answers, metrics and cards beside the heads of all tasks that answer anything."""
    for folder in snapshots:
        for job in jobs:
            if not job.task.predicts:
                continue
            head, dev = job.folder(folder), job.dev
            made = Made(command, {"train": job.train.name, "dev": "" if dev is None else dev.name})
            found = {}
            if dev is not None:
                logits = kept_logits(
                    head, folder / "encoder", dev, device=str(encoder.device), precision=encoder.precision
                )
                found["dev"] = (dev, logits)
            record(head, found, made)


def inference_seconds(
    snapshot: Path, dev: Split, *, device: str = "auto", precision: Precision = "auto"
) -> float:
    """Seconds that a saved snapshot, loaded as any other is, takes for all windows of dev; the second of two walks."""
    trained = read_trained(snapshot)
    encoder = load_encoder(trained, device=device, precision=precision)
    states = LiveStates(encoder, dev.windows)
    heads = {"head": trained.heads[0].to(encoder.device)}
    seconds = 0.0
    for label in ("inference, warm-up", "inference"):
        began = time.perf_counter()
        head_logits(states, heads, dev.task, label=label)  # gives numbers on the CPU, so the device is done
        seconds = time.perf_counter() - began
    return seconds
