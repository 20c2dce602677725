"""`bv.load(folder)`: what training left behind, with its encoder, ready to answer.

    a head, an ensemble, a run               Predictor   predict(first, second=None) or predict(question, context)
    a folder of heads for several tasks      Bundle      the same, a prediction by name
    a package                                what it holds: one of these; "hub:ORG/NAME" is one on the Hub

A folder of several tasks is a snapshot of `multitask` (snapshot-1/heads/NAME), or any folder with heads of one encoder
somewhere below it: pkg/encoder, pkg/sst/HEAD, pkg/sts/HEAD. In a package (model/package.py) tasks have the names that
it gives them, and several heads of spans may stand side by side.
"""

from pathlib import Path
from typing import Any

from bertvision.artifacts import restore
from bertvision.encoder.device import Precision
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError
from bertvision.model.config import Backend
from bertvision.model.hub import local_folder
from bertvision.model.model import Bundle, short_names
from bertvision.model.package import (
    check_finished,
    is_package,
    is_reader,
    read_layers,
    read_package,
    read_tasks,
)
from bertvision.model.predictor import Predictor
from bertvision.model.trained import Trained, heads_below, load_encoder, read_trained

__all__ = ["Backend", "load", "load_bundle", "open_encoder", "read_systems"]


def load(
    folder: str | Path,
    *,
    encoder: str | Encoder | None = None,
    device: str = "auto",
    precision: Precision = "auto",
    backend: Backend = "torch",
) -> Any:
    """Load a head, an ensemble, a run's best head or several tasks, with the encoder they were fitted on.

    Args:
        folder: What `fit`, `finetune`, `multitask`, `ensemble`, `run` or `export` wrote, or "hub:ORG/NAME".
        encoder: Where the encoder lies now, if it moved; its weights must still be the same.
        device: auto, cpu, cuda or mps.
        precision: fp32, bf16, or auto.
        backend: What computes: torch, or onnx for the graph of a package (`export --onnx`).

    Returns:
        A `Predictor` (one system) or a `Bundle` (several).
    """
    bundle = load_bundle(folder, encoder=encoder, device=device, precision=precision, backend=backend)
    if len(bundle.systems) > 1:
        return bundle
    (trained,) = bundle.systems.values()
    alone = Predictor(trained, bundle.encoder)
    alone.bundle = bundle  # with the readers of its layers, and with what computes
    return alone


def load_bundle(
    folder: str | Path,
    *,
    encoder: str | Encoder | None = None,
    device: str = "auto",
    precision: Precision = "auto",
    backend: Backend = "torch",
) -> Bundle:
    """The same as a `Bundle` whatever the folder holds: a lone head answers under its name, and the readers of a
    package's layers come along."""
    folder = local_folder(folder)
    systems = read_systems(folder)
    graph = None
    if backend == "onnx":
        from bertvision.model.onnx import onnx_of

        graph = onnx_of(folder)
        # The graph computes; what is loaded cuts windows and is compared with it.
        device, precision = "cpu", "fp32"
    source = open_encoder(systems, encoder, device=device, precision=precision)
    bundle = Bundle(list(systems.values()), source, names=list(systems), layers=read_layers(folder))
    if graph is not None:
        from bertvision.model.onnx import use_onnx

        use_onnx(bundle, graph)
    return bundle


def read_systems(folder: str | Path) -> dict[str, Trained]:
    """The systems in a folder by their names, without their encoder: one of a head, an ensemble or a run."""
    folder = local_folder(folder)
    check_finished(folder)
    restore(folder)
    if is_package(folder):
        return read_tasks(read_package(folder))
    below = _tasks_below(folder)
    if len(below) < 2:
        trained = read_trained(below[0] if below else folder)
        return {trained.name: trained}
    systems = dict(zip(short_names(below), map(read_trained, below), strict=True))
    if all(system.task.rivals for system in systems.values()):
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
    found = heads_below(folder)
    if not found:
        raise ArtifactError(
            f"{folder} holds neither a package nor a head: give what fit, finetune, multitask, ensemble, run or "
            "export wrote"
        )
    # Readers of single layers show how an answer forms; they are tasks only where there is nothing else.
    return [path for path in found if not is_reader(path)] or found


def open_encoder(
    systems: dict[str, Trained],
    encoder: str | Encoder | None = None,
    *,
    device: str = "auto",
    precision: Precision = "auto",
) -> Encoder:
    """The encoder of `systems`, which is the same for all; other weights are refused."""
    first = next(iter(systems.values()))
    return load_encoder(first, encoder, device=device, precision=precision)
