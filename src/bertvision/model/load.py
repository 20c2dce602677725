"""`bv.load(folder)`: what training left behind, a package or one on the Hub, with its encoder, ready to predict.

A package is one folder with one encoder and any number of heads for any number of tasks, to be moved as a whole:

    PKG/package.json      {"format": 1, "bertvision": VERSION, "encoder": {"name", "fingerprint", "bundled": bool},
                           "tasks": [NAME, ...], "layers": {NAME: [K, ...]}, "onnx": bool}
    PKG/README.md         the card (record.py)
    PKG/encoder/          where it is bundled: the encoder in Hugging Face format, or a delta with its base below it
                          (encoder/load.py); else the encoder is found by its name and checked by its fingerprint
    PKG/heads/NAME/       config.json, model.safetensors, metrics.json (tuning, scores); of an ensemble its members in
                          members/
    PKG/layers/NAME/K/    the reader of hidden state K of a task
    PKG/onnx/             encoder and heads as one graph (onnx.py)

package.json is written last (export.py), so a folder that has one is whole. Paths in an ensemble's config.json and in a
delta stay inside the folder. "hub:ORG/NAME@REVISION" is a package on the Hub; what was fetched once is kept in
huggingface_hub's cache and found again without a network.

`read` and `gather` find mistakes before an encoder is loaded, which `open_model` does.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertvision.artifacts import read_json
from bertvision.data.tables import first_line, hub_unreachable
from bertvision.encoder.device import Precision
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.load import EMBEDDED, bases_of
from bertvision.errors import ArtifactError, BertvisionError, ConfigError
from bertvision.model import Backend
from bertvision.model.model import Model
from bertvision.model.trained import (
    PACKAGE,
    Trained,
    check_finished,
    heads_in,
    is_head,
    is_package,
    is_reader,
    load_encoder,
    read_head,
)

FORMAT = 1
FILES = ["*.json", "*.txt", "*.model", "*.safetensors", "*.onnx", "*.onnx.data", "README.md"]
"""What a package is made of; whatever else somebody put into a repository is not fetched."""
_NAME = re.compile(r"\w[\w.@+~-]{0,99}")
_SEED = re.compile(r"\.seed\d+$")


def load(
    folder: str | Path | Mapping[str, str | Path],
    *,
    encoder: str | Encoder | None = None,
    device: str = "auto",
    precision: Precision = "auto",
    backend: Backend = "torch",
) -> Model:
    """Load heads with the encoder they were fitted on; other weights than those are refused.

    Args:
        folder: What `fit`, `finetune`, `multitask`, `ensemble`, `run` or `export` wrote, or "hub:ORG/NAME"; or several
            of these by the names their tasks are to have.
        encoder: Where the encoder lies now, if it moved.
        device: auto, cpu, cuda or mps.
        precision: fp32, bf16, or auto.
        backend: What computes: torch, or onnx for the graph of a package (`export --onnx`).
    """
    systems = gather(list(folder.items())) if isinstance(folder, Mapping) else read(folder)
    return open_model(systems, encoder, device=device, precision=precision, backend=backend)


def open_model(
    systems: Mapping[str, Trained],
    encoder: str | Encoder | None = None,
    *,
    device: str = "auto",
    precision: Precision = "auto",
    backend: Backend = "torch",
) -> Model:
    first = next(iter(systems.values()))
    if backend == "torch":
        return Model(systems, load_encoder(first, encoder, device=device, precision=precision))
    from bertvision.model.onnx import use_onnx

    graph = (first.package or first.folder) / "onnx" / "model.onnx"
    if not graph.is_file():
        raise ConfigError(
            f"{graph.parents[1]} holds no ONNX graph: make a package of it with `bertvision export "
            f"{graph.parents[1]} --onnx --out PKG`, or use --backend torch"
        )
    # The graph computes; what is loaded cuts windows and is compared with it.
    model = Model(systems, load_encoder(first, encoder, device="cpu", precision="fp32"))
    use_onnx(model, graph)
    return model


def read(folder: str | Path, *, rivals: bool = False) -> dict[str, Trained]:
    """The systems of a folder by their names.

    Args:
        rivals: Take several heads for one question side by side, such as those of a fit; else one must be named.
    """
    folder = _local(folder)
    check_finished(folder)
    if is_package(folder):
        return _read_packed(folder)
    paths = heads_in(folder)
    found = [read_head(path) for path in paths]
    names = [found[0].name] if len(found) == 1 else short_names(paths)
    if len(found) > 1 and not rivals and all(system.task.abstains for system in found):
        several = f"{folder} holds several heads ({', '.join(names)})"
        raise ArtifactError(f"{several}: name the folder of one of them")
    return dict(zip(names, found, strict=True))


def gather(sources: Sequence[tuple[str, str | Path]]) -> dict[str, Trained]:
    """Systems of several folders together, with the readers of hidden states that were fitted beside them.

    Args:
        sources: The name of a task and its folder; without a name all systems of a folder under names of their own.
    """
    if not sources:
        raise ConfigError(
            "there are no folders to load: give what fit, finetune, multitask, ensemble or run wrote"
        )
    found: dict[str, Trained] = {}
    taken: set[Path] = set()
    for name, folder in sources:
        own = read(folder, rivals=True)
        if name and len(own) > 1:
            raise ConfigError(
                f"{folder} holds several heads ({', '.join(own)}), which cannot all be {name}: name the folder of one "
                "of them"
            )
        packed = next(iter(own.values())).package is not None
        names = [name] if name else list(own) if packed else _plain_names(list(own))
        for task, system in zip(names, own.values(), strict=True):
            if not plain_name(task):
                raise ConfigError(f"a task cannot be called {task!r}: give letters, digits, dots and dashes")
            if task in found:
                raise ConfigError(f"two heads would be called {task}: name them as NAME=FOLDER")
            found[task] = system if packed else _with_neighbours(system, taken)
    return found


def plain_name(name: str) -> bool:
    """Whether a task may be called so: its name is a folder, a part of addresses and a key."""
    # A folder called head is that of a snapshot, which goes by the folder above it.
    return _NAME.fullmatch(name) is not None and name != "head"


def _plain_names(names: Sequence[str]) -> list[str]:
    plain = [re.sub(r"[^\w.@+~-]+", "-", name).strip("-") or "task" for name in names]
    bare = [_SEED.sub("", name) for name in plain]
    return bare if len(set(bare)) == len(bare) else plain


def short_names(folders: list[Path]) -> list[str]:
    """The first part of each path that tells all of them apart, else the whole path below the folder they share."""
    paths = [folder.resolve().parts for folder in folders]
    levels = list(zip(*paths, strict=False))
    depth = next((i for i, parts in enumerate(levels) if len(set(parts)) > 1), len(levels) - 1)
    for parts in levels[depth:]:
        if len(set(parts)) == len(parts):
            return list(parts)
    return ["/".join(parts[depth:]) for parts in paths]


def _with_neighbours(system: Trained, taken: set[Path]) -> Trained:
    """With the readers of hidden states that were fitted beside it, one a state, but for those another has `taken`."""
    if system.state is not None:
        return system  # a reader itself
    paths = [
        path for path in sorted(system.folder.parent.iterdir()) if path.name != "encoder" and is_head(path)
    ]
    beside = [read_head(path) for path in paths if path not in taken and is_reader(path)]
    own = [one for one in beside if (one.reads, one.task) == (system.reads, system.task)]
    taken |= {reader.folder for reader in own}
    states = {reader.state or 0: reader for reader in reversed(own)}  # of several seeds the first
    return replace(system, layers=[states[state] for state in sorted(states)])


def read_package(folder: str | Path) -> dict[str, Any]:
    """package.json, refused where a part that it names is missing or lies elsewhere; heads are not opened."""
    folder = Path(folder)
    check_finished(folder)
    if not is_package(folder):
        raise ArtifactError(
            f"{folder} is not a package, it has no {PACKAGE}: make one with `bertvision export`"
        )
    about = read_json(folder / PACKAGE)
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise ArtifactError(
            f"{folder / PACKAGE} does not describe a package of format {FORMAT}: export it again, or install the "
            "bertvision that wrote it"
        )
    try:
        parts = [f"heads/{task}/config.json" for task in about["tasks"]]
        for task, states in about["layers"].items():
            parts += [f"layers/{task}/{state}/config.json" for state in states]
        parts += ["encoder"] if about["encoder"]["bundled"] else []
        parts += ["onnx/model.onnx"] if about["onnx"] else []
    except (KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(f"{folder / PACKAGE} is damaged ({error!r}): copy the package again") from error
    if lacking := [part for part in parts if not (folder / part).exists()]:
        raise ArtifactError(f"the package {folder} lacks {lacking[0]}: copy it again, or export it again")
    return about


def _read_packed(folder: Path) -> dict[str, Trained]:
    """The heads of a package by the names of their tasks, with the readers of their hidden states.

    Who wrote a package may be a stranger: nothing in it may lead to another folder of this machine.
    """
    about, root = read_package(folder), folder.resolve()
    encoder, own = about["encoder"], [about["encoder"]["name"]]
    if encoder["bundled"]:
        own = bases_of(str(root / "encoder"))
    # The package says where the encoder is, whatever its heads' own files say.
    systems = {}
    for task in about["tasks"]:
        places = [f"heads/{task}", *(f"layers/{task}/{state}" for state in about["layers"].get(task, ()))]
        read_here = [replace(read_head(folder / one), encoder=own[0], package=folder) for one in places]
        head, *layers = read_here
        systems[task] = replace(head, layers=layers)
    bases = [Path(base) for base in own[1:] if base != EMBEDDED]
    outside = [base for base in bases if base.is_absolute() or str(base)[0] in ".~" or ".." in base.parts]
    outside += [place for head in systems.values() for one in (head, *head.layers) for place in one.members]
    if not all(map(plain_name, systems)) or not all(
        place.resolve().is_relative_to(root) for place in outside
    ):
        raise ArtifactError(f"a part of {folder} leads out of the package: get it from somebody else")
    return systems


def _local(name: str | Path) -> Path:
    """The folder that `name` means: itself, or where the package of the Hub was put."""
    text = str(name)
    if not text.startswith("hub:"):
        return Path(name)
    from huggingface_hub import snapshot_download

    repo, _, revision = text.removeprefix("hub:").partition("@")
    check_repo(repo, flag="the package hub:")
    way_out, local = "check its name, and whether you may read it (`hf auth login`)", hub_unreachable()
    if local:
        way_out = "there is no network and it was never fetched; give a folder"
    with hub_errors(f"cannot load {text}", way_out, ArtifactError):
        place = snapshot_download(
            repo, revision=revision or None, allow_patterns=FILES, local_files_only=local
        )
    if not is_package(place):
        raise ArtifactError(f"{text} is not a package, it has no {PACKAGE}: name one that export pushed")
    return Path(place)


def check_repo(repo: str, *, flag: str = "--push") -> None:
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo)
        _owner, _name = repo.split("/")
    except ValueError as error:
        raise ConfigError(f"{flag} {repo!r} is no name on the Hub: write ORG/NAME") from error


@contextmanager
def hub_errors(what: str, way_out: str, kind: type[BertvisionError]) -> Iterator[None]:
    from httpx import HTTPError
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except (HfHubHTTPError, HTTPError, OSError, ValueError) as error:
        raise kind(f"{what} ({first_line(error).rstrip('. ')}): {way_out}") from error
