"""What is kept of a fine-tuning when it is done: the records of its snapshots' heads."""

from collections.abc import Sequence
from pathlib import Path

from bertvision.encoder.encoder import Encoder
from bertvision.pipeline.record import Made, record
from bertvision.train.job import Job
from bertvision.train.scoring import kept_logits

__all__ = ["record_snapshots"]


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
