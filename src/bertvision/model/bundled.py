"""The encoder inside a package: whole, or a delta with its base below it.

    encoder/                              Hugging Face format, or
    encoder/delta.json, .safetensors      a delta (encoder/delta.py); "base" is "./base" where the base came along,
    encoder/base/                         else `embedded` or a name on the Hub, which are the same everywhere

A delta elsewhere names its base by a whole path, which nobody else has; here it is the folder below, wherever the
package lies. Fingerprints do not depend on names or places: a bundled encoder has that of the one it was copied from.
"""

import shutil
from pathlib import Path

from bertvision.artifacts import write_json
from bertvision.encoder.delta import BELOW, delta_folder, read_about
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.load import EMBEDDED

__all__ = ["bundle_encoder", "known_anywhere", "plain_encoder_name"]


def known_anywhere(name: str) -> bool:
    """Whether others find the same encoder under this name: the embedded one, or one of the Hub."""
    return name == EMBEDDED or not (Path(name).is_absolute() or Path(name).expanduser().is_dir())


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
    about = read_about(source)
    shutil.copyfile(source / "delta.safetensors", folder / "delta.safetensors")
    base = about["base"]
    if whole or not known_anywhere(base):
        bundle_encoder(Encoder.load(base, device="cpu"), base, folder / BELOW, whole=whole)
        base = BELOW
    write_json(folder / "delta.json", about | {"base": base})


def plain_encoder_name(name: str) -> str:
    """What an encoder is called where its place does not matter: by what it was tuned from, without folders."""
    while name != EMBEDDED and (folder := delta_folder(name)) is not None:
        name = read_about(folder)["base"]
    return name if known_anywhere(name) else Path(name).name
