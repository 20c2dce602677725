"""Where the parts of any encoder are: its embeddings, its layers from the bottom up, its norms.

Nothing here knows an architecture by name. The layers are the one list of modules that is as long as the config
says; ALBERT has no such list, because all its layers are one module (or a few) used again and again.
"""

from typing import Any

from torch import Tensor, nn

from bertvision.errors import EncoderError
from bertvision.shapes import Float

__all__ = [
    "embeddings_of",
    "final_norm_of",
    "layer_list",
    "layers_of",
    "norms_of",
    "pooled_by",
    "pooler_of",
    "shares_layers",
]


def embeddings_of(model: Any) -> nn.Module:
    """What turns token ids into state 0: the tables and their norm."""
    return getattr(model, "embeddings", None) or model.get_input_embeddings()


def layer_list(model: Any) -> nn.ModuleList | None:
    """The list that holds one module for every layer; None where layers share their weights."""
    count = model.config.num_hidden_layers
    groups = getattr(model.config, "num_hidden_groups", count)
    inside = [
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == count and name.count(".") <= 1
    ]
    return inside[0] if inside and groups == count else None


def layers_of(model: Any) -> list[nn.Module]:
    """The module of every layer, from the bottom up; the same one several times where weights are shared."""
    found = layer_list(model)
    if found is not None:
        return list(found)
    groups = getattr(getattr(model, "encoder", None), "albert_layer_groups", None)
    if groups is None:
        raise EncoderError(
            f"{type(model).__name__} does not show its layers: only --policy full, layers, bitfit and none can tune it"
        )
    count = model.config.num_hidden_layers
    return [groups[i * len(groups) // count] for i in range(count)]


def shares_layers(model: Any) -> bool:
    """Whether one module serves as several layers."""
    layers = layers_of(model)
    return len({id(layer) for layer in layers}) < len(layers)


def final_norm_of(model: Any) -> nn.Module | None:
    """The norm above the last layer, which encoders have that normalise before each sub-layer; None elsewhere."""
    layers = layer_list(model)
    for beside in model.modules():
        if layers is None or not any(child is layers for child in beside.children()):
            continue
        if hasattr(beside, "rel_embeddings"):
            return None  # the norm beside DeBERTa's layers is that of its relative positions
        return next((child for child in beside.children() if child in norms_of(child)), None)
    return None


def pooler_of(model: Any) -> nn.Module | None:
    """What makes one vector of the first token, where there is one; no state comes from it."""
    return getattr(model, "pooler", None)


def pooled_by(model: Any, last: Float[Tensor, "B T H"]) -> Float[Tensor, "B H"] | None:
    """The pooler's vector of each window, from the last state; None where there is no pooler."""
    pooler = pooler_of(model)
    if pooler is None:
        return None
    if isinstance(pooler, nn.Linear):  # ALBERT keeps its activation beside it
        return model.pooler_activation(pooler(last[:, 0]))
    return pooler(last)


def norms_of(module: nn.Module) -> list[nn.Module]:
    """Every layer norm below `module`, whatever class an architecture has for it."""
    return [part for part in module.modules() if type(part).__name__.endswith(("LayerNorm", "RMSNorm"))]
