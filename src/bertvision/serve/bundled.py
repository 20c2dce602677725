"""The encoder inside a package: whole, or a delta with its base below it.

    encoder/                              Hugging Face format, or
    encoder/delta.json, .safetensors      a delta (encoder/delta.py); "base" is "./base" where the base came along,
    encoder/base/                         else `embedded` or a name on the Hub, which are the same everywhere

A delta elsewhere names its base by a whole path, which nobody else has. Here it is the folder below, wherever the
package lies, so it is put together in this file. Fingerprints do not depend on names or places: a bundled encoder has
that of the one it was copied from.
"""

import shutil
from pathlib import Path

from bertvision.artifacts import read_json, write_json
from bertvision.encoder.delta import apply_delta, delta_folder, read_delta
from bertvision.encoder.encoder import Encoder, Precision, choose_device
from bertvision.encoder.load import EMBEDDED
from bertvision.errors import ArtifactError

__all__ = ["bundle_encoder", "has_base", "known_anywhere", "load_bundled", "plain_encoder_name"]

_BASE, _HERE = "base", "./base"


def known_anywhere(name: str) -> bool:
    """Whether others find the same encoder under this name: the embedded one, or one of the Hub."""
    return name == EMBEDDED or not (Path(name).is_absolute() or Path(name).expanduser().is_dir())


def has_base(folder: Path) -> bool:
    """Whether it is a delta that brings its base along."""
    return delta_folder(str(folder)) is not None and (folder / _BASE).is_dir()


def bundle_encoder(encoder: Encoder, name: str, folder: Path, *, whole: bool) -> None:
    """Copy an encoder into `folder`.

    Args:
        name: Where it was loaded from: `embedded`, a folder or a name on the Hub.
        whole: Copy the base of a delta as well where others could find it by its name.
    """
    folder.mkdir(parents=True)
    source = None if name == EMBEDDED else delta_folder(name)
    if source is None:
        encoder.save(folder)
        return
    about = read_json(source / "delta.json")
    shutil.copyfile(source / "delta.safetensors", folder / "delta.safetensors")
    base = str(source / _BASE) if about["base"] == _HERE else about["base"]
    if whole or not known_anywhere(base):
        below = (
            load_bundled(Path(base), device="cpu")
            if has_base(Path(base))
            else Encoder.load(base, device="cpu")
        )
        bundle_encoder(below, base, folder / _BASE, whole=whole)
        base = _HERE
    write_json(folder / "delta.json", about | {"base": base})


def plain_encoder_name(name: str) -> str:
    """What an encoder is called where its place does not matter: by what it was tuned from, without folders."""
    while name != EMBEDDED and (folder := delta_folder(name)) is not None:
        base = read_json(folder / "delta.json")["base"]
        name = str(folder / _BASE) if base == _HERE else base
    return name if known_anywhere(name) else Path(name).name


def load_bundled(folder: Path, *, device: str = "auto", precision: Precision = "auto") -> Encoder:
    """The encoder of a package, a delta on top of the base below it."""
    if not has_base(folder):
        return Encoder.load(str(folder), device=device, precision=precision)
    base = load_bundled(folder / _BASE, device="cpu", precision="fp32")
    delta, tensors = read_delta(folder)
    if base.fingerprint != delta.base_fingerprint:
        raise ArtifactError(
            f"{folder / _BASE} has fingerprint {base.fingerprint[:12]}, and the delta above it belongs to "
            f"{delta.base_fingerprint[:12]}: copy or export the package again"
        )
    apply_delta(delta, base.model, tensors, folder=folder)
    place = choose_device(device)
    encoder = Encoder(base.model, base.tokenizer, name=str(folder), device=place, precision=precision)
    encoder._delta = delta
    return encoder
