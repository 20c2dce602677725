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
from bertvision.states.live import LiveStates
from bertvision.tasks.kinds import TripletTask
from bertvision.train.evaluate import task_logits
from bertvision.train.job import Job
from bertvision.train.scoring import kept_logits, score_logits, score_snapshot
from bertvision.train.splits import task_about

__all__ = ["Scores", "keep_snapshot", "score_jobs", "score_kept_jobs", "score_snapshot_jobs", "snapshot_name"]

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
    """Write the encoder and its heads, in one step. Triplets have no head of their own."""
    with atomic_folder(folder) as temporary:
        encoder.save(temporary / "encoder")
        for job, head in zip(jobs, heads, strict=True):
            if isinstance(job.task, TripletTask):
                continue
            own = job.folder(temporary)
            own.mkdir(parents=True)
            about = task_about(job.train) | {
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


def score_snapshot_jobs(folder: Path, encoder: Encoder, jobs: Sequence[Job], heads: Sequence[Head]) -> Scores:
    """Scores of a snapshot that was just kept; logits are kept beside the heads."""

    def score(job: Job, head: Head) -> dict[str, float] | None:
        if job.dev is None:
            return None
        if isinstance(job.task, TripletTask):
            return _score(encoder, job, head)
        return score_snapshot(encoder, head, job.dev, job.folder(folder))

    return _told(jobs, [score(job, head) for job, head in zip(jobs, heads, strict=True)])


def score_jobs(encoder: Encoder, jobs: Sequence[Job], heads: Sequence[Head]) -> Scores:
    """Scores on the way, of which nothing is kept."""
    return _told(jobs, [_score(encoder, job, head) for job, head in zip(jobs, heads, strict=True)])


def score_kept_jobs(folder: Path, encoder: Encoder, jobs: Sequence[Job]) -> Scores:
    """Scores of a snapshot on the disk."""
    how: dict[str, Any] = {"device": str(encoder.device), "precision": encoder.precision}
    found = [
        score_logits(kept_logits(folder, job.dev, **how, head_folder=job.folder(folder)), job.dev)
        if job.dev is not None and not isinstance(job.task, TripletTask)
        else None
        for job in jobs
    ]
    return _told(jobs, found)


def _score(encoder: Encoder, job: Job, head: Head) -> dict[str, float] | None:
    if job.dev is None:
        return None
    (logits,) = task_logits(job.task, LiveStates(encoder, job.dev.windows), {"": head}).values()
    return score_logits(logits, job.dev)


def _told(jobs: Sequence[Job], found: Sequence[dict[str, float] | None]) -> Scores:
    if len(jobs) == 1:
        return found[0] or {}
    return {job.name: scores for job, scores in zip(jobs, found, strict=True) if scores}
