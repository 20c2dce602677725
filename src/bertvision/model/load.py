"""`bv.load(folder)`: what training left behind, with its encoder, ready to predict.

Reading has two steps, so that mistakes are found before an encoder is loaded: `read` gives the `Parts` of a folder and
`gather` those of several, under names of the caller's choice; `Parts.open` adds the encoder.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bertvision.encoder.device import Precision
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError, ConfigError
from bertvision.heads.readouts import layer_of
from bertvision.model.config import Backend
from bertvision.model.folders import (
    check_finished,
    heads_below,
    heads_in,
    is_package,
    is_reader,
    readers_beside,
    short_names,
)
from bertvision.model.hub import local_folder
from bertvision.model.model import Model
from bertvision.model.package import Package, layer_number, plain_name, read_heads, read_package
from bertvision.model.trained import Trained, load_encoder, read_head

_SEED = re.compile(r"\.seed\d+$")


@dataclass
class Parts:
    """Trained systems of one encoder by the names of their tasks, without the encoder."""

    source: str
    """Where they come from, for messages."""
    systems: dict[str, Trained] = field(default_factory=dict)
    layers: dict[str, list[Trained]] = field(default_factory=dict)
    """By task, the readers of its hidden states, the lowest first."""
    package: Package | None = None

    def open(
        self,
        encoder: str | Encoder | None = None,
        *,
        device: str = "auto",
        precision: Precision = "auto",
        backend: Backend = "torch",
    ) -> Model:
        """Load the encoder; other weights than those the heads were fitted on are refused."""
        graph = None
        if backend == "onnx":
            if self.package is None or self.package.graph is None:
                raise ConfigError(
                    f"{self.source} holds no ONNX graph: make a package of it with `bertvision export "
                    f"{self.source} --onnx --out PKG`, or use --backend torch"
                )
            # The graph computes; what is loaded cuts windows and is compared with it.
            graph, device, precision = self.package.graph, "cpu", "fp32"
        first = next(iter(self.systems.values()))
        source = load_encoder(first, encoder, device=device, precision=precision)
        model = Model(self.systems, source, layers=self.layers)
        if graph is not None:
            from bertvision.model.onnx import use_onnx

            use_onnx(model, graph)
        return model


def load(
    folder: str | Path | Mapping[str, str | Path],
    *,
    encoder: str | Encoder | None = None,
    device: str = "auto",
    precision: Precision = "auto",
    backend: Backend = "torch",
) -> Model:
    """Load heads with the encoder they were fitted on.

    Args:
        folder: What `fit`, `finetune`, `multitask`, `ensemble`, `run` or `export` wrote, or "hub:ORG/NAME"; or several
            of these by the names their tasks are to have.
        encoder: Where the encoder lies now, if it moved; its weights must still be the same.
        device: auto, cpu, cuda or mps.
        precision: fp32, bf16, or auto.
        backend: What computes: torch, or onnx for the graph of a package (`export --onnx`).
    """
    parts = gather(list(folder.items())) if isinstance(folder, Mapping) else read(folder)
    return parts.open(encoder, device=device, precision=precision, backend=backend)


def read(folder: str | Path, *, rivals: bool = False) -> Parts:
    """The systems of a folder by their names.

    Args:
        rivals: Take several heads for one question side by side, such as those of a fit; else one must be named.
    """
    folder = local_folder(folder)
    check_finished(folder)
    if is_package(folder):
        package = read_package(folder)
        systems, layers = read_heads(package)
        return Parts(str(folder), systems, layers, package)
    paths = heads_in(folder)
    found = [read_head(path) for path in paths]
    names = [found[0].name] if len(found) == 1 else short_names(paths)
    parts = Parts(str(folder), dict(zip(names, found, strict=True)))
    if len(found) > 1 and not rivals and all(system.task.abstains for system in found):
        raise ArtifactError(
            f"{folder} holds several heads ({', '.join(names)}): name the folder of one of them"
        )
    _check_encoder(found)
    return parts


def gather(sources: Sequence[tuple[str, str | Path]], *, layers: Sequence[Path] = ()) -> Parts:
    """Systems of several folders together, with the readers of hidden states that were fitted beside them.

    Args:
        sources: The name of a task and its folder; without a name all systems of a folder under names of their own.
        layers: Folders with more readers, each for the first task that they fit.
    """
    if not sources:
        raise ConfigError("there are no folders to load: name at least one")
    all_of = Parts(str(sources[0][1]))
    for name, folder in sources:
        parts = read(folder, rivals=True)
        if name and len(parts.systems) > 1:
            raise ConfigError(
                f"{folder} holds several heads ({', '.join(parts.systems)}), which cannot all be {name}: name the "
                "folder of one of them"
            )
        own = list(parts.systems)
        called = [name] if name else own if parts.package is not None else _plain_names(own)
        for task, old in zip(called, own, strict=True):
            if not plain_name(task):
                raise ConfigError(f"a task cannot be called {task!r}: give letters, digits, dots and dashes")
            if task in all_of.systems:
                raise ConfigError(f"two heads would be called {task}: name them as NAME=FOLDER")
            all_of.systems[task] = parts.systems[old]
            if old in parts.layers:
                all_of.layers[task] = parts.layers[old]
        if parts.package is None:
            _add_beside(all_of, called)
    _check_encoder(list(all_of.systems.values()))
    for folder in layers:
        _add_readers(all_of, folder)
    return all_of


def _plain_names(names: Sequence[str]) -> list[str]:
    """Names that a package can use, without the seed where nothing hangs on it."""
    plain = [re.sub(r"[^\w.@+~-]+", "-", name).strip("-") or "task" for name in names]
    bare = [_SEED.sub("", name) for name in plain]
    return bare if len(set(bare)) == len(bare) else plain


def _check_encoder(systems: Sequence[Trained]) -> None:
    first = systems[0]
    for system in systems:
        if system.fingerprint != first.fingerprint:
            raise ArtifactError(
                f"{system.folder} reads another encoder (fingerprint {system.fingerprint[:12]}) than {first.folder} "
                f"({first.fingerprint[:12]}): name heads of one encoder"
            )


# ---- readers of hidden states


def _add_beside(parts: Parts, tasks: Sequence[str]) -> None:
    """Give the readers that lie beside heads to the first of the tasks they were fitted for."""
    taken = {reader.folder for own in parts.layers.values() for reader in own}
    for task in tasks:
        system = parts.systems[task]
        if layer_of(system.heads[0]) is not None:
            continue  # readers alone
        beside = [read_head(path) for path in readers_beside(system.folder) if path not in taken]
        if own := [reader for reader in beside if _fits(reader, system)]:
            parts.layers[task] = _by_state(own)
            taken |= {reader.folder for reader in own}


def _add_readers(parts: Parts, folder: Path) -> None:
    """Give the readers in `folder` to the first task they were fitted for."""

    readers = [read_head(path) for path in heads_below(local_folder(folder)) if is_reader(path)]
    if not readers:
        raise ConfigError(f"--layers {folder} holds no reader of a layer: fit them with `--heads each_layer`")
    own = [name for name, system in parts.systems.items() if _fits(readers[0], system)]
    if not own:
        raise ConfigError(
            f"the readers of --layers {folder} were fitted for another task, encoder or other windows than "
            f"{', '.join(parts.systems)}: fit them together with a head"
        )
    parts.layers[own[0]] = _by_state(readers)


def _fits(reader: Trained, system: Trained) -> bool:
    return (reader.reads, reader.task) == (system.reads, system.task)


def _by_state(readers: Sequence[Trained]) -> list[Trained]:
    """One for each hidden state, the lowest first; of several seeds the first."""
    found: dict[int, Trained] = {}
    for reader in readers:
        found.setdefault(layer_number(reader), reader)
    return [found[number] for number in sorted(found)]
