"""LoRA: a product of two thin matrices beside every linear module of the layers, trained through peft.

        W x + s B A x        A (R, in), B (out, R), s = alpha / R = 2

A starts uniform in +-1/sqrt(in), B at 0, so that a fresh LoRA does nothing. peft is needed for training alone and
imported only here: afterwards W + s B A is a plain weight again (`merge_lora`, `add_lora`), which costs nothing.
"""

import importlib.util
import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bertvision.encoder.stack import layers_of
from bertvision.errors import ConfigError

__all__ = [
    "LORA_SCALE",
    "add_lora",
    "check_peft",
    "inject_lora",
    "lora_parameters",
    "lora_tensors",
    "merge_lora",
]

LORA_SCALE = 2.0
"""s above: alpha is twice the rank."""
_NAME = "default"


def check_peft(rank: int) -> None:
    """Refuse training where peft is not installed; it takes seconds to import, so it is only looked for."""
    if importlib.util.find_spec("peft") is None:
        raise ConfigError(
            f"--policy lora-{rank} needs peft: run `pip install 'bertvision[lora]'`, or use houlsby-64"
        )


def inject_lora(model: Any, rank: int, *, seed: int) -> None:
    """Replace the linear modules inside the layers by peft's; equal seeds give equal matrices."""
    check_peft(rank)
    from peft import LoraConfig, inject_adapter_in_model

    inside = {id(m) for layer in layers_of(model) for m in layer.modules() if isinstance(m, nn.Linear)}
    names = [name for name, module in model.named_modules() if id(module) in inside]
    config = LoraConfig(r=rank, lora_alpha=round(LORA_SCALE * rank), lora_dropout=0.0, target_modules=names)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # remarks on how to save, which is not peft's business here
        inject_adapter_in_model(config, model, adapter_name=_NAME)
    generator = torch.Generator().manual_seed(seed)
    for module in _injected(model).values():
        first, second = module.lora_A[_NAME].weight, module.lora_B[_NAME].weight
        bound = 1 / math.sqrt(first.shape[1])
        with torch.no_grad():
            # peft's own start, drawn on the CPU from a stream of its own.
            first.copy_(torch.empty(first.shape).uniform_(-bound, bound, generator=generator))
            second.zero_()


def _injected(model: nn.Module) -> dict[str, Any]:
    """peft's modules, known by what they hold, so that nothing has to be imported."""
    return {
        name: module
        for name, module in model.named_modules()
        if hasattr(module, "base_layer") and hasattr(module, "lora_A")
    }


def lora_parameters(model: nn.Module) -> list[nn.Parameter]:
    """A and B of every injected module."""
    found = _injected(model).values()
    return [matrix[_NAME].weight for module in found for matrix in (module.lora_A, module.lora_B)]


def lora_tensors(model: nn.Module) -> dict[str, Tensor]:
    """`NAME.lora_A` (R, in) and `NAME.lora_B` (out, R) for every linear module NAME that has them."""
    found = _injected(model).items()
    return {
        f"{name}.{part}": getattr(module, part)[_NAME].weight
        for name, module in found
        for part in ("lora_A", "lora_B")
    }


@torch.no_grad()
def merge_lora(model: nn.Module) -> None:
    """Make injected modules plain linear ones with W + s B A, in place."""
    for name, module in _injected(model).items():
        plain = module.base_layer
        _add(plain.weight, module.lora_A[_NAME].weight, module.lora_B[_NAME].weight, module.scaling[_NAME])
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, plain)


@torch.no_grad()
def add_lora(model: nn.Module, tensors: Mapping[str, Tensor], scale: float) -> None:
    """Add what `lora_tensors` gave to the plain weights of `model`; KeyError or RuntimeError where it does not fit."""
    weights = dict(model.named_parameters())
    for plain in {name.rpartition(".")[0] for name in tensors}:
        _add(weights[f"{plain}.weight"], tensors[f"{plain}.lora_A"], tensors[f"{plain}.lora_B"], scale)


def _add(weight: Tensor, first: Tensor, second: Tensor, scale: float) -> None:
    # In float64, where there is such a thing: the same sum on every device, whatever shortcuts float32 may take.
    place = torch.device("cpu") if weight.device.type == "mps" else weight.device
    product = second.to(place, torch.float64) @ first.to(place, torch.float64)
    if product.shape != weight.shape:
        # A sum would stretch it to the weight's shape.
        raise RuntimeError(f"B A is {tuple(product.shape)}, the weight {tuple(weight.shape)}")
    weight += (scale * product).to(weight.dtype).to(weight.device)
