"""From logits to the scores a report shows: at threshold 0, and at the threshold tuned on dev.

A system may have several members (the same head with several seeds). Its score is the mean over the members,
question by question, so that systems can be compared in pairs on the same questions.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertvision.encoder.device import Precision
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError
from bertvision.heads.base import Head
from bertvision.heads.files import load_head
from bertvision.states.base import States
from bertvision.states.live import LiveStates
from bertvision.tasks.kinds import SpanTask, TripletTask
from bertvision.tasks.span.answers import SpanAnswers
from bertvision.tasks.span.compare import mcnemar, paired_bootstrap
from bertvision.tasks.span.decode import DecodeConfig, decode
from bertvision.tasks.span.logits import SpanLogits
from bertvision.tasks.span.score import per_question, summary
from bertvision.tasks.span.threshold import best_threshold
from bertvision.tasks.text.answers import answer
from bertvision.tasks.text.logits import TextLogits
from bertvision.tasks.text.score import score_texts
from bertvision.tasks.triplet import triplet_metrics
from bertvision.train.evaluate import Logits, task_logits
from bertvision.train.splits import Split

__all__ = [
    "SystemScores",
    "at_threshold",
    "compare",
    "kept_logits",
    "logits_of",
    "score_answers",
    "score_logits",
    "score_snapshot",
    "score_system",
]


def logits_of(
    heads: Mapping[Path, Head], split: Split, name: str, states: Callable[[], States]
) -> dict[Path, Any]:
    """Logits of heads (by their folders) on a split, kept as FOLDER/NAME/logits.safetensors.

    The states are encoded only when some are missing, damaged or of other data; all of those come from one walk.
    """
    kept: dict[Path, Logits] = {}
    kind = SpanLogits if isinstance(split.task, SpanTask) else TextLogits
    for folder in heads:
        with contextlib.suppress(ArtifactError):
            kept[folder] = kind.load(folder / name / "logits.safetensors", split.fingerprint)
    missing = {str(folder): head for folder, head in heads.items() if folder not in kept}
    if missing:
        for folder, logits in task_logits(split.task, states(), missing, label=f"evaluate {name}").items():
            logits.save(Path(folder) / name / "logits.safetensors", split.fingerprint)
            kept[Path(folder)] = logits
    return {folder: kept[folder] for folder in heads}


def score_snapshot(encoder: Encoder, head: Head, dev: Split, folder: Path) -> dict[str, float]:
    """What a head scores on dev; the logits are kept in its folder."""
    (logits,) = logits_of({folder: head}, dev, "dev", lambda: LiveStates(encoder, dev.windows)).values()
    return score_logits(logits, dev)


def score_logits(logits: Logits, dev: Split) -> dict[str, float]:
    """The same of logits that are there: of spans exact and F1, at threshold 0 and at the best; of labels and scores
    every metric of theirs; of triplets distances and violations."""
    if isinstance(logits, SpanLogits):
        scores = score_system([logits], dev, DecodeConfig())
        return scores.members[0] | {"threshold": scores.thresholds[0]}
    if isinstance(dev.task, TripletTask):
        return triplet_metrics(torch.from_numpy(logits.values))
    return score_texts(answer(dev.windows, logits, dev.texts, dev.text_task), dev.texts)


def kept_logits(
    snapshot: Path, dev: Split, *, device: str, precision: Precision, head_folder: Path | None = None
) -> Any:
    """Logits on dev of a saved snapshot; it computes them again where they are missing or damaged."""
    folder = head_folder or snapshot / "head"
    head, _ = load_head(folder)

    def states() -> States:
        encoder = Encoder.load(str(snapshot / "encoder"), device=device, precision=precision)
        head.to(encoder.device)
        return LiveStates(encoder, dev.windows)

    (logits,) = logits_of({folder: head}, dev, "dev", states).values()
    return logits


@dataclass(frozen=True)
class SystemScores:
    """A system on one split: the members' answers, and per-question means over the members."""

    answers: list[SpanAnswers]
    thresholds: list[float]
    zero: tuple[NDArray[np.float64], NDArray[np.float64]]
    """(Q,) exact and F1 at the decoding's own threshold (0 unless the user set it)."""
    tuned: tuple[NDArray[np.float64], NDArray[np.float64]]
    """(Q,) exact and F1 at each member's tuned threshold."""
    answerable: NDArray[np.bool_]
    members: list[dict[str, float]]
    """Exact and F1 of each member, at both thresholds."""

    def as_dict(self, seeds: Sequence[int] | None) -> dict[str, Any]:
        """Its entry in results.json."""
        tuned = dict(summary(*self.tuned, self.answerable)) | {"threshold": float(np.mean(self.thresholds))}
        per_seed = (
            None if seeds is None else [{"seed": s} | m for s, m in zip(seeds, self.members, strict=True)]
        )
        return {"zero": dict(summary(*self.zero, self.answerable)), "tuned": tuned, "per_seed": per_seed}


def at_threshold(
    answers: SpanAnswers, threshold: float | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(Q,) exact and F1 between 0 and 1; None is the decoding's own threshold."""
    return per_question(answers.data, answers.predictions(threshold))


def score_answers(answers: SpanAnswers, threshold: float) -> dict[str, Any]:
    """Official scores at the decoding's threshold, at `threshold`, and at the best on this very data (an oracle)."""
    answerable = np.array([example.answerable for example in answers.data.examples])
    oracle = best_threshold(answers, answers.data)
    return {
        "zero": dict(summary(*at_threshold(answers), answerable)),
        "stored": dict(summary(*at_threshold(answers, threshold), answerable)) | {"threshold": threshold},
        "oracle": {"exact": oracle.exact, "f1": oracle.f1, "threshold": oracle.value},
    }


def score_system(
    members: Sequence[SpanLogits],
    split: Split,
    config: DecodeConfig,
    *,
    thresholds: Sequence[float] | None = None,
) -> SystemScores:
    """Decode and score all members; without `thresholds` they are tuned on this very split (so it must be dev)."""
    answers = [decode(split.windows, logits, split.spans, config) for logits in members]
    if thresholds is None:
        thresholds = [best_threshold(found, split.spans).value for found in answers]
    zero = [at_threshold(found) for found in answers]
    tuned = [at_threshold(found, value) for found, value in zip(answers, thresholds, strict=True)]
    records = [
        {
            "exact": 100 * float(z[0].mean()),
            "f1": 100 * float(z[1].mean()),
            "tuned_exact": 100 * float(t[0].mean()),
            "tuned_f1": 100 * float(t[1].mean()),
        }
        for z, t in zip(zero, tuned, strict=True)
    ]
    return SystemScores(
        answers=answers,
        thresholds=list(thresholds),
        zero=(np.mean([z[0] for z in zero], axis=0), np.mean([z[1] for z in zero], axis=0)),
        tuned=(np.mean([t[0] for t in tuned], axis=0), np.mean([t[1] for t in tuned], axis=0)),
        answerable=np.array([example.answerable for example in split.spans.examples]),
        members=records,
    )


def compare(system: SystemScores, baseline: SystemScores) -> dict[str, Any]:
    """Paired differences, system minus baseline, with 95 % intervals over questions; McNemar on the first member."""
    result: dict[str, Any] = {}
    for name in ("zero", "tuned"):
        ours, theirs = getattr(system, name), getattr(baseline, name)
        result[name] = {
            "exact": vars(paired_bootstrap(ours[0], theirs[0])),
            "f1": vars(paired_bootstrap(ours[1], theirs[1])),
        }
        thresholds = (system.thresholds[0], baseline.thresholds[0]) if name == "tuned" else (None, None)
        first = at_threshold(system.answers[0], thresholds[0])[0]
        second = at_threshold(baseline.answers[0], thresholds[1])[0]
        result[name]["mcnemar_p"] = mcnemar(first, second)
    return result
