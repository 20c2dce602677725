"""Logits and scores of heads while they are trained and right after; logits are kept beside the heads."""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path

from bertvision.encoder.device import Precision
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError
from bertvision.heads.base import Head
from bertvision.heads.files import load_head
from bertvision.states.base import States
from bertvision.states.live import LiveStates
from bertvision.tasks.logits import Logits
from bertvision.tasks.settings import DecodeConfig
from bertvision.tasks.walk import head_logits
from bertvision.train.splits import Split


def logits_of(
    heads: Mapping[Path, Head], split: Split, name: str, states: Callable[[], States]
) -> dict[Path, Logits]:
    """Logits of heads (by their folders) on a split, kept as FOLDER/NAME/logits.safetensors.

    States are opened only when some are missing, damaged or of other data; all of those come from one walk.
    """
    kept: dict[Path, Logits] = {}
    for folder in heads:
        with contextlib.suppress(ArtifactError):
            kept[folder] = Logits.load(folder / name / "logits.safetensors", split.fingerprint)
    missing = {str(folder): head for folder, head in heads.items() if folder not in kept}
    if missing:
        for folder, logits in head_logits(states(), missing, split.task, label=f"evaluate {name}").items():
            logits.save(Path(folder) / name / "logits.safetensors", split.fingerprint)
            kept[Path(folder)] = logits
    return {folder: kept[folder] for folder in heads}


def dev_logits(encoder: Encoder, head: Head, dev: Split, folder: Path | None = None) -> Logits:
    """Logits of one head on dev, kept in its folder where there is one."""
    if folder is None:
        return head_logits(LiveStates(encoder, dev.windows), {"": head}, dev.task)[""]
    return logits_of({folder: head}, dev, "dev", lambda: LiveStates(encoder, dev.windows))[folder]


def kept_logits(folder: Path, encoder: Path, dev: Split, *, device: str, precision: Precision) -> Logits:
    """Logits on dev of a saved head and its encoder's folder; computed again where they are missing or damaged."""
    head, _ = load_head(folder)

    def states() -> States:
        source = Encoder.load(str(encoder), device=device, precision=precision)
        head.to(source.device)
        return LiveStates(source, dev.windows)

    return logits_of({folder: head}, dev, "dev", states)[folder]


def score_logits(logits: Logits, dev: Split, decode: DecodeConfig | None = None) -> dict[str, float]:
    """Every metric of the task; a threshold is tuned on this very split."""
    answers = dev.task.answer(dev.windows, logits, dev.data, dev.task.untuned(decode))
    return dev.task.score(answers)
