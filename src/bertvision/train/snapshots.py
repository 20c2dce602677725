"""Snapshots of a fine-tuning: the encoder and the heads that trained with it, kept and scored on dev.

snapshot-1/encoder/        Hugging Face format, or a delta of its base
snapshot-1/head/           of the only task; of several snapshot-1/heads/NAME/
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertvision.artifacts import atomic_folder
from bertvision.config import to_mapping
from bertvision.encoder.encoder import Encoder
from bertvision.heads.base import Head
from bertvision.heads.files import save_head
from bertvision.train.job import Job
from bertvision.train.scoring import dev_logits, kept_logits, score_logits

__all__ = ["Scores", "keep_snapshot", "score_kept_snapshot", "score_snapshot", "snapshot_name"]

Scores = dict[str, Any]
"""Of one task its metrics; of several their metrics by name."""


def snapshot_name(fraction: float) -> str:
    return f"snapshot-{fraction:g}"


def keep_snapshot(
    folder: Path,
    encoder: Encoder,
    jobs: Sequence[Job],
    heads: Sequence[Head],
    *,
    name: str,
    settings: Mapping[str, Any],
    fraction: float,
) -> None:
    """Write the encoder and the heads that answer anything, in one step."""
    with atomic_folder(folder) as temporary:
        encoder.save(temporary / "encoder")
        for job, head in zip(jobs, heads, strict=True):
            if not job.task.predicts:
                continue
            own = job.folder(temporary)
            own.mkdir(parents=True)
            about = job.train.about | {
                "windows": to_mapping(job.train.config),
                "fit": dict(settings),
                "encoder": {
                    "name": name,
                    "path": os.path.relpath(temporary / "encoder", own),
                    "fingerprint": encoder.fingerprint,
                },
                "fraction": fraction,
                "label": job.name or folder.name,
            }
            save_head(head, own, about=about)


def score_snapshot(
    encoder: Encoder, jobs: Sequence[Job], heads: Sequence[Head], folder: Path | None = None
) -> Scores:
    """Scores on dev of the encoder and its heads; with the folder of a snapshot, logits are kept beside its heads."""

    def score(job: Job, head: Head) -> dict[str, float]:
        if job.dev is None:
            return {}
        place = job.folder(folder) if folder is not None and job.task.predicts else None
        return score_logits(dev_logits(encoder, head, job.dev, place), job.dev)

    return _by_job(jobs, [score(job, head) for job, head in zip(jobs, heads, strict=True)])


def score_kept_snapshot(folder: Path, encoder: Encoder, jobs: Sequence[Job]) -> Scores:
    """Scores of a snapshot on the disk."""
    how: dict[str, Any] = {"device": str(encoder.device), "precision": encoder.precision}

    def score(job: Job) -> dict[str, float]:
        if job.dev is None or not job.task.predicts:
            return {}
        return score_logits(kept_logits(job.folder(folder), folder / "encoder", job.dev, **how), job.dev)

    return _by_job(jobs, [score(job) for job in jobs])


def _by_job(jobs: Sequence[Job], found: Sequence[dict[str, float]]) -> Scores:
    if len(jobs) == 1:
        return found[0]
    return {job.name: scores for job, scores in zip(jobs, found, strict=True) if scores}
