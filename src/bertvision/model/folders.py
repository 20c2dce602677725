"""Where heads lie: what stands behind a folder that fit, finetune, multitask, ensemble, run or export wrote.

    a head, an ensemble          itself
    a run                        its best head
    a snapshot                   the head that was tuned with it, or those of all its tasks
    anything else                every head below it: those of a fit, of several tasks, of several snapshots

Readers of single hidden states (heads/layer_reader.py) show how an answer forms; they count as heads only where a
folder holds nothing else.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from bertvision.artifacts import read_json, restore
from bertvision.errors import ArtifactError
from bertvision.heads.base import read_head_config

PACKAGE = "package.json"
_UNFINISHED = re.compile(r"\..+\.tmp-\d+")
"""What artifacts.atomic_folder calls a folder until it is whole."""


def is_package(folder: str | Path) -> bool:
    """Whether `folder` says that it is one (package.py); it may still be damaged."""
    return (Path(folder) / PACKAGE).is_file()


def check_finished(folder: Path) -> None:
    """Bring back what a killed command left aside, and refuse a folder that does not exist or is not finished."""
    if _UNFINISHED.fullmatch(folder.name):
        raise ArtifactError(f"{folder} was left by a command that was killed: run that command again")
    restore(folder)
    if not folder.is_dir():
        raise ArtifactError(
            f"there is no folder {folder}: give what fit, finetune, multitask, ensemble, run or export wrote"
        )


def heads_in(folder: Path) -> list[Path]:
    """The folders of the heads that `folder` stands for; never empty."""
    check_finished(folder)
    if (folder / "results.json").exists():
        return [_best_of_run(folder)]
    for own in (folder, folder / "head"):
        if (own / "config.json").exists():
            return [own]
    found = heads_below(folder)
    if not found:
        raise ArtifactError(
            f"{folder} holds neither a package nor a head: give what fit, finetune, multitask, ensemble, run or "
            "export wrote"
        )
    return [path for path in found if not is_reader(path)] or found


def heads_below(folder: Path) -> list[Path]:
    """Every head below a folder, but for the copies in packages that were exported into it."""
    found = [file.parent for file in sorted(folder.rglob("config.json"))]
    return [
        path
        for path in found
        if "encoder" not in path.relative_to(folder).parts
        and _is_head(path)
        and not any(is_package(above) for above in path.parents if folder in above.parents)
    ]


def _is_head(folder: Path) -> bool:
    files = [folder / name for name in ("config.json", "model.safetensors")]
    return all(file.is_file() for file in files) and "head" in read_json(files[0])


def _best_of_run(folder: Path) -> Path:
    best = [system for system in read_json(folder / "results.json").get("systems", []) if system.get("best")]
    if not best:
        raise ArtifactError(f"{folder} has no best head: name one of the folders under {folder / 'fit'}")
    return folder / best[-1]["folder"]


def ensemble_of(folder: Path) -> tuple[str, list[Path]]:
    """How the heads of a system's folder are joined, and where they lie: itself, or the members of an ensemble."""
    path = folder / "config.json"
    config = read_json(path)
    if not isinstance(config, dict) or "ensemble" not in config:
        return "", [folder.resolve()]
    ensemble = config["ensemble"] if isinstance(config["ensemble"], dict) else {}
    how, members = ensemble.get("how"), ensemble.get("members")
    texts = isinstance(members, list) and all(isinstance(member, str) for member in members)
    if not members or not texts or not isinstance(how, str):
        raise ArtifactError(f"{path} does not name the members of an ensemble: join them again")
    return how, [(folder / member).resolve() for member in members]


def is_reader(folder: Path) -> bool:
    """Whether a head's folder holds the reader of one hidden state."""
    head = read_head_config(folder)["head"]
    return isinstance(head, Mapping) and str(head.get("name")).rpartition(".v")[0] == "layer_reader"


def readers_beside(folder: Path) -> list[Path]:
    """The readers of hidden states that were fitted with the head in `folder`: its neighbours."""
    beside = [path for path in sorted(folder.parent.iterdir()) if path.name != "encoder" and _is_head(path)]
    return [path for path in beside if path != folder and is_reader(path)]


def short_names(folders: list[Path]) -> list[str]:
    """A name for each head's folder: the first part of its path that tells all of them apart, else the whole path below
    the folder they share."""
    paths = [folder.resolve().parts for folder in folders]
    levels = list(zip(*paths, strict=False))
    depth = next((i for i, parts in enumerate(levels) if len(set(parts)) > 1), None)
    if depth is None:
        return [parts[-1] for parts in paths]
    for parts in levels[depth:]:
        if len(set(parts)) == len(parts):
            return list(parts)
    return ["/".join(parts[depth:]) for parts in paths]
