"""Apply a policy (policy.py) to a model: insert Houlsby adapters or LoRA, freeze all else, count what trains.

    Houlsby    y = x + W2 GELU(W1 x + b1) + b2     W1 (M, H), W2 (H, M), GELU in its tanh form
    LoRA       W x + s B A x                       A (R, in), B (out, R), s = alpha / R = 2

x is the output of a sub-layer (attention, feed-forward) after its dense layer and dropout, before the residual sum and
the norm. Where layers share their weights (ALBERT) they share adapters too. LoRA stands beside every linear module of
the layers; peft is needed to train it and imported only there, afterwards W + s B A is a plain weight again.

Nothing here knows an architecture by name, but for the places of adapters.
"""

import importlib.util
import math
import re
import warnings
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertvision.encoder.policy import Policy
from bertvision.errors import ConfigError, EncoderError
from bertvision.shapes import Float

_SIGMA = 1e-3
_BERT = ("attention.output.dropout", "output.dropout")
PLACES: dict[str, tuple[str, str]] = {
    **dict.fromkeys(
        ("bert", "camembert", "deberta", "deberta-v2", "electra", "roberta", "xlm-roberta"), _BERT
    ),
    "mpnet": ("attention.dropout", "output.dropout"),
    "distilbert": ("attention.out_lin", "ffn.dropout"),  # no dropout follows its attention's dense layer
    "albert": ("attention.output_dropout", "ffn_output"),  # nor ALBERT's feed-forward
    "modernbert": ("attn.out_drop", "mlp.Wo"),
}
"""By model type: the modules inside a layer whose outputs are those of attention and feed-forward."""
LORA_SCALE = 2.0
"""s above: alpha is twice the rank."""
_A, _B = ".lora_A.default.weight", ".lora_B.default.weight"
"""What peft calls the matrices beside a module."""


# ---- the parts of an encoder


def layers_of(model: Any) -> list[nn.Module]:
    """The module of every layer, from the bottom up; the same one several times where weights are shared."""
    count = model.config.num_hidden_layers
    found = _layer_list(model)
    if found is not None:
        return list(found)
    groups = getattr(getattr(model, "encoder", None), "albert_layer_groups", None)
    if groups is None:
        raise EncoderError(
            f"{type(model).__name__} does not show its layers: only --policy full, layers, bitfit and none can tune it"
        )
    return [groups[i * len(groups) // count] for i in range(count)]


def _layer_list(model: Any) -> nn.ModuleList | None:
    """The one list of modules that is as long as the config says; None where layers share their weights."""
    count = model.config.num_hidden_layers
    if getattr(model.config, "num_hidden_groups", count) != count:
        return None
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count and name.count(".") <= 1:
            return module
    return None


def _norms(module: nn.Module) -> list[nn.Module]:
    return [part for part in module.modules() if type(part).__name__.endswith(("LayerNorm", "RMSNorm"))]


def _final_norm(model: Any) -> list[nn.Module]:
    """The norm above the last layer, which encoders have that normalise before each sub-layer; elsewhere none."""
    layers = _layer_list(model)
    for part in model.modules():
        if any(child is layers for child in part.children()) and not hasattr(part, "rel_embeddings"):
            return [child for child in part.children() if _norms(child)[:1] == [child]][:1]
    return []  # the norm beside DeBERTa's layers is that of its relative positions


def _biases(model: nn.Module) -> list[nn.Parameter]:
    # DeBERTa has `q_bias` and `v_bias` beside linear modules. No state comes from the pooler.
    named = [(name, p) for name, p in model.named_parameters() if not name.startswith("pooler.")]
    return [p for name, p in named if re.search(r"(^|[._])bias$", name)]


# ---- policies


def apply_policy(model: Any, policy: Policy, *, seed: int, name: str) -> None:
    """Insert what the policy inserts and let nothing but its parameters train; `name` is for messages."""
    check_policy(model, policy, name=name)
    if policy.rule == "lora":
        _inject_lora(model, policy.number, seed=seed)
    if policy.adapter is not None:
        insert_adapters(model, policy.adapter, seed=seed)
    model.requires_grad_(False)
    for parameter in _trained(model, policy):
        parameter.requires_grad_(True)


def check_policy(model: Any, policy: Policy, *, name: str) -> None:
    """Refuse, before anything is changed, what this model or this installation cannot do."""
    refused = f"--policy {policy}: {name}"
    # It takes seconds to import, so only its spec is looked up.
    if policy.rule == "lora" and importlib.util.find_spec("peft") is None:
        raise ConfigError(
            f"--policy {policy} needs peft: run `pip install 'bertvision[lora]'`, or use houlsby-64"
        )
    if adapters_of(model) and (policy.adapter is not None or policy.rule == "lora"):
        raise ConfigError(f"{refused} has adapters already; tune the encoder it was made from")
    if policy.adapter is not None:
        _hosts(model)
    if policy.rule == "bitfit" and not _biases(model):
        raise ConfigError(f"{refused} has no biases; use top-0, houlsby-64 or lora-16")
    if policy.rule not in ("top", "cut") or policy.number == 0:
        return
    layers = layers_of(model)
    if policy.number > len(layers):
        raise ConfigError(
            f"{refused} has {len(layers)} layers, so K of {policy.rule}-K is at most {len(layers)}"
        )
    shared = len({id(layer) for layer in layers}) < len(layers)
    if shared and not (policy.rule == "top" and policy.number == len(layers)):
        raise ConfigError(
            f"{refused} has layers that share their weights, so they train together or not at all; "
            "use full, layers, top-0, houlsby-M, lora-R, bitfit or none"
        )


def _trained(model: Any, policy: Policy) -> Iterable[nn.Parameter]:
    whole = policy.rule == "top" and policy.number > 0 and policy.number == len(layers_of(model))
    if policy.rule == "full" or whole:
        return model.parameters()
    if policy.rule == "none":
        return ()
    if policy.rule == "lora":
        return [p for name, p in model.named_parameters() if ".lora_" in name]
    if policy.rule == "bitfit":
        return _biases(model)
    if policy.rule == "layers":
        tables = getattr(model, "embeddings", None) or model.get_input_embeddings()
        apart = [part for part in (tables, getattr(model, "pooler", None)) if part is not None]
        kept = {id(p) for part in apart for p in part.parameters()}
        return [p for p in model.parameters() if id(p) not in kept]
    parts: list[nn.Module] = layers_of(model)[-policy.number :] if policy.number else []
    if policy.rule == "cut":
        parts += _final_norm(model)
    else:
        parts += [*_norms(model), *(adapters_of(model).values() if policy.adapter is not None else ())]
    return chain.from_iterable(part.parameters() for part in parts)


def count_trainable(modules: Iterable[nn.Module]) -> tuple[int, int]:
    """Parameters that train, and all of them; one that several modules hold counts once."""
    found = {id(p): p for module in modules for p in module.parameters()}.values()
    return sum(p.numel() for p in found if p.requires_grad), sum(p.numel() for p in found)


# ---- Houlsby adapters


class Houlsby(nn.Module):
    """One adapter: weights start as a truncated normal, biases at 0, so that a fresh one does next to nothing."""

    def __init__(self, hidden: int, size: int, generator: torch.Generator) -> None:
        super().__init__()
        # Without their usual start, which would draw from the stream of random numbers that everybody shares.
        self.down: Any = nn.utils.skip_init(nn.Linear, hidden, size)
        self.up: Any = nn.utils.skip_init(nn.Linear, size, hidden)
        for linear in (self.down, self.up):
            nn.init.trunc_normal_(linear.weight, std=_SIGMA, a=-2 * _SIGMA, b=2 * _SIGMA, generator=generator)
            nn.init.zeros_(linear.bias)

    def forward(self, states: Float[Tensor, "B T H"]) -> Float[Tensor, "B T H"]:
        return states + self.up(F.gelu(self.down(states), approximate="tanh"))


def _adapted(module: nn.Module, _: Any, output: Float[Tensor, "B T H"]) -> Float[Tensor, "B T H"]:
    # The adapter is found through the module the hook is called for: a deep copy of the encoder uses its own.
    adapter: Any = module.houlsby
    return adapter(output)


def adapters_of(model: nn.Module) -> dict[str, Houlsby]:
    return {name: module for name, module in model.named_modules() if isinstance(module, Houlsby)}


def insert_adapters(model: Any, size: int, *, seed: int) -> None:
    generator, place = torch.Generator().manual_seed(seed), next(model.parameters())
    for host in _hosts(model):
        adapter = Houlsby(model.config.hidden_size, size, generator).train(model.training)
        host.add_module("houlsby", adapter.to(place.device, place.dtype))
        host.register_forward_hook(_adapted)


def _hosts(model: Any) -> list[nn.Module]:
    """The modules that get an adapter, from the bottom up, each once; an unknown architecture is refused."""
    kind = model.config.model_type
    if kind not in PLACES:
        raise EncoderError(
            f"--policy houlsby does not know where the adapters of a {kind} encoder belong: it works with "
            f"{', '.join(sorted(PLACES))}; use lora-R for others"
        )
    layers = list({id(layer): layer for layer in layers_of(model)}.values())
    if kind == "albert":  # a layer of ALBERT is a group, mostly of one
        layers = [inner for group in layers for inner in getattr(group, "albert_layers")]  # noqa: B009
    return [layer.get_submodule(path) for layer in layers for path in PLACES[kind]]


# ---- LoRA


def _inject_lora(model: Any, rank: int, *, seed: int) -> None:
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
    """Add the product of trained matrices to the weights beside them; KeyError, RuntimeError where one does not fit."""
    weights = dict(model.named_parameters())
    for name in {name.removesuffix(_A).removesuffix(_B) for name in tensors}:
        weight, first, second = weights[f"{name}.weight"], tensors[name + _A], tensors[name + _B]
        # In float64, where there is such a thing: the same sum on every device, whatever shortcuts float32 may take.
        place = torch.device("cpu") if weight.device.type == "mps" else weight.device
        product = second.to(place, torch.float64) @ first.to(place, torch.float64)
        if product.shape != weight.shape:  # a sum would stretch it to the weight's shape
            raise RuntimeError(f"B A of {name} is {tuple(product.shape)}, the weight {tuple(weight.shape)}")
        weight += (LORA_SCALE * product).to(weight.dtype).to(weight.device)
