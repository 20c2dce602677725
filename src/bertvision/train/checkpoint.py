"""Everything a killed run needs to go on exactly where it was, without a pickle.

One safetensors file holds weights, optimiser moments and random states; its metadata holds the rest as JSON.
Being one file that is renamed into place, it is whole or it is not there.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bertvision.artifacts import read_tensors, write_tensors
from bertvision.train.randomness import generator_of

__all__ = ["load_checkpoint", "save_checkpoint"]


def save_checkpoint(
    path: Path,
    modules: Mapping[str, nn.Module],
    optimizers: Mapping[str, torch.optim.Optimizer],
    *,
    progress: Mapping[str, Any],
    extra: Mapping[str, Tensor] | None = None,
) -> None:
    """Write modules, optimisers, random states and `progress` (plain JSON) into one file."""
    tensors: dict[str, Tensor] = {f"extra/{name}": value for name, value in (extra or {}).items()}
    for name, module in modules.items():
        tensors |= {f"module/{name}/{key}": value for key, value in module.state_dict().items()}
    for name, optimizer in optimizers.items():
        for index, moments in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer/{name}/{index}/{key}": value for key, value in moments.items()}
    tensors |= {f"random/{name}": generator.get_state() for name, generator in _generators(modules).items()}
    write_tensors(path, tensors, {"progress": json.dumps(progress)})


def load_checkpoint(
    path: Path, modules: Mapping[str, nn.Module], optimizers: Mapping[str, torch.optim.Optimizer]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Put a checkpoint back into modules, optimisers and random states; returns its progress and extra tensors."""
    tensors, metadata = read_tensors(path)
    for name, module in modules.items():
        module.load_state_dict(_under(tensors, f"module/{name}/"))
    for name, optimizer in optimizers.items():
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in _under(tensors, f"optimizer/{name}/").items():
            index, _, moment = key.partition("/")
            state.setdefault(int(index), {})[moment] = value
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    for name, generator in _generators(modules).items():
        generator.set_state(tensors[f"random/{name}"])
    return json.loads(metadata["progress"]), _under(tensors, "extra/")


def _generators(modules: Mapping[str, nn.Module]) -> dict[str, torch.Generator]:
    """The random number generators of the CPU and of the device the modules live on."""
    device = next((p.device for module in modules.values() for p in module.parameters()), torch.device("cpu"))
    return {"cpu": torch.default_generator, "device": generator_of(device)}


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
