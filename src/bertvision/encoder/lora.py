"""LoRA: a product of two thin matrices beside every linear module of the layers, trained through peft.

        W x + s B A x        A (R, in), B (out, R), s = alpha / R = 2

A starts uniform in +-1/sqrt(in), B at 0, so that a fresh LoRA does nothing. peft is needed for training alone and
imported only there: afterwards W + s B A is a plain weight again (`merge_lora`, `add_lora`), which costs nothing.
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

LORA_SCALE = 2.0
"""s above: alpha is twice the rank."""
_A, _B = ".lora_A.default.weight", ".lora_B.default.weight"
"""What peft calls the matrices beside a module."""


def check_peft(rank: int) -> None:
    """Refuse training where peft is not installed; it takes seconds to import, so only its spec is looked up."""
    if importlib.util.find_spec("peft") is None:
        raise ConfigError(
            f"--policy lora-{rank} needs peft: run `pip install 'bertvision[lora]'`, or use houlsby-64"
        )


def inject_lora(model: Any, rank: int, *, seed: int) -> None:
    """Replace the linear modules inside the layers by peft's; equal seeds give equal matrices."""
    from peft import LoraConfig, inject_adapter_in_model

    inside = {id(m) for layer in layers_of(model) for m in layer.modules() if isinstance(m, nn.Linear)}
    names = [name for name, module in model.named_modules() if id(module) in inside]
    config = LoraConfig(r=rank, lora_alpha=round(LORA_SCALE * rank), lora_dropout=0.0, target_modules=names)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # remarks on how peft would save, which it does not do here
        inject_adapter_in_model(config, model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, matrix in model.named_parameters():
            if name.endswith(_A):  # peft's own start, drawn on the CPU from a stream of its own
                bound = 1 / math.sqrt(matrix.shape[1])
                matrix.copy_(torch.empty(matrix.shape).uniform_(-bound, bound, generator=generator))
            elif name.endswith(_B):
                matrix.zero_()


def merge_lora(model: nn.Module) -> None:
    """Turn peft's modules into plain linear ones with W + s B A, in place."""
    found = {name: p for name, p in model.named_parameters() if name.endswith((_A, _B))}
    for name in [name.removesuffix(_A) for name in found if name.endswith(_A)]:
        owner, _, last = name.rpartition(".")
        injected: Any = model.get_submodule(name)  # known by its matrices, so that peft need not be imported
        setattr(model.get_submodule(owner), last, injected.base_layer)
    add_lora(model, found)


@torch.no_grad()
def add_lora(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Add the product of trained matrices to the weights beside them.

    Raises:
        KeyError, RuntimeError: A matrix is missing or does not fit.
    """
    weights = dict(model.named_parameters())
    for name in {name.removesuffix(_A).removesuffix(_B) for name in tensors}:
        weight, first, second = weights[f"{name}.weight"], tensors[name + _A], tensors[name + _B]
        # In float64, where there is such a thing: the same sum on every device, whatever shortcuts float32 may take.
        place = torch.device("cpu") if weight.device.type == "mps" else weight.device
        product = second.to(place, torch.float64) @ first.to(place, torch.float64)
        if product.shape != weight.shape:  # a sum would stretch it to the weight's shape
            raise RuntimeError(f"B A of {name} is {tuple(product.shape)}, the weight {tuple(weight.shape)}")
        weight += (LORA_SCALE * product).to(weight.dtype).to(weight.device)
