"""Write a package: copy heads, readers of their layers and, where asked, the encoder into one folder (package.py).

The folder appears whole or not at all. What is copied loses its ties to this machine: heads name the encoder by a path
inside the package or by a name others know, data and commands lose their folders. The key "made" of metrics.json
(record.py) gets everything that the card shows, so that a package can be exported again.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertvision.artifacts import atomic_folder, read_json, write_json, write_text
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.load import BELOW, EMBEDDED, bases_of, delta_folder, lasting_name, read_about
from bertvision.errors import ArtifactError, OutputError
from bertvision.heads.costs import cost
from bertvision.model.card import CardEncoder, CardHead, card_text
from bertvision.model.config import CardConfig, Keep
from bertvision.model.folders import PACKAGE, ensemble_of, is_package
from bertvision.model.intervals import head_intervals
from bertvision.model.origin import file_name, plain_command
from bertvision.model.package import Package, known_anywhere, layer_number, parse_package, read_package
from bertvision.model.trained import Trained

if TYPE_CHECKING:
    from bertvision.model.model import Model
    from bertvision.model.onnx import OnnxReport


@dataclass(frozen=True)
class Exported:
    package: Package
    labels: dict[str, str]
    """By task what its head is called in tables."""
    onnx: "OnnxReport | None"
    """What the check of the graph found."""


def check_out(out: Path, folders: Sequence[Path] = ()) -> None:
    """Refuse to replace what is no package, or a package that holds what is to be exported."""
    if out.exists() and not is_package(out):
        raise OutputError(f"--out {out} exists and is not a package: choose another folder")
    for folder in folders:
        if out.resolve() in folder.resolve().parents:
            raise OutputError(f"--out {out} would replace {folder}, which lies in it: choose another folder")


def write_package(
    model: "Model", out: Path, *, keep: Keep, onnx: bool, card: CardConfig, title: str = ""
) -> Exported:
    """Write the heads of `model` with their encoder to `out`, which must be new or a package; see `Model.save`.

    Of a delta keep="auto" copies the delta alone where its base has a name that others know.
    """
    check_out(out)
    encoder = model.encoder
    name = lasting_name(encoder.name)
    bundled = keep == "bundle" or (keep == "auto" and not known_anywhere(name))
    if not bundled:
        _check_named(out, name)
    about = _card_encoder(model, name, bundled=bundled)
    package = Package(
        out,
        about.name if bundled else name,
        encoder.fingerprint,
        bundled,
        tuple(model.systems),
        {task: tuple(map(layer_number, own)) for task, own in model.layers.items()},
        onnx,
    )
    heads, report = [], None
    with atomic_folder(out) as folder:
        if bundled:
            _copy_encoder(encoder, name, folder / "encoder", whole=keep == "bundle")
        for task, system in model.systems.items():
            heads.append(_describe(task, system, card))
            _copy(system, folder / package.head(task).relative_to(out), folder, package, heads[-1].made)
            for reader, place in zip(model.layers.get(task, ()), package.readers(task), strict=True):
                _copy(reader, folder / place.relative_to(out), folder, package)
        if onnx:
            from bertvision.model.onnx import export_onnx

            report = export_onnx(model, folder / "onnx" / "model.onnx")
        commands = [command for head in heads for command in head.made.get("commands", [])]
        text = card_text(
            title or out.name,
            heads,
            about,
            commands=list(dict.fromkeys([*commands, *map(plain_command, card.commands)])),
            layers=list(model.layers),
            onnx="" if report is None else f"at most {report.max_difference:.1e} from torch",
            license=card.license,
            datasets=card.datasets,
        )
        write_text(folder / "README.md", text)
        write_json(folder / PACKAGE, package.config())
        parse_package(folder)
    return Exported(read_package(out), {head.name: head.label for head in heads}, report)


# ---- the encoder


def _check_named(out: Path, name: str) -> None:
    """Refuse to name an encoder, or a delta of one, that goes with the package it lies in."""
    for place in bases_of(name):
        path = Path(lasting_name(place))
        if path.is_absolute() and path.resolve().is_relative_to(out.resolve()):
            raise OutputError(
                f"--out {out} would replace the encoder {path}, which lies in it: leave out --reference or choose "
                "another folder"
            )


def _copy_encoder(encoder: Encoder, name: str, folder: Path, *, whole: bool) -> None:
    """Copy the encoder and prove that the copy is the same."""
    _bundle(encoder, name, folder, whole=whole)
    found = Encoder.load(str(folder), device="cpu", precision="fp32").fingerprint
    if found != encoder.fingerprint:
        raise OutputError(
            f"the copy of {name} has another fingerprint ({found[:12]}) than {encoder.fingerprint[:12]}: check the "
            "disk, or name the encoder instead with --reference"
        )


def _bundle(encoder: Encoder, name: str, folder: Path, *, whole: bool) -> None:
    """Copy an encoder in Hugging Face format, or a delta with its base below it.

    A delta elsewhere names its base by a whole path, which nobody else has; here it is the folder below, wherever the
    package lies. With `whole` the base is copied even where others could find it by its name.
    """
    folder.mkdir(parents=True)
    source = delta_folder(name)
    if source is None:
        encoder.save(folder)
        return
    about = read_about(source)
    shutil.copyfile(source / "delta.safetensors", folder / "delta.safetensors")
    base = about["base"]
    if whole or not known_anywhere(base):
        _bundle(Encoder.load(base, device="cpu"), base, folder / BELOW, whole=whole)
        base = BELOW
    write_json(folder / "delta.json", about | {"base": base})


def _card_encoder(model: "Model", source: str, *, bundled: bool) -> CardEncoder:
    """What the card says of the encoder: called by what it was tuned from if that is known, and without folders."""
    encoder, found = model.encoder, known_anywhere(source)
    base, folder = bases_of(source)[-1], delta_folder(source)
    # What a head calls the encoder it was fitted on: of a snapshot what it was tuned from.
    first = next(iter(model.systems.values()))
    fitted_on = str(read_json(ensemble_of(first.folder)[1][0] / "config.json")["encoder"]["name"])
    public = source if found else next((name for name in (base, fitted_on) if _on_hub(name)), "")
    place = Path(fitted_on).name
    embeddings = sum(p.numel() for key, p in encoder.model.named_parameters() if "embeddings" in key)
    tuned = "" if folder is None else f"tuned with policy {read_about(folder)['policy']}"
    return CardEncoder(
        name=public or (Path(source).parent.name if place == "encoder" else place),
        public=bool(public),
        fingerprint=encoder.fingerprint,
        parameters=encoder.num_parameters,
        # Two operations a weight of the layers; attention over the other tokens of a window comes on top.
        flops_per_token=2 * (encoder.num_parameters - embeddings),
        place="here" if bundled else "known" if found else "elsewhere",
        tuned=tuned or ("fine-tuned" if public and not found else ""),
    )


def _on_hub(name: str) -> bool:
    """Whether a name in a head's folder can only be one of an encoder others have: bare ones are those of folders."""
    return name == EMBEDDED or (name.count("/") == 1 and known_anywhere(name) and name[0] not in "./~")


# ---- heads


def _copy(
    system: Trained, folder: Path, root: Path, package: Package, made: Mapping[str, Any] | None = None
) -> None:
    """A head with its metrics.json and how it was made, or an ensemble with its members below it."""
    how, members = ensemble_of(system.folder)
    own = [folder]
    folder.mkdir(parents=True)
    if how:
        own = [folder / "members" / str(i) for i in range(len(members))]
        ensemble = {"how": system.how, "members": [path.relative_to(folder).as_posix() for path in own]}
        write_json(folder / "config.json", read_json(system.folder / "config.json") | {"ensemble": ensemble})
    for source, target in zip(members, own, strict=True):
        target.mkdir(parents=True, exist_ok=True)
        encoder = {"name": package.encoder, "fingerprint": package.fingerprint}
        if package.bundled:
            encoder["path"] = Path(os.path.relpath(root / "encoder", target)).as_posix()
        elif not known_anywhere(package.encoder):
            encoder["path"] = package.encoder
        shutil.copyfile(source / "model.safetensors", target / "model.safetensors")
        write_json(target / "config.json", read_json(source / "config.json") | {"encoder": encoder})
    metrics = _metrics(system.folder)
    if on := metrics.get("tuning", {}).get("on"):
        metrics["tuning"]["on"] = file_name(on)
    metrics |= {"made": made or {}}
    write_json(folder / "metrics.json", {key: value for key, value in metrics.items() if value})


def _describe(task: str, system: Trained, card: CardConfig) -> CardHead:
    """What the card says of a head, from what is kept beside it, its members and the snapshot it was fitted on."""
    members = ensemble_of(system.folder)[1]
    snapshot = Path(system.encoder).parent / "head"  # where the encoder is one that finetune wrote
    made = [_made(folder) for folder in dict.fromkeys([snapshot, *members, system.folder.resolve()])]
    data = {split: name for one in made[1:] for split, name in one.get("data", {}).items()}
    if system.tuned_on:
        data.setdefault("dev", system.tuned_on)
    metrics, kept = _metrics(system.folder), _made(system.folder).get("intervals", {})
    found = head_intervals(
        system.folder,
        system.task,
        metrics.get("scores", {}),
        [*card.scored_on, *data.values()],
        columns=card.columns,
    )
    about = {
        "commands": [plain_command(command) for one in made for command in one.get("commands", [])],
        "data": {split: file_name(name) for split, name in data.items()},
        "intervals": kept | found,
    }
    tokens = system.windows.max_seq_length
    prices = [cost(head, head.geometry, tokens=tokens) for head in system.heads]
    flops = [price.flops_per_token for price in prices]
    return CardHead(
        name=task,
        task=system.task,
        config=read_json(members[0] / "config.json"),
        metrics=metrics | {"made": {key: value for key, value in about.items() if value}},
        parameters=sum(price.parameters for price in prices),
        flops_per_token=None if None in flops else sum(number for number in flops if number is not None),
        members=len(members),
    )


def _metrics(folder: Path) -> dict[str, Any]:
    path = folder / "metrics.json"
    return read_json(path) if path.exists() else {}


def _made(folder: Path) -> dict[str, Any]:
    """How a head was made, as record.py or an earlier export kept it."""
    made: Any = _metrics(folder).get("made", {})
    mappings = isinstance(made, dict) and all(
        isinstance(made.get(key, {}), dict) for key in ("data", "intervals")
    )
    commands = made.get("commands", []) if mappings else None
    if not isinstance(commands, list) or not all(isinstance(command, str) for command in commands):
        raise ArtifactError(f'{folder / "metrics.json"} is damaged at "made": delete that key')
    return made
