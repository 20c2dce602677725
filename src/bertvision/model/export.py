"""Write a package: copy heads, their layers' readers and, where asked, the encoder into one folder (model/package.py).

The folder appears whole or not at all. What is copied loses its ties to this machine: heads name the encoder by a path
inside the package or by a name others know, and data by the names of files. The key "made" of metrics.json
(model/record.py) gets all data, commands and intervals that the card shows, so that a package can be exported again
without them at hand.
"""

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bertvision._version import __version__
from bertvision.artifacts import atomic_folder, read_json, write_json, write_text
from bertvision.data.load import Columns
from bertvision.encoder.delta import delta_folder, read_about
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.load import EMBEDDED, bases_of, lasting_name
from bertvision.errors import ArtifactError, ConfigError, OutputError
from bertvision.heads.costs import cost
from bertvision.model.bundled import bundle_encoder, known_anywhere, plain_encoder_name
from bertvision.model.card import CardEncoder, CardHead
from bertvision.model.card import card as card_text
from bertvision.model.intervals import head_intervals
from bertvision.model.load import open_encoder
from bertvision.model.model import Bundle
from bertvision.model.origin import file_name, plain_command
from bertvision.model.package import (
    FORMAT,
    PACKAGE,
    Package,
    is_package,
    layer_number,
    parse_package,
    read_package,
)
from bertvision.model.sources import Sources, read_members
from bertvision.model.trained import Trained

if TYPE_CHECKING:
    from bertvision.model.onnx import OnnxReport

__all__ = ["CardConfig", "Exported", "check_out", "write_package"]

Keep = Literal["auto", "bundle", "reference"]


@dataclass(frozen=True)
class CardConfig:
    """What the card says beyond what the heads' folders tell."""

    license: str = ""
    """The licence of the weights as the Hub names it (apache-2.0, cc-by-sa-4.0, ...); none is set by default."""
    datasets: tuple[str, ...] = ()
    """Names on the Hub of the data sets the heads were trained on."""
    scored_on: tuple[str, ...] = ()
    """The data the heads were scored on, as --dev takes it: scores get intervals from it. What a run names, and a dev
    file that still lies where it was, are found without."""
    columns: Columns = field(default_factory=Columns)
    """The columns of that data, where it is a table of texts."""
    commands: tuple[str, ...] = ()
    """How it was made, in addition to what a run tells of itself."""

    def __post_init__(self) -> None:
        if any(letter.isspace() for letter in self.license):
            raise ConfigError(
                f"--license {self.license!r} is no name of a licence: write it as the Hub does, such as apache-2.0"
            )


@dataclass(frozen=True)
class Exported:
    package: Package
    onnx: "OnnxReport | None"
    """What the check of the graph found."""


def check_out(out: Path, folders: Sequence[Path]) -> None:
    """Refuse to replace what is no package, or a package that holds what is to be exported."""
    if out.exists() and not is_package(out):
        raise OutputError(f"--out {out} exists and is not a package: choose another folder")
    for folder in folders:
        if out.resolve() in folder.resolve().parents:
            raise OutputError(f"--out {out} would replace {folder}, which lies in it: choose another folder")


def write_package(
    out: Path,
    sources: Sources,
    *,
    encoder: str | None = None,
    keep: Keep = "auto",
    onnx: bool = False,
    card: CardConfig | None = None,
    title: str = "",
) -> Exported:
    """Write the heads of `sources` with their encoder to `out`, which must be new or a package.

    Args:
        encoder: Where the encoder lies now, if it moved.
        keep: bundle copies the encoder, reference names it; auto names those that others find under the same name,
            the embedded one and those of the Hub, and copies all others. Of a delta auto copies the delta alone where
            its base has such a name.
        onnx: Write the whole as one ONNX graph too.
        title: Of the card; by default the folder's name.
    """
    check_out(out, [])
    card = card or CardConfig()
    loaded = open_encoder(sources.tasks, encoder, device="cpu", precision="fp32")
    first = next(iter(sources.tasks.values()))
    name = lasting_name(encoder or first.encoder)
    bundled = keep == "bundle" or (keep == "auto" and not known_anywhere(name))
    if not bundled:
        _check_named(out, name)
    report = None
    with atomic_folder(out) as folder:
        called, public = _called(system=first, source=name)
        place: dict[str, Any] = {"name": called if bundled else name}
        if bundled:
            _bundle(loaded, name, folder / "encoder", whole=keep == "bundle")
            place["path"] = "encoder"
        about: dict[str, Any] = {
            "format": FORMAT,
            "bertvision": __version__,
            "encoder": place | {"fingerprint": loaded.fingerprint},
            "tasks": {},
        }
        heads = []
        for task, system in sources.tasks.items():
            told = _card_head(task, system, card)
            heads.append(told)
            _copy(system, folder / "heads" / task, folder, place, loaded.fingerprint, told, card)
            label = str(told.config.get("label") or told.config["head"]["name"])
            label = f"{system.how} of {told.members}" if told.members > 1 else label
            about["tasks"][task] = {"folder": f"heads/{task}", "kind": system.task.kind, "label": label}
        for task, readers in sources.layers.items():
            for reader in readers:
                part = f"layers/{task}/{layer_number(reader)}"
                _copy(reader, folder / part, folder, place, loaded.fingerprint)
                about.setdefault("layers", {}).setdefault(task, []).append(part)
        if onnx:
            report = _graph(sources, loaded, folder / "onnx" / "model.onnx")
            about["onnx"] = "onnx/model.onnx"
        text = card_text(
            title or out.name,
            heads,
            _card_encoder(loaded, name, called=called, public=public, bundled=bundled),
            commands=_commands(sources, card),
            layers=list(sources.layers),
            onnx="" if report is None else f"at most {report.max_difference:.1e} from torch",
            license=card.license,
            datasets=card.datasets,
        )
        write_text(folder / "README.md", text)
        write_json(folder / PACKAGE, about)
        parse_package(folder)
    return Exported(read_package(out), report)


def _check_named(out: Path, name: str) -> None:
    """Refuse to name an encoder, or a delta of one, that goes with the package it lies in."""
    for place in bases_of(name):
        path = Path(lasting_name(place))
        if path.is_absolute() and path.resolve().is_relative_to(out.resolve()):
            raise OutputError(
                f"--out {out} would replace the encoder {path}, which lies in it: leave out --reference or choose "
                "another folder"
            )


def _bundle(encoder: Encoder, name: str, folder: Path, *, whole: bool) -> None:
    """Copy the encoder and prove that the copy is the same."""
    bundle_encoder(encoder, name, folder, whole=whole)
    found = Encoder.load(str(folder), device="cpu", precision="fp32").fingerprint
    if found != encoder.fingerprint:
        raise OutputError(
            f"the copy of {name} has another fingerprint ({found[:12]}) than {encoder.fingerprint[:12]}: check the "
            "disk, or name the encoder instead with --reference"
        )


def _graph(sources: Sources, encoder: Encoder, path: Path) -> "OnnxReport":
    from bertvision.model.onnx import export_onnx

    systems = list(sources.tasks.values())
    return export_onnx(Bundle(systems, encoder, names=list(sources.tasks), layers=sources.layers), path)


# ---- heads


def _copy(
    system: Trained,
    folder: Path,
    root: Path,
    place: Mapping[str, str],
    fingerprint: str,
    told: CardHead | None = None,
    card: CardConfig | None = None,
) -> None:
    """A head, or an ensemble with its members below it."""
    config, members = read_members(system)
    own = [folder]
    if len(members) > 1 or members[0] != system.folder.resolve():
        own = [folder / "members" / str(i) for i in range(len(members))]
        words = {"how": system.how, "members": [str(path.relative_to(folder)) for path in own]}
        write_json(folder / "config.json", dict(config) | {"ensemble": words})
    for source, target in zip(members, own, strict=True):
        target.mkdir(parents=True, exist_ok=True)
        encoder = {"name": place["name"], "fingerprint": fingerprint}
        if "path" in place:
            encoder["path"] = Path(os.path.relpath(root / place["path"], target)).as_posix()
        elif not known_anywhere(place["name"]):
            encoder["path"] = place["name"]
        shutil.copyfile(source / "model.safetensors", target / "model.safetensors")
        write_json(target / "config.json", read_json(source / "config.json") | {"encoder": encoder})
    metrics = _metrics(system)
    if told is not None and card is not None:
        commands = [plain_command(command) for command in _made_by(system)]
        kept = {"data": told.data, "intervals": told.intervals, "commands": commands}
        metrics["made"] = {key: value for key, value in kept.items() if value}
    if metrics:
        write_json(folder / "metrics.json", metrics)


def _metrics(system: Trained) -> dict[str, Any]:
    """metrics.json without places on the disk: files are named by their names."""
    path = system.folder / "metrics.json"
    found = read_json(path) if path.exists() else {}
    tuning = found.get("tuning", {})
    return found | ({"tuning": tuning | {"on": file_name(tuning["on"])}} if tuning.get("on") else {})


# ---- what the card tells


def _card_head(task: str, system: Trained, card: CardConfig) -> CardHead:
    _, members = read_members(system)
    metrics = _metrics(system)
    kept = _kept(system.folder)
    known = {split: name for folder in (*members, system.folder) for split, name in _told_data(folder)}
    data, places = _data(system)
    found = head_intervals(
        system.folder,
        system.task,
        metrics.get("scores", {}),
        [*card.scored_on, *places],
        columns=card.columns,
    )
    tokens = system.windows.max_seq_length
    prices = [cost(head, head.geometry, tokens=tokens) for head in system.heads]
    flops = [price.flops_per_token for price in prices]
    return CardHead(
        name=task,
        task=system.task,
        config=read_json(members[0] / "config.json"),
        metrics=metrics,
        parameters=sum(price.parameters for price in prices),
        flops_per_token=None if None in flops else sum(number for number in flops if number is not None),
        intervals=kept.get("intervals", {}) | found,
        data=known | {split: file_name(name) for split, name in data.items()},
        members=len(members),
    )


def _run_of(system: Trained) -> dict[str, Any]:
    """results.json of the run a head came out of, where it did."""
    for folder in system.folder.resolve().parents[:4]:
        if (folder / "results.json").is_file():
            found = read_json(folder / "results.json")
            return found if isinstance(found, dict) and "systems" in found else {}
    return {}


def _data(system: Trained) -> tuple[dict[str, str], list[str]]:
    """Of each split the name of its data, and where data it was scored on may lie."""
    run = _run_of(system)
    names = {split: str(facts.get("name")) for split, facts in run.get("data", {}).items()}
    settings = run.get("settings", {})
    places = [str(settings[split]) for split in ("dev", "test") if settings.get(split)]
    if system.tuned_on:
        names.setdefault("dev", system.tuned_on)
        places.append(system.tuned_on)
    return names, places


def _made_by(system: Trained) -> list[str]:
    """The commands that are known to have made a head: its encoder, its members, itself."""
    _, members = read_members(system)
    snapshot = Path(system.encoder).parent / "head"  # where the encoder is one that finetune wrote
    folders = dict.fromkeys([snapshot, *members, system.folder.resolve()])
    kept = [command for folder in folders for command in _kept(folder).get("commands", [])]
    command = _run_of(system).get("command")
    return [*kept, *([command] if isinstance(command, str) else [])]


def _told_data(folder: Path) -> Iterable[tuple[str, str]]:
    return _kept(folder).get("data", {}).items()


def _kept(folder: Path) -> dict[str, Any]:
    """What training or an earlier export kept for the card (model/record.py)."""
    path = folder / "metrics.json"
    found = read_json(path) if path.exists() else {}
    kept: Any = found.get("made", {}) if isinstance(found, dict) else []
    data = isinstance(kept, dict) and all(
        isinstance(kept.get(key, {}), dict) for key in ("data", "intervals")
    )
    commands = kept.get("commands", []) if data else None
    if not isinstance(commands, list) or not all(isinstance(command, str) for command in commands):
        raise ArtifactError(f'{path} is damaged at "made": delete that key')
    return kept


def _commands(sources: Sources, card: CardConfig) -> list[str]:
    made = [command for system in sources.tasks.values() for command in _made_by(system)]
    return list(dict.fromkeys(plain_command(command) for command in (*made, *card.commands)))


def _called(system: Trained, source: str) -> tuple[str, bool]:
    """What the encoder is called without folders, by what it was tuned from if that is known, and whether others know
    the name."""
    name = plain_encoder_name(source)
    if known_anywhere(source) or (known_anywhere(name) and _on_hub(name)):
        return name, True
    _, members = read_members(system)
    told = str(read_json(members[0] / "config.json")["encoder"]["name"])
    if _on_hub(told):
        return told, True  # a snapshot that was tuned from it
    name = Path(told).name
    return (Path(source).parent.name if name == "encoder" else name), False


def _on_hub(name: str) -> bool:
    """Whether a name in a head's folder can only be one of an encoder others have: bare ones are those of folders."""
    return name == EMBEDDED or (name.count("/") == 1 and known_anywhere(name) and name[0] not in "./~")


def _card_encoder(encoder: Encoder, name: str, *, called: str, public: bool, bundled: bool) -> CardEncoder:
    folder = None if name == EMBEDDED else delta_folder(name)
    embeddings = sum(p.numel() for key, p in encoder.model.named_parameters() if "embeddings" in key)
    # Two operations a weight of the layers; attention over the other tokens of a window comes on top.
    flops = 2 * (encoder.num_parameters - embeddings)
    found = known_anywhere(name)
    tuned = "" if folder is None else f"tuned with policy {read_about(folder)['policy']}"
    return CardEncoder(
        name=called,
        public=public,
        fingerprint=encoder.fingerprint,
        parameters=encoder.num_parameters,
        flops_per_token=flops,
        place="here" if bundled else "known" if found else "elsewhere",
        tuned=tuned or ("fine-tuned" if public and not found else ""),
    )
