"""A package: one folder with one encoder and any number of heads for any number of tasks, to be moved as a whole.

    PKG/package.json      {"format": 1, "bertvision": VERSION,
                           "encoder": {"name", "fingerprint", "path"?: "encoder"},
                           "tasks": {NAME: {"folder": "heads/NAME", "kind": "span" | "label" | "score", "label"}},
                           "layers"?: {NAME: ["layers/NAME/0", ...]}, "onnx"?: "onnx/model.onnx"}
    PKG/README.md         the card (model/card.py)
    PKG/encoder/          the encoder in Hugging Face format, or a delta with its base below it (model/bundled.py);
                          where it is missing the encoder is named, and found by its fingerprint
    PKG/heads/NAME/       config.json, model.safetensors, metrics.json (threshold, temperature); of an ensemble its
                          members below it
    PKG/layers/NAME/K/    the reader of hidden state K of a task (heads/layer_reader.py)
    PKG/onnx/             the whole as one graph (model/onnx.py)

This file reads packages; model/export.py writes them. package.json is written last, so a folder that has one is whole.
All paths in it are relative and stay inside the folder, and so do those of an ensemble's members and a delta's base.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from bertvision._version import __version__
from bertvision.artifacts import read_json, restore
from bertvision.encoder.load import EMBEDDED, bases_of
from bertvision.errors import ArtifactError
from bertvision.heads.files import read_head_config
from bertvision.heads.layer_reader import layer_of
from bertvision.model.trained import Trained, ensemble_of, read_trained
from bertvision.tasks.base import kinds

__all__ = [
    "FORMAT",
    "PACKAGE",
    "Kind",
    "Package",
    "PackageTask",
    "check_finished",
    "is_package",
    "is_reader",
    "layer_number",
    "parse_package",
    "plain_name",
    "read_layers",
    "read_package",
    "read_tasks",
]

FORMAT = 1
PACKAGE = "package.json"
LAYER_READER = "layer_reader"
"""The head that reads one hidden state, whatever its version."""

Kind = Literal["span", "label", "score"]
_NAME = re.compile(r"\w[\w.@+~-]{0,99}")
_UNFINISHED = re.compile(r"\..+\.tmp-\d+")
"""What artifacts.atomic_folder calls a folder until it is whole."""


@dataclass(frozen=True)
class PackageTask:
    """A head of a package and what it tells."""

    folder: Path
    kind: Kind
    label: str
    """What the head is called in tables."""


@dataclass(frozen=True)
class Package:
    """What package.json says, with paths that can be opened."""

    folder: Path
    version: str
    """Of the bertvision that wrote it."""
    encoder: str
    """The encoder's name: `embedded`, a name on the Hub, or a folder."""
    fingerprint: str
    """Of the encoder's weights and tokenizer."""
    encoder_folder: Path | None
    """Where the encoder lies in the package; None = it is named and lies elsewhere."""
    tasks: dict[str, PackageTask]
    layers: dict[str, tuple[Path, ...]] = field(default_factory=dict)
    """By task, the readers of its hidden states, the lowest first."""
    onnx: Path | None = None
    """The graph of encoder and heads, where it was exported."""


def is_package(folder: str | Path) -> bool:
    """Whether `folder` says that it is one; it may still be damaged."""
    return (Path(folder) / PACKAGE).is_file()


def plain_name(name: str) -> bool:
    """Whether a task may be called so: its name is a folder, a part of addresses and a key."""
    # A folder called head is that of a snapshot, which goes by the folder above it.
    return _NAME.fullmatch(name) is not None and name != "head"


def is_reader(folder: Path) -> bool:
    """Whether a head's folder holds the reader of one hidden state, which is no task of its own."""
    head = read_head_config(folder)["head"]
    return isinstance(head, Mapping) and str(head.get("name")).rpartition(".v")[0] == LAYER_READER


def check_finished(folder: Path) -> None:
    """Refuse what a killed command left behind, be it nearly whole."""
    if _UNFINISHED.fullmatch(folder.name):
        raise ArtifactError(f"{folder} was left by a command that was killed: run that command again")


def read_package(folder: str | Path) -> Package:
    """Read and check package.json; heads are not opened."""
    folder = Path(folder)
    check_finished(folder)
    restore(folder)
    return parse_package(folder)


def parse_package(folder: Path) -> Package:
    """The same of a folder that is still being written."""
    if not folder.is_dir():
        raise ArtifactError(f"there is no folder {folder}: give a package that `bertvision export` wrote")
    path = folder / PACKAGE
    if not path.is_file():
        raise ArtifactError(
            f"{folder} is not a package, it has no {PACKAGE}: make one with `bertvision export`"
        )
    words = read_json(path)
    if not isinstance(words, dict) or "format" not in words:
        raise ArtifactError(f"{path} does not describe a package: export it again")
    if words["format"] != FORMAT:
        raise ArtifactError(
            f"{folder} is a package of format {words['format']} by bertvision {words.get('bertvision')}, this is "
            f"{__version__} and reads format {FORMAT}: install that version"
        )
    try:
        encoder, onnx = words["encoder"], words.get("onnx")
        bundled = encoder.get("path")
        package = Package(
            folder=folder,
            version=str(words.get("bertvision")),
            encoder=_text(encoder["name"]),
            fingerprint=_text(encoder["fingerprint"]),
            encoder_folder=None if bundled is None else _inside(folder, bundled),
            tasks={_plain(name): _task(folder, about) for name, about in words["tasks"].items()},
            layers={
                name: tuple(_inside(folder, part) for part in parts)
                for name, parts in words.get("layers", {}).items()
            },
            onnx=None if onnx is None else _inside(folder, onnx),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"{path} is incomplete or damaged ({error}): export the package again") from error
    if not package.tasks or not package.layers.keys() <= package.tasks.keys():
        what = "names no task" if not package.tasks else "has layers of a task it does not name"
        raise ArtifactError(f"{path} {what}: export the package again")
    parts = [task.folder / "config.json" for task in package.tasks.values()]
    parts += [part / "config.json" for own in package.layers.values() for part in own]
    parts += [part for part in (package.encoder_folder, package.onnx) if part is not None]
    for part in parts:
        if not part.exists():
            raise ArtifactError(
                f"the package {folder} lacks {part.relative_to(folder)}: copy or export it again"
            )
    _check_bases(package)
    return package


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


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is no name")
    return value


def _plain(name: str) -> str:
    if not plain_name(name):
        raise ValueError(f"{name!r} is no name of a task")
    return name


def _inside(folder: Path, part: Any) -> Path:
    """A path of package.json, which comes from others: it may not lead out of the folder."""
    path = PurePosixPath(_text(part))
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{part} leads out of the package")
    return folder / path


def _task(folder: Path, about: Mapping[str, Any]) -> PackageTask:
    kind = about["kind"]
    if kind not in kinds() or not kinds()[kind].predicts:
        raise ValueError(f"a task cannot be a {kind}")
    return PackageTask(_inside(folder, about["folder"]), kind, str(about.get("label", "")))


def read_tasks(package: Package) -> dict[str, Trained]:
    """The heads of a package by the names of their tasks; one of another encoder is refused."""
    found = {name: _read(package, task.folder) for name, task in package.tasks.items()}
    for name, trained in found.items():
        said = package.tasks[name].kind
        if trained.task.kind != said:
            raise ArtifactError(
                f"{package.folder / PACKAGE} calls {name} a {said}, and its head gives a {trained.task.kind}: export "
                "the package again"
            )
    return found


def read_layers(folder: str | Path) -> dict[str, list[Trained]]:
    """By task, the readers of its hidden states, the lowest first; nothing where `folder` is no package."""
    if not is_package(folder):
        return {}
    package = read_package(folder)
    found = {name: [_read(package, part) for part in parts] for name, parts in package.layers.items()}
    for name, readers in found.items():
        numbers = [layer_number(reader) for reader in readers]
        if len(set(numbers)) < len(numbers):
            raise ArtifactError(
                f"{package.folder / PACKAGE} names two readers of one layer for {name}: export the package again"
            )
        head = _read(package, package.tasks[name].folder)
        for reader in readers:
            same = (reader.task.kind, reader.task.outputs) == (head.task.kind, head.task.outputs)
            if not same or reader.reads != head.reads:  # they share one walk, and its windows
                what = "windows" if same else "answers"
                raise ArtifactError(
                    f"{reader.folder} reads a layer for other {what} than those of {name}: export the package again"
                )
    return found


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
    trained = read_trained(folder)
    if trained.fingerprint != package.fingerprint:
        raise ArtifactError(
            f"{folder} is a head of another encoder (fingerprint {trained.fingerprint[:12]}) than the package "
            f"({package.fingerprint[:12]}): export them again"
        )
    # The package says where the encoder is, whatever its heads' own files say.
    inside = package.encoder_folder
    return replace(trained, encoder=package.encoder if inside is None else str(inside.resolve()))
