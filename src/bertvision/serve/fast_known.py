"""Which encoders the short forward pass (serve/fast_forward.py) computes, and where their weights are.

Every one of them is BERT with other names: tables summed and normalised, then layers of attention and two linear
layers with GELU, each added to what went in and normalised after it. What differs is in `Family`.

An encoder is known only where everything about it is: the class of its model and of every module inside, no hook on any
of them but those that record states, no weight that has no place here, float32 throughout, a plain attention. Adapters,
LoRA, cross-attention, other activations and classes of users all fail one of these, and such an encoder answers by its
own code.
"""

from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Block", "Parts", "known_parts"]


@dataclass(frozen=True)
class Family:
    """Where the modules of an architecture are."""

    model: str
    """The module and the class of its model."""
    layers: str = "encoder.layer"
    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    mix: str = "attention.output.dense"
    """The linear layer behind the attention."""
    mix_norm: str = "attention.output.LayerNorm"
    rise: str = "intermediate.dense"
    bend: str = "intermediate.intermediate_act_fn"
    """The activation."""
    fall: str = "output.dense"
    fall_norm: str = "output.LayerNorm"
    counts_from_pad: bool = False
    """Whether positions are counted from the pad's id on, and pads inside a text have that of the pad."""
    biased: bool = False
    """Whether attention has a bias for every distance (MPNet)."""


FAMILIES = (
    Family("bert.modeling_bert.BertModel"),
    Family("electra.modeling_electra.ElectraModel"),
    Family("roberta.modeling_roberta.RobertaModel", counts_from_pad=True),
    Family("xlm_roberta.modeling_xlm_roberta.XLMRobertaModel", counts_from_pad=True),
    Family(
        "mpnet.modeling_mpnet.MPNetModel",
        query="attention.attn.q",
        key="attention.attn.k",
        value="attention.attn.v",
        mix="attention.attn.o",
        mix_norm="attention.LayerNorm",
        counts_from_pad=True,
        biased=True,
    ),
    Family(
        "distilbert.modeling_distilbert.DistilBertModel",
        layers="transformer.layer",
        query="attention.q_lin",
        key="attention.k_lin",
        value="attention.v_lin",
        mix="attention.out_lin",
        mix_norm="sa_layer_norm",
        rise="ffn.lin1",
        bend="ffn.activation",
        fall="ffn.lin2",
        fall_norm="output_layer_norm",
    ),
)

_PLAIN = (nn.Linear, nn.Embedding, nn.LayerNorm, nn.Dropout, nn.ModuleList, nn.Tanh)
_RECORDS = ("transformers.utils.output_capturing", "bertvision.encoder.mpnet")
"""Whose hooks change no state: they keep states for the caller, or make the mask that this pass does not need."""


@dataclass(frozen=True)
class Block:
    """One layer."""

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    mix: nn.Linear
    mix_norm: nn.LayerNorm
    rise: nn.Linear
    fall: nn.Linear
    fall_norm: nn.LayerNorm


@dataclass(frozen=True)
class Parts:
    """An encoder taken apart; the modules are its own."""

    words: Tensor
    places: Tensor
    types: Tensor | None
    """Tables of tokens, of positions and of segments."""
    norm: nn.LayerNorm
    project: nn.Linear | None
    """From the width of the tables to that of the layers."""
    blocks: tuple[Block, ...]
    heads: int
    pad: int | None
    """The id positions are counted from; None = from 0, whatever the ids are."""
    biased: Any
    """What computes the attention's bias; None where there is none."""


def known_parts(model: Any) -> Parts | None:
    """The parts of a model that is known in every detail, else None."""
    kind = type(model)
    name = f"{kind.__module__}.{kind.__qualname__}"
    family = next((one for one in FAMILIES if name == f"transformers.models.{one.model}"), None)
    if family is None or not _plain(model, kind.__module__) or not _settings(model.config):
        return None
    try:
        parts = _parts(model, family)
    except AttributeError:  # a version of transformers that calls its modules otherwise
        return None
    return parts if _complete(model, parts) else None


def _settings(config: Any) -> bool:
    """Whether the model computes states of both directions with the usual attention."""
    return (
        config._attn_implementation in ("sdpa", "eager")
        and not getattr(config, "is_decoder", False)
        and not getattr(config, "add_cross_attention", False)
        and getattr(config, "position_embedding_type", "absolute") == "absolute"
    )


def _plain(model: Any, home: str) -> bool:
    """Whether every module is one that transformers puts there, and does what its class says."""
    for module in model.modules():
        kind = type(module)
        kept = kind.__module__ == "bertvision.encoder.mpnet" and kind.__base__.__module__ == home
        if not (kind in _PLAIN or kind.__module__ == home or kept or _is_gelu(module)):
            return False
        hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
        if "forward" in vars(module) or any(hook.__module__ not in _RECORDS for hook in hooks):
            return False
        if getattr(module, "is_causal", False):  # an attention that was told to look back alone
            return False
    return all(p.dtype == torch.float32 and p.device.type == "cpu" for p in model.parameters())


def _is_gelu(module: Any) -> bool:
    kind = type(module)
    return (kind.__module__, kind.__name__) == ("transformers.activations", "GELUActivation")


def _parts(model: Any, family: Family) -> Parts:
    tables = model.embeddings
    types = getattr(tables, "token_type_embeddings", None)
    names = ("query", "key", "value", "mix", "mix_norm", "rise", "fall", "fall_norm")
    blocks: list[Block] = []
    for layer in attrgetter(family.layers)(model):
        if not _is_gelu(attrgetter(family.bend)(layer)):
            raise AttributeError(family.bend)
        blocks.append(Block(**{name: attrgetter(getattr(family, name))(layer) for name in names}))
    return Parts(
        words=tables.word_embeddings.weight.detach(),
        places=tables.position_embeddings.weight.detach(),
        types=None if types is None else types.weight.detach(),
        norm=tables.LayerNorm,
        project=getattr(model, "embeddings_project", None),
        blocks=tuple(blocks),
        heads=model.config.num_attention_heads,
        pad=tables.padding_idx if family.counts_from_pad else None,
        biased=model.encoder.compute_position_bias if family.biased else None,
    )


def _complete(model: Any, parts: Parts) -> bool:
    """Whether all weights below the pooler have their place in `parts`, and there are no other buffers."""
    placed = {parts.words.data_ptr(), parts.places.data_ptr()}
    placed |= set() if parts.types is None else {parts.types.data_ptr()}
    modules: list[Any] = [parts.norm, *(part for block in parts.blocks for part in vars(block).values())]
    if parts.project is not None:
        modules.append(parts.project)
    if parts.biased is not None:
        modules.append(model.encoder.relative_attention_bias)
    placed |= {weight.data_ptr() for module in modules for weight in module.parameters()}
    own = [p for name, p in model.named_parameters() if not name.startswith("pooler.")]
    buffers = {name.rpartition(".")[2] for name, _ in model.named_buffers()}
    kinds = all(type(module) in (nn.Linear, nn.LayerNorm, nn.Embedding) for module in modules)
    return (
        kinds and all(p.data_ptr() in placed for p in own) and buffers <= {"position_ids", "token_type_ids"}
    )
