"""What a tuned encoder differs by from the encoder it was tuned from: small on disk, useless without that base.

    delta.json          format, bertvision, policy, base (`embedded`, absolute folder or Hub name), base_fingerprint,
                        fingerprint
    delta.safetensors   the trained tensors under their names in the model that was trained

Its fingerprint hashes the base's fingerprint, the trained tensors and how they are used: cheap, and the same while
LoRA's matrices stand apart and after they were merged. The base may itself be a delta's folder. `load.py` finds the
base and checks that it is the right one.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertvision._version import __version__
from bertvision.artifacts import read_json, read_tensors, write_json, write_tensors
from bertvision.encoder.policy import Policy, parse_policy
from bertvision.errors import ArtifactError

if TYPE_CHECKING:
    from torch import Tensor, nn

_ABOUT, _TENSORS = "delta.json", "delta.safetensors"
_FORMAT = 1
BELOW = "./base"
"""What delta.json says of a base that lies in the folder `base` beside it: the two may be moved together."""


@dataclass(frozen=True)
class Delta:
    """How an encoder came from its base, and which of its tensors are not the base's."""

    policy: Policy
    base: str
    """As `--encoder` takes it, folders absolute."""
    base_fingerprint: str
    names: tuple[str, ...] = ()
    """Of the parameters that were trained."""
    merged: Mapping[str, "Tensor"] | None = field(default=None, repr=False, compare=False)
    """LoRA's matrices where the model holds only their sum with the weights."""

    def tensors(self, model: "nn.Module") -> Mapping[str, "Tensor"]:
        """The trained tensors as they are now."""
        if self.merged is not None:
            return self.merged
        parameters = dict(model.named_parameters())
        return {name: parameters[name] for name in self.names}

    def fingerprint(self, tensors: Mapping[str, "Tensor"]) -> str:
        digest = hashlib.blake2b(digest_size=16)
        digest.update(f"{self.base_fingerprint} {self.policy.adapter} {self.policy.rule == 'lora'}".encode())
        hash_tensors(digest, tensors)
        return digest.hexdigest()


def hash_tensors(digest: Any, tensors: Mapping[str, "Tensor"]) -> None:
    """Add names, shapes and every bit, in an order that does not depend on the mapping's."""
    import torch

    for name, tensor in sorted(tensors.items()):
        array = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {array.dtype} {tuple(array.shape)}".encode())
        digest.update(array.reshape(-1).view(torch.uint8).numpy().data)


def delta_folder(name: str) -> Path | None:
    """The folder that `name` means if it holds a delta."""
    folder = Path(name).expanduser()
    return folder if name and (folder / _ABOUT).is_file() else None


def write_delta(folder: Path, delta: Delta, tensors: Mapping[str, "Tensor"]) -> None:
    """Write both files, the one that makes the folder a delta last."""
    write_tensors(folder / _TENSORS, tensors)
    about = {
        "format": _FORMAT,
        "bertvision": __version__,
        "policy": str(delta.policy),
        "base": delta.base,
        "base_fingerprint": delta.base_fingerprint,
        "fingerprint": delta.fingerprint(tensors),
    }
    write_json(folder / _ABOUT, about)


def read_about(folder: Path) -> dict[str, Any]:
    """delta.json, refused when it is not one."""
    path = folder / _ABOUT
    about = read_json(path)
    if not isinstance(about, dict) or about.get("format") != _FORMAT:
        raise ArtifactError(
            f"{path} is not a delta of format {_FORMAT}: make it again, or use the bertvision that wrote it"
        )
    if not all(
        isinstance(about.get(key), str) for key in ("policy", "base", "base_fingerprint", "fingerprint")
    ):
        raise ArtifactError(f"{path} is incomplete or damaged: delete its folder and make it again")
    if about["base"] == BELOW:
        about["base"] = str((folder / BELOW).absolute())
    return about


def read_delta(folder: Path) -> tuple[Delta, dict[str, "Tensor"]]:
    """The delta in `folder` and its tensors."""
    about = read_about(folder)
    tensors, _ = read_tensors(folder / _TENSORS)
    policy = parse_policy(about["policy"])
    merged = tensors if policy.rule == "lora" else None
    delta = Delta(policy, about["base"], about["base_fingerprint"], tuple(sorted(tensors)), merged)
    if delta.fingerprint(tensors) != about["fingerprint"]:
        raise ArtifactError(
            f"{folder / _TENSORS} and {_ABOUT} beside it do not belong together: delete the folder and make it again"
        )
    return delta, tensors


def apply_delta(delta: Delta, model: Any, tensors: Mapping[str, "Tensor"], *, folder: Path) -> None:
    """Turn the base, `model`, into the tuned encoder; LoRA is merged, so peft is not needed."""
    from bertvision.encoder.freeze import add_lora, insert_adapters

    if delta.policy.adapter is not None:
        insert_adapters(model, delta.policy.adapter, seed=0)
    try:
        if delta.policy.rule == "lora":
            add_lora(model, tensors)
        elif unknown := model.load_state_dict(tensors, strict=False).unexpected_keys:
            raise KeyError(unknown[0])
    except (KeyError, RuntimeError) as error:
        raise ArtifactError(
            f"{folder / _TENSORS} does not fit {delta.base} ({' '.join(str(error).split())}): delete its folder "
            "and make it again"
        ) from error
