"""`bv.load(folder)`: what training left behind, with its encoder, ready to answer.

    a head of spans, an ensemble, a run      Predictor         predict(question, context)
    a head of labels or scores               TextPredictor     predict(first, second=None)
    a folder of heads for several tasks      Bundle            predict(first, second=None), a prediction by name

A folder of several tasks is a snapshot of `multitask` (snapshot-1/heads/NAME), or any folder with heads of one encoder
somewhere below it: pkg/encoder, pkg/sst/HEAD, pkg/sts/HEAD.
"""

from pathlib import Path
from typing import Any

from bertvision.artifacts import restore
from bertvision.encoder.encoder import Encoder, Precision
from bertvision.errors import ArtifactError
from bertvision.serve.bundle import Bundle, TextPredictor, short_names
from bertvision.serve.predictor import Predictor
from bertvision.tasks.text.task import TextTask
from bertvision.train.trained import Trained, heads_below, load_encoder, read_trained

__all__ = ["load", "open_systems", "read_systems"]


def load(
    folder: str | Path,
    *,
    encoder: str | Encoder | None = None,
    device: str = "auto",
    precision: Precision = "auto",
) -> Any:
    """Load a head, an ensemble, a run's best head or a folder of several tasks, with the encoder they were fitted on.

    Args:
        folder: What `fit`, `finetune`, `multitask`, `ensemble` or `run` wrote.
        encoder: Where the encoder lies now, if it moved; its weights must still be the same.
        device: auto, cpu, cuda or mps.
        precision: fp32, bf16, or auto.

    Returns:
        A `Predictor` (spans), a `TextPredictor` (a label or a score) or a `Bundle` (several tasks).
    """
    return open_systems(read_systems(folder), encoder=encoder, device=device, precision=precision)


def read_systems(folder: str | Path) -> dict[str, Trained]:
    """The systems in a folder by their names, without their encoder: one of a head, an ensemble or a run."""
    folder = Path(folder)
    restore(folder)
    below = _tasks_below(folder)
    if len(below) < 2:
        trained = read_trained(below[0] if below else folder)
        return {trained.name: trained}
    systems = dict(zip(short_names(below), map(read_trained, below), strict=True))
    if not any(isinstance(system.task, TextTask) for system in systems.values()):
        # All find spans: these are rivals for one question and no tasks side by side.
        raise ArtifactError(
            f"{folder} holds several heads ({', '.join(systems)}): name the folder of one of them"
        )
    encoders = {system.fingerprint for system in systems.values()}
    if len(encoders) > 1:
        raise ArtifactError(
            f"the heads in {folder} ({', '.join(systems)}) read {len(encoders)} encoders: "
            "name a folder with the heads of one"
        )
    return systems


def _tasks_below(folder: Path) -> list[Path]:
    """The heads of a folder that is neither a head, an ensemble, a run nor a snapshot of one task."""
    known = ("config.json", "results.json", "head/config.json")
    if not folder.is_dir() or any((folder / name).exists() for name in known):
        return []
    return heads_below(folder)


def open_systems(
    systems: dict[str, Trained],
    *,
    encoder: str | Encoder | None = None,
    device: str = "auto",
    precision: Precision = "auto",
) -> Any:
    """Load the encoder of `systems`, which is the same for all; returns what `load` does."""
    first, *others = systems.values()
    source = load_encoder(first, encoder, device=device, precision=precision)
    if others:
        return Bundle(list(systems.values()), source, names=list(systems))
    return (TextPredictor if isinstance(first.task, TextTask) else Predictor)(first, source)
