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
from bertvision.train.splits import dev_logits, kept_logits, score_logits

Scores = dict[str, Any]
"""Of one task its metrics; of several their metrics by name."""


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
    scores: dict[str, dict[str, float]] = {}
    for job, head in zip(jobs, heads, strict=True):
        if job.dev is not None:
            place = job.folder(folder) if folder is not None and job.task.predicts else None
            scores[job.name] = score_logits(dev_logits(encoder, head, job.dev, place), job.dev)
    return _of_jobs(jobs, scores)


def score_kept_snapshot(folder: Path, encoder: Encoder, jobs: Sequence[Job]) -> Scores:
    """Scores of a snapshot on the disk."""
    how: dict[str, Any] = {"device": str(encoder.device), "precision": encoder.precision}
    scores = {
        job.name: score_logits(kept_logits(job.folder(folder), folder / "encoder", job.dev, **how), job.dev)
        for job in jobs
        if job.dev is not None and job.task.predicts
    }
    return _of_jobs(jobs, scores)


def _of_jobs(jobs: Sequence[Job], scores: dict[str, dict[str, float]]) -> Scores:
    return scores if len(jobs) > 1 else next(iter(scores.values()), {})
