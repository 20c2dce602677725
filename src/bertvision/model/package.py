"""A package: one folder with one encoder and any number of heads for any number of tasks, to be moved as a whole.

    PKG/package.json      {"format": 1, "bertvision": VERSION, "encoder": {"name", "fingerprint", "bundled": bool},
                           "tasks": [NAME, ...], "layers": {NAME: [K, ...]}, "onnx": bool}
    PKG/README.md         the card (card.py)
    PKG/encoder/          where it is bundled: the encoder in Hugging Face format, or a delta with its base below it
                          (encoder/load.py); else the encoder is found by its name and checked by its fingerprint
    PKG/heads/NAME/       config.json, model.safetensors, metrics.json (tuning, scores); of an ensemble its members in
                          members/
    PKG/layers/NAME/K/    the reader of hidden state K of a task (heads/layer_reader.py)
    PKG/onnx/             encoder and heads as one graph (onnx.py)

This file reads packages, export.py writes them. package.json is written last, so a folder that has one is whole. Paths
in an ensemble's config.json and in a delta stay inside the folder.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertvision._version import __version__
from bertvision.artifacts import read_json
from bertvision.encoder.load import EMBEDDED, bases_of
from bertvision.errors import ArtifactError
from bertvision.heads.readouts import layer_of
from bertvision.model.folders import PACKAGE, check_finished, ensemble_of, is_package
from bertvision.model.trained import Trained, read_head

FORMAT = 1
_NAME = re.compile(r"\w[\w.@+~-]{0,99}")


@dataclass(frozen=True)
class Package:
    """What package.json says."""

    folder: Path
    encoder: str
    """The encoder's name: `embedded`, a name on the Hub, or a folder."""
    fingerprint: str
    """Of the encoder's weights and tokenizer."""
    bundled: bool
    """Whether the encoder lies in the package."""
    tasks: tuple[str, ...]
    layers: dict[str, tuple[int, ...]]
    """By task, the hidden states that have readers, the lowest first."""
    onnx: bool = False

    @property
    def encoder_folder(self) -> Path | None:
        """Where the encoder lies in the package; None: it is named and lies elsewhere."""
        return self.folder / "encoder" if self.bundled else None

    @property
    def graph(self) -> Path | None:
        """The graph of encoder and heads, where it was exported."""
        return self.folder / "onnx" / "model.onnx" if self.onnx else None

    def head(self, task: str) -> Path:
        return self.folder / "heads" / task

    def readers(self, task: str) -> list[Path]:
        return [self.folder / "layers" / task / str(state) for state in self.layers.get(task, ())]

    def config(self) -> dict[str, Any]:
        """What goes into package.json."""
        return {
            "format": FORMAT,
            "bertvision": __version__,
            "encoder": {"name": self.encoder, "fingerprint": self.fingerprint, "bundled": self.bundled},
            "tasks": list(self.tasks),
            "layers": {task: list(states) for task, states in self.layers.items()},
            "onnx": self.onnx,
        }


def plain_name(name: str) -> bool:
    """Whether a task may be called so: its name is a folder, a part of addresses and a key."""
    # A folder called head is that of a snapshot, which goes by the folder above it.
    return _NAME.fullmatch(name) is not None and name != "head"


def known_anywhere(encoder: str) -> bool:
    """Whether others find the same encoder under this name: the embedded one, or one of the Hub."""
    return encoder == EMBEDDED or not (Path(encoder).is_absolute() or Path(encoder).expanduser().is_dir())


def read_package(folder: str | Path) -> Package:
    """Read and check package.json; heads are not opened."""
    folder = Path(folder)
    check_finished(folder)
    return parse_package(folder)


def parse_package(folder: Path) -> Package:
    """The same of a folder that is still being written."""
    path = folder / PACKAGE
    if not is_package(folder):
        raise ArtifactError(
            f"{folder} is not a package, it has no {PACKAGE}: make one with `bertvision export`"
        )
    about = read_json(path)
    if not isinstance(about, dict) or "format" not in about:
        raise ArtifactError(f"{path} does not describe a package: export it again")
    if about["format"] != FORMAT:
        raise ArtifactError(
            f"{folder} is a package of format {about['format']} by bertvision {about.get('bertvision')}, this is "
            f"{__version__} and reads format {FORMAT}: install that version"
        )
    try:
        package = _parsed(folder, about)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"{path} is incomplete or damaged ({error}): export the package again") from error
    heads = [package.head(task) for task in package.tasks]
    heads += [reader for task in package.layers for reader in package.readers(task)]
    parts = [head / "config.json" for head in heads]
    for part in (*parts, package.encoder_folder, package.graph):
        if part is not None and not part.exists():
            raise ArtifactError(
                f"the package {folder} lacks {part.relative_to(folder)}: copy or export it again"
            )
    _check_bases(package)
    return package


def _parsed(folder: Path, about: Mapping[str, Any]) -> Package:
    encoder, tasks, layers = about["encoder"], about["tasks"], about["layers"]
    for text in (encoder["name"], encoder["fingerprint"]):
        if not isinstance(text, str) or not text:
            raise ValueError(f"{text!r} is no name")
    if not isinstance(tasks, list) or not tasks:
        raise ValueError("it names no task")
    for task in tasks:
        if not plain_name(task):
            raise ValueError(f"{task!r} is no name of a task")
    if not layers.keys() <= set(tasks):
        raise ValueError("it has layers of a task that it does not name")
    if not all(type(state) is int for states in layers.values() for state in states):
        raise ValueError("its layers are not numbers")
    states = {task: tuple(own) for task, own in layers.items()}
    return Package(
        folder, encoder["name"], encoder["fingerprint"], bool(encoder["bundled"]), tuple(tasks), states,
        bool(about["onnx"]),
    )  # fmt: skip


def _check_bases(package: Package) -> None:
    """A delta's base lies in the package too, or has a name that is the same everywhere."""
    if package.encoder_folder is None:
        return
    for base in bases_of(str(package.encoder_folder))[1:]:
        path = Path(base)
        place = path.is_absolute() or base[0] in ".~" or ".." in path.parts
        if base != EMBEDDED and place and not _lies_in(package, path):
            raise ArtifactError(
                f"the base {base} of the encoder of {package.folder} leads out of the package: export it again"
            )


def _lies_in(package: Package, path: Path) -> bool:
    return path.resolve().is_relative_to(package.folder.resolve())


def read_heads(package: Package) -> tuple[dict[str, Trained], dict[str, list[Trained]]]:
    """The heads of a package by the names of their tasks, and the readers of their hidden states, the lowest first."""
    heads = {task: _read(package, package.head(task)) for task in package.tasks}
    layers = {task: [_read(package, part) for part in package.readers(task)] for task in package.layers}
    for task, readers in layers.items():
        if tuple(map(layer_number, readers)) != package.layers[task]:
            raise ArtifactError(
                f"the readers of {task} in {package.folder} read other layers: export the package again"
            )
        head = heads[task]
        for reader in readers:
            same = (reader.task.kind, reader.task.outputs) == (head.task.kind, head.task.outputs)
            if not same or reader.reads != head.reads:  # they share one walk, and its windows
                what = "windows" if same else "answers"
                raise ArtifactError(
                    f"{reader.folder} reads a layer for other {what} than those of {task}: export the package again"
                )
    return heads, layers


def layer_number(reader: Trained) -> int:
    """The hidden state that a reader reads: its option counts among those it was fitted on."""
    number = layer_of(reader.heads[0])
    if number is None:
        raise ArtifactError(f"{reader.folder} is no reader of a layer: export the package again")
    layers = reader.selections[0].layers
    return layers[number] if layers else number


def _read(package: Package, folder: Path) -> Trained:
    for member in ensemble_of(folder)[1]:
        if not _lies_in(package, member):
            raise ArtifactError(
                f"{folder / 'config.json'} names a head that leads out of the package: export it again"
            )
    trained = read_head(folder)
    if trained.fingerprint != package.fingerprint:
        raise ArtifactError(
            f"{folder} is a head of another encoder (fingerprint {trained.fingerprint[:12]}) than the package "
            f"({package.fingerprint[:12]}): export them again"
        )
    # The package says where the encoder is, whatever its heads' own files say.
    inside = package.encoder_folder
    return replace(trained, encoder=package.encoder if inside is None else str(inside.resolve()))
