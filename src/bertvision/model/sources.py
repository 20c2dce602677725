"""Which heads go into a package: what the folders given to `export` hold, how they are called, and which of them are
readers of layers.

    a head, an ensemble, a snapshot             that head
    a run                                       its best head
    a fit, a snapshot of several tasks          all its heads
    a package                                   its tasks, under their names

Readers of hidden states (heads/layer_reader.py) that lie beside a head are no tasks: they belong to the first head of
their folder.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bertvision.artifacts import read_json, restore
from bertvision.errors import ArtifactError, ConfigError, nearest
from bertvision.heads.spec import parse_head
from bertvision.model.hub import local_folder
from bertvision.model.model import short_names
from bertvision.model.package import (
    check_finished,
    is_package,
    is_reader,
    layer_number,
    plain_name,
    read_layers,
    read_package,
    read_tasks,
)
from bertvision.model.trained import Trained, ensemble_of, heads_below, read_trained

__all__ = ["Sources", "find_readers", "find_sources"]

_SEED = re.compile(r"\.seed\d+$")


@dataclass
class Sources:
    """What a package is made of."""

    tasks: dict[str, Trained] = field(default_factory=dict)
    layers: dict[str, list[Trained]] = field(default_factory=dict)
    """By task, the readers of its hidden states."""


def find_sources(folders: Sequence[Path], *, heads: Sequence[str] = (), names: Sequence[str] = ()) -> Sources:
    """The heads of all folders; all must be of one encoder.

    Args:
        heads: Take only these of them, by the names of their folders, with or without the seed.
        names: What the tasks are called, in the order of the heads; by default what tells their folders apart.
    """
    found = [_look(folder, wanted=bool(heads)) for folder in folders]
    if heads:
        found = _chosen(found, heads)
    systems = [system for one in found for system in one.heads]
    if not systems:
        # A folder of readers alone.
        raise ArtifactError(
            f"{folders[0]} holds no head but readers of layers: name a folder with a head, and this with --layers"
        )
    _check_encoder(systems)
    called = _called(found, names)
    sources = Sources(dict(zip(called, systems, strict=True)))
    first = 0
    for one in found:
        for name, readers in one.readers_by_name.items():
            sources.layers[called[first + one.names.index(name)]] = readers
        if one.readers and one.heads:
            _check_encoder([one.heads[0], *one.readers])
            sources.layers[called[first]] = one.readers
        first += len(one.heads)
    return sources


def find_readers(sources: Sources, folders: Sequence[Path]) -> None:
    """Add the readers in `folders` to the first task that was fitted for the same and reads the same windows."""
    for folder in folders:
        readers = _look(folder, wanted=False).readers
        if not readers:
            raise ConfigError(
                f"--layers {folder} holds no reader of a layer: fit them with `--heads each_layer`"
            )
        _check_encoder([*sources.tasks.values(), *readers])
        like = (readers[0].reads, readers[0].task)
        own = [name for name, system in sources.tasks.items() if (system.reads, system.task) == like]
        if not own:
            raise ConfigError(
                f"the readers of --layers {folder} were fitted for another task or other windows than "
                f"{', '.join(sources.tasks)}: fit them together with a head"
            )
        sources.layers[own[0]] = readers


# ---- one folder


@dataclass
class _Found:
    folder: Path
    heads: list[Trained]
    readers: list[Trained] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    """What a package calls its tasks."""
    readers_by_name: dict[str, list[Trained]] = field(default_factory=dict)


def _look(folder: Path, *, wanted: bool) -> _Found:
    """What a folder holds; of a run all its heads where some are `wanted` by name."""
    folder = local_folder(folder)
    check_finished(folder)
    restore(folder)
    if not folder.is_dir():
        raise ArtifactError(
            f"there is no folder {folder}: give what fit, finetune, multitask, ensemble or run wrote"
        )
    if is_package(folder):
        tasks = read_tasks(read_package(folder))
        return _Found(folder, list(tasks.values()), [], list(tasks), read_layers(folder))
    if (folder / "results.json").exists():
        best = read_trained(folder)
        paths = heads_below(folder) if wanted else [best.folder]
        beside = [path for path in heads_below(best.folder.parent) if path.parent == best.folder.parent]
        return _Found(
            folder, _read([p for p in paths if wanted or not is_reader(p)]) or [best], _readers(beside)
        )
    if (folder / "config.json").exists() or (folder / "head" / "config.json").exists():
        return _Found(folder, [read_trained(folder)])
    paths = [path for path in heads_below(folder) if not _packaged(path, folder)]
    if not paths:
        raise ArtifactError(
            f"{folder} holds no head: give what fit, finetune, multitask, ensemble or run wrote"
        )
    return _Found(folder, _read([p for p in paths if wanted or not is_reader(p)]), _readers(paths))


def _packaged(path: Path, folder: Path) -> bool:
    """Whether a head in `folder` lies in a package that was exported into it: it is a copy of one of the others."""
    return any(is_package(above) for above in path.parents if above.is_relative_to(folder))


def _read(paths: Sequence[Path]) -> list[Trained]:
    return [read_trained(path) for path in paths]


def _readers(paths: Sequence[Path]) -> list[Trained]:
    """One for each hidden state, the lowest first; of several seeds the first."""
    by_layer: dict[int, Trained] = {}
    for reader in _read([path for path in paths if is_reader(path)]):
        by_layer.setdefault(layer_number(reader), reader)
    return [by_layer[number] for number in sorted(by_layer)]


# ---- all of them


def _chosen(found: Sequence[_Found], heads: Sequence[str]) -> list[_Found]:
    """Only the heads that are named, in the order of the folders."""
    known = [name for one in found for system in one.heads for name in _known_as(system)]
    chosen = {name: name if name in known else _label(name) for name in heads}
    for name, meant in chosen.items():
        if meant not in known:
            raise ConfigError(f"--heads names {name!r}: {nearest(name, list(dict.fromkeys(known)))}")
    kept = []
    for one in found:
        places = [i for i, system in enumerate(one.heads) if set(_known_as(system)) & set(chosen.values())]
        names = [one.names[i] for i in places] if one.names else []
        by_name = {name: readers for name, readers in one.readers_by_name.items() if name in names}
        systems = [one.heads[i] for i in places]
        # A run has snapshots, each with readers of its own.
        readers = [r for r in one.readers if systems and r.fingerprint == systems[0].fingerprint]
        kept.append(_Found(one.folder, systems, readers, names, by_name))
    return kept


def _known_as(system: Trained) -> tuple[str, ...]:
    return system.name, _SEED.sub("", system.name)


def _label(name: str) -> str:
    """What a fit calls the head that its --heads names so: adapter:size=64 is adapter-64."""
    try:
        return parse_head(name).label
    except ConfigError:
        return name


def _check_encoder(systems: Sequence[Trained]) -> None:
    first = systems[0]
    for system in systems:
        if system.fingerprint != first.fingerprint:
            raise ArtifactError(
                f"{system.folder} reads another encoder (fingerprint {system.fingerprint[:12]}) than {first.folder} "
                f"({first.fingerprint[:12]}): a package has one encoder, name the heads of one (a snapshot is one)"
            )


def _called(found: Sequence[_Found], names: Sequence[str]) -> list[str]:
    """A name for every head."""
    systems = [system for one in found for system in one.heads]
    if names:
        if len(names) != len(systems):
            heads = ", ".join(system.name for system in systems)
            raise ConfigError(f"--name gives {len(names)} names for {len(systems)} heads ({heads})")
        called = list(names)
    else:
        loose = [system for one in found if not one.names for system in one.heads]
        short = iter(_short(loose))
        called = [name for one in found for name in (one.names or [next(short) for _ in one.heads])]
    for name in called:
        if not plain_name(name):
            raise ConfigError(
                f"a task cannot be called {name!r}: give letters, digits, dots and dashes with --name"
            )
        if called.count(name) > 1:
            raise ConfigError(
                f"{called.count(name)} heads would be called {name!r}: name all of them with --name"
            )
    return called


def _short(systems: Sequence[Trained]) -> list[str]:
    """What tells their folders apart, without the seed where nothing hangs on it."""
    names = [systems[0].name] if len(systems) == 1 else short_names([system.folder for system in systems])
    names = [re.sub(r"[^\w.@+~-]+", "-", name).strip("-") or "task" for name in names]
    bare = [_SEED.sub("", name) for name in names]
    return bare if len(set(bare)) == len(bare) else names


def read_members(system: Trained) -> tuple[dict[str, object], list[Path]]:
    """The config of a system's folder, and the folders of its heads: itself, or the members of an ensemble."""
    return read_json(system.folder / "config.json"), ensemble_of(system.folder)[1]
