"""The checkpoint: one safetensors file that a killed run continues from.

    module/NAME/KEY    optimizer/NAME/NUMBER/MOMENT    random/cpu  random/device    extra/KEY

It is renamed into place: complete or absent. Its metadata holds the rest as JSON. It is the same for any number of
processes: split tensors are gathered, rank 0 writes, and every rank takes its part when it reads. Random states alone
belong to a rank (random/cpu/1 is rank 1's).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bertvision.artifacts import read_tensors, write_tensors
from bertvision.train.parallel import ALONE, Parallel
from bertvision.train.randomness import generator_of
from bertvision.train.sharded import gathered_tensors, is_sharded, split_like


def save_checkpoint(
    path: Path,
    modules: Mapping[str, nn.Module],
    optimizers: Mapping[str, torch.optim.Optimizer],
    *,
    progress: Mapping[str, Any],
    extra: Mapping[str, Tensor] | None = None,
    parallel: Parallel = ALONE,
) -> None:
    """Write modules, optimisers, random states and `progress` (plain JSON) into one file; every rank calls it."""
    tensors: dict[str, Tensor] = {f"extra/{name}": value for name, value in (extra or {}).items()}
    for name, module in modules.items():
        tensors |= {f"module/{name}/{key}": value for key, value in _trained(module).items()}
    for name, optimizer in optimizers.items():
        for index, moments in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer/{name}/{index}/{key}": value for key, value in moments.items()}
    if any(is_sharded(tensor) for tensor in tensors.values()):
        tensors = gathered_tensors(tensors)
    for name, generator in _generators(modules).items():
        first, *others = parallel.every(generator.get_state())
        tensors[f"random/{name}"] = first
        tensors |= {f"random/{name}/{rank}": state for rank, state in enumerate(others, 1)}
    parallel.on_main(lambda: write_tensors(path, tensors, {"progress": json.dumps(progress)}))


def load_checkpoint(
    path: Path,
    modules: Mapping[str, nn.Module],
    optimizers: Mapping[str, torch.optim.Optimizer],
    *,
    parallel: Parallel = ALONE,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Put a checkpoint back into modules, optimisers and random states; returns its progress and extra tensors."""
    tensors, metadata = read_tensors(path)
    for name, module in modules.items():
        _load_module(module, _under(tensors, f"module/{name}/"))
    for name, optimizer in optimizers.items():
        groups = optimizer.state_dict()["param_groups"]
        # In the order of their numbers in a state dict.
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in _under(tensors, f"optimizer/{name}/").items():
            index, _, moment = key.partition("/")
            like = parameters[int(index)]
            # A count of steps is a scalar and never sharded.
            state.setdefault(int(index), {})[moment] = split_like(value, like) if value.ndim else value
        optimizer.load_state_dict({"state": state, "param_groups": groups})
    for name, generator in _generators(modules).items():
        own = f"random/{name}/{parallel.rank}" if parallel.rank else f"random/{name}"
        if own in tensors:
            generator.set_state(tensors[own])
    return json.loads(metadata["progress"]), _under(tensors, "extra/")


def _load_module(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    there = _trained(module)
    assert there.keys() == tensors.keys(), "a checkpoint of other modules"
    if any(is_sharded(tensor) for tensor in there.values()):
        tensors = {key: split_like(value, there[key]) for key, value in tensors.items()}
    module.load_state_dict(tensors, strict=False)


def _trained(module: nn.Module) -> dict[str, Tensor]:
    """The state of a module without its frozen parameters: those come from where it was loaded."""
    frozen = {name for name, p in module.named_parameters(remove_duplicate=False) if not p.requires_grad}
    return {name: value for name, value in module.state_dict().items() if name not in frozen}


def _generators(modules: Mapping[str, nn.Module]) -> dict[str, torch.Generator]:
    """The random number generators of the CPU and of the modules' device."""
    device = next((p.device for module in modules.values() for p in module.parameters()), torch.device("cpu"))
    return {"cpu": torch.default_generator, "device": generator_of(device)}


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
