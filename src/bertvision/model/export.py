"""Write a package (load.py): heads, readers of their layers and, where asked, the encoder in one folder; and push it.

The folder appears whole or not at all. What is copied loses its ties to this machine: heads name the encoder by a path
inside the package or by a name others know, data and commands lose their folders. The key "made" of metrics.json
(record.py) gets everything that the card shows, so that a package can be exported again.

Who may write on the Hub is the business of huggingface_hub (`hf auth login`); nothing of it is read or kept here.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertvision._version import __version__
from bertvision.artifacts import atomic_folder, read_json, write_json, write_text
from bertvision.data.tables import hub_unreachable
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.load import BELOW, EMBEDDED, bases_of, delta_folder, lasting_name, read_about
from bertvision.errors import ConfigError, OutputError
from bertvision.heads.base import cost
from bertvision.model import CardConfig, Keep
from bertvision.model.load import FILES, FORMAT, check_repo, hub_errors, read_package
from bertvision.model.model import Model
from bertvision.model.record import CardEncoder, card_text, describe, file_name, plain_command
from bertvision.model.trained import PACKAGE, Trained, is_package


def check_out(out: Path, folders: Sequence[Path]) -> None:
    """Refuse to replace what is no package, or a package that holds one of the `folders` that are to stay."""
    if out.exists() and not is_package(out):
        raise OutputError(f"--out {out} exists and is not a package: choose another folder")
    for folder in folders:
        if out.resolve() in folder.resolve().parents:
            raise OutputError(f"--out {out} would replace {folder}, which lies in it: choose another folder")


def write_package(
    model: Model, out: Path, keep: Keep, card: CardConfig, *, onnx: bool, title: str, command: str
) -> dict[str, Any]:
    """Write the heads of `model` with their encoder to `out`; see `Model.save`.

    Of a delta keep="auto" copies the delta alone where its base has a name that others know.
    """
    name = lasting_name(model.encoder.name)
    bundled = keep == "bundle" or (keep == "auto" and not known_anywhere(name))
    named = [] if bundled else [Path(lasting_name(one)) for one in bases_of(name)]
    check_out(out, [place for place in named if place.is_absolute()])
    known, report, heads = _card_encoder(model, name, bundled=bundled), None, []
    encoder: dict[str, Any] = {"name": known.name if bundled else name}
    encoder |= {"fingerprint": model.encoder.fingerprint, "bundled": bundled}
    layers = {task: [reader.state for reader in system.layers] for task, system in model.systems.items()}
    with atomic_folder(out) as folder:
        if bundled:
            _copy_encoder(model.encoder, name, folder / "encoder", whole=keep == "bundle")
        for task, system in model.systems.items():
            heads.append(_describe(task, system))
            _copy(system, folder / "heads" / task, folder, encoder, heads[-1]["made"])
            for reader in system.layers:
                _copy(reader, folder / "layers" / task / str(reader.state), folder, encoder, {})
        if onnx:
            from bertvision.model.onnx import export_onnx

            report = export_onnx(model, folder / "onnx" / "model.onnx")
        text = card_text(
            title or out.name,
            heads,
            known,
            card,
            command=command,
            layers=[task for task, states in layers.items() if states],
            onnx="" if report is None else f"at most {report['max_difference']:.1e} from torch",
        )
        write_text(folder / "README.md", text)
        about = {
            "format": FORMAT,
            "bertvision": __version__,
            "encoder": encoder,
            "tasks": list(model.systems),
            "layers": {task: states for task, states in layers.items() if states},
            "onnx": onnx,
        }
        write_json(folder / PACKAGE, about)
    return {
        "folder": str(out),
        "bytes": sum(path.stat().st_size for path in out.rglob("*") if path.is_file()),
        "encoder": encoder,
        "tasks": {
            name: {"kind": head["task"].kind, "label": head["label"], "layers": len(layers[name])}
            for name, head in zip(layers, heads, strict=True)
        },
        "onnx": report,
    }


def known_anywhere(encoder: str) -> bool:
    """Whether others find the same encoder under this name: the embedded one, or one of the Hub."""
    return encoder == EMBEDDED or not (Path(encoder).is_absolute() or Path(encoder).expanduser().is_dir())


def _copy_encoder(encoder: Encoder, name: str, folder: Path, *, whole: bool) -> None:
    """Copy an encoder in Hugging Face format, or a delta with its base below it.

    A delta elsewhere names its base by a whole path, which nobody else has; here it is the folder below, wherever the
    package lies. With `whole` the base is copied even where others could find it by its name.
    """
    folder.mkdir(parents=True)
    encoder.save(folder)
    if delta_folder(name) is not None:
        about = read_about(folder)
        base = about["base"]
        if whole or not known_anywhere(base):
            _copy_encoder(Encoder.load(base, device="cpu"), base, folder / BELOW, whole=whole)
            write_json(folder / "delta.json", about | {"base": BELOW})


def _card_encoder(model: Model, source: str, *, bundled: bool) -> CardEncoder:
    """What the card says of the encoder: called by what it was tuned from if that is known, and without folders."""
    encoder, found = model.encoder, known_anywhere(source)
    base, folder = bases_of(source)[-1], delta_folder(source)
    # What a head calls the encoder it was fitted on: of a snapshot what it was tuned from.
    first = next(iter(model.systems.values()))
    fitted_on = str(read_json(first.members[0] / "config.json")["encoder"]["name"])
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


def _copy(
    system: Trained, folder: Path, root: Path, encoder: Mapping[str, Any], made: Mapping[str, Any]
) -> None:
    """A head with its metrics.json and how it was made, or an ensemble with its members below it."""
    joined = list(system.members) != [system.folder.resolve()]
    own = [folder / "members" / str(i) for i in range(len(system.members))] if joined else [folder]
    folder.mkdir(parents=True)
    if joined:
        ensemble = {"how": system.how, "members": [path.relative_to(folder).as_posix() for path in own]}
        write_json(folder / "config.json", read_json(system.folder / "config.json") | {"ensemble": ensemble})
    for source, target in zip(system.members, own, strict=True):
        target.mkdir(parents=True, exist_ok=True)
        about = {"name": encoder["name"], "fingerprint": encoder["fingerprint"]}
        if encoder["bundled"]:
            about["path"] = Path(os.path.relpath(root / "encoder", target)).as_posix()
        elif not known_anywhere(encoder["name"]):
            about["path"] = encoder["name"]
        shutil.copyfile(source / "model.safetensors", target / "model.safetensors")
        write_json(target / "config.json", read_json(source / "config.json") | {"encoder": about})
    metrics = _metrics(system.folder)
    if on := metrics.get("tuning", {}).get("on"):
        metrics["tuning"]["on"] = file_name(on)
    metrics |= {"made": made}
    write_json(folder / "metrics.json", {key: value for key, value in metrics.items() if value})


def _describe(task: str, system: Trained) -> dict[str, Any]:
    """What the card says of a head, from what is kept beside it, its members and the snapshot it was fitted on."""
    snapshot = Path(system.encoder).parent / "head"  # where the encoder is one that finetune wrote
    own = list(dict.fromkeys([*system.members, system.folder.resolve()]))
    made = {folder: _metrics(folder).get("made", {}) for folder in dict.fromkeys([snapshot, *own])}
    data = {split: file_name(name) for one in own for split, name in made[one].get("data", {}).items()}
    if system.tuned_on:
        data.setdefault("dev", file_name(system.tuned_on))
    commands = [plain_command(command) for one in made.values() for command in one.get("commands", [])]
    prices = [cost(head, head.geometry, tokens=system.windows.max_seq_length) for head in system.heads]
    flops = [price.flops_per_token for price in prices]
    return describe(
        task,
        system.task,
        read_json(system.members[0] / "config.json"),
        _metrics(system.folder) | {"made": {"commands": commands, "data": data}},
        parameters=sum(price.parameters for price in prices),
        flops_per_token=None if None in flops else sum(number or 0 for number in flops),
        members=len(system.members),
    )


def _metrics(folder: Path) -> dict[str, Any]:
    path = folder / "metrics.json"
    return read_json(path) if path.exists() else {}


def check_push(repo: str) -> None:
    """Refuse what is no name on the Hub, and to push where nothing answers."""
    check_repo(repo)
    if hub_unreachable():
        way_out = "check the network and try again"
        raise OutputError(f"cannot push to {repo}: the Hub cannot be reached; {way_out}")


def push_to_hub(folder: str | Path, repo: str, *, private: bool) -> str:
    """Put a package on the Hub as `repo`, which `check_push` allowed, in one commit; returns its address.

    Args:
        private: Whether a repository that has to be made is for its owners alone.
    """
    about = read_package(folder)
    if not about["encoder"]["bundled"] and not known_anywhere(about["encoder"]["name"]):
        raise ConfigError(
            f"the encoder of {folder} is a folder on this machine, which nobody else has: "
            "export the package with --bundle-encoder"
        )
    from huggingface_hub import HfApi

    with hub_errors(f"cannot push to {repo}", "check its name, and `hf auth login`", OutputError):
        api = HfApi()
        address = api.create_repo(repo, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=address.repo_id,
            folder_path=folder,
            allow_patterns=FILES,
            # What an older package had and this one has not would else stay there and be served.
            delete_patterns=["encoder/*", "heads/*", "layers/*", "onnx/*"],
            commit_message=f"bertvision package of {', '.join(about['tasks'])}",
        )
    return str(address)
