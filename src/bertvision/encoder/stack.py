"""Where the parts of any encoder are: its embeddings, its layers from the bottom up, its norms, its pooler.

Nothing here knows an architecture by name. The layers are the one list of modules that is as long as the config
says; ALBERT has no such list, because all its layers are one module (or a few) used again and again.
"""

from typing import Any

import torch
from torch import Tensor, nn

from bertvision.errors import EncoderError
from bertvision.shapes import Bool, Float, Int


def read_tokens(
    model: Any,
    ids: Int[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    types: Int[Tensor, "B T"] | None,
    *,
    last_only: bool = False,
) -> tuple[Float[Tensor, "B T H"], ...]:
    """All hidden states of a Hugging Face model, or the last alone; gradients as usual."""
    inputs = {"input_ids": ids, "attention_mask": mask.long()}
    if types is not None:
        inputs["token_type_ids"] = types
    if last_only:
        return (model(**inputs).last_hidden_state,)
    # The last entry is the state after the final norm; it matters for pre-norm encoders.
    return model(**inputs, output_hidden_states=True).hidden_states


def embeddings_of(model: Any) -> nn.Module:
    """What turns token ids into state 0: the tables and their norm."""
    return getattr(model, "embeddings", None) or model.get_input_embeddings()


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
    """The list that holds one module for every layer; None where layers share their weights."""
    count = model.config.num_hidden_layers
    if getattr(model.config, "num_hidden_groups", count) != count:
        return None
    lists = (
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == count and name.count(".") <= 1
    )
    return next(lists, None)


def final_norm_of(model: Any) -> nn.Module | None:
    """The norm above the last layer, which encoders have that normalise before each sub-layer; None elsewhere."""
    layers = _layer_list(model)
    beside = next(
        (part for part in model.modules() if any(child is layers for child in part.children())), None
    )
    if beside is None or hasattr(beside, "rel_embeddings"):
        return None  # the norm beside DeBERTa's layers is that of its relative positions
    return next((child for child in beside.children() if child in norms_of(child)), None)


def norms_of(module: nn.Module) -> list[nn.Module]:
    """Every layer norm below `module`, whatever class an architecture has for it."""
    return [part for part in module.modules() if type(part).__name__.endswith(("LayerNorm", "RMSNorm"))]


def pooler_of(model: Any) -> nn.Module | None:
    """What makes one vector of the classification token; no state comes from it. None where there is none."""
    return getattr(model, "pooler", None)


def pooled_by(
    model: Any, last: Float[Tensor, "B T H"], cls: Int[Tensor, " B"] | None = None
) -> Float[Tensor, "B H"] | None:
    """The pooler's vector of each window from the last state; None without a pooler.

    `cls` says where each window's classification token stands; None means first.
    """
    pooler = pooler_of(model)
    if pooler is None:
        return None
    if cls is not None:
        # Every pooler reads the first token.
        last = last[torch.arange(len(cls), device=cls.device), cls][:, None]
    if isinstance(pooler, nn.Linear):  # ALBERT keeps its activation beside it
        return model.pooler_activation(pooler(last[:, 0]))
    return pooler(last)


def in_bf16(model: Any) -> Any:
    """Cast a model's weights in place; what its code computes anew, such as rotary frequencies, keeps its precision."""
    kept = [
        (module, name, module._buffers[name])
        for module in model.modules()
        for name in module._non_persistent_buffers_set
    ]
    model.to(torch.bfloat16)
    for module, name, buffer in kept:
        module._buffers[name] = buffer
    return model
