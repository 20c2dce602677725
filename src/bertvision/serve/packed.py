"""The encoder as it answers on a CPU: the same weights, laid out for the processor once instead of in every call.

A linear layer of torch sorts its weights into the blocks a processor multiplies fast, for every call anew. With one
text at a time that is a good part of the work. Here every `nn.Linear` of a copy keeps its weights in that order
(oneDNN), the GELU behind the first layer of a feed-forward block is computed while its numbers are still at hand, and
dropout is left out. Results differ from torch's own in the last digits alone; where a first try says otherwise, or the
processor has no such order, the encoder stays as it is.

Only a frozen encoder in float32 on a CPU is packed. The copy takes as much memory as the linear layers have.
"""

import copy
import logging
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertvision.encoder.batch import TokenBatch
from bertvision.encoder.encoder import Encoder, read_tokens
from bertvision.shapes import Float

__all__ = ["PackedLinear", "last_alone", "packed"]

logger = logging.getLogger(__name__)

_CLOSE = 1e-4
"""Most that a packed layer may differ from the plain one, for numbers around 1."""


class PackedLinear(nn.Module):
    """Linear, and GELU behind it where asked for, with weights in the processor's order."""

    def __init__(self, layer: nn.Linear, *, gelu: bool = False) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        # Not a parameter: it is no plain tensor, and nobody may train or save it.
        self._packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach())
        self._bias = None if layer.bias is None else layer.bias.detach()
        self._after = ("gelu", "none") if gelu else ("none", "")

    def forward(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        name, how = self._after
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, name, [], how)


class _PackedEncoder(Encoder):
    """An encoder whose model is a packed copy; only its frozen states may be asked for."""


class _LastState(_PackedEncoder):
    """The same for heads that read the last state alone: the others are not gathered."""

    def _forward(self, model: Any, batch: TokenBatch) -> Any:
        types = batch.types if self.passes_types else None
        last = read_tokens(model, batch.ids, batch.mask, types, last_only=True)
        return (None,) * (self.num_states - 1) + last


def last_alone(encoder: Encoder) -> Encoder:
    """The encoder to ask where nothing but the last state is read."""
    if type(encoder) is not _PackedEncoder:
        return encoder
    twin = copy.copy(encoder)
    twin.__class__ = _LastState
    return twin


def packed(encoder: Encoder) -> Encoder:
    """`encoder` with packed linear layers, or itself where that is not possible; its own model is not touched."""
    if encoder.device.type != "cpu" or encoder.precision != "fp32" or type(encoder) is not Encoder:
        return encoder
    if not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")):
        return encoder
    try:
        model = _pack(encoder.model)
    except RuntimeError as error:  # no such kernel on this processor
        logger.info("the encoder is not packed: %s", str(error).splitlines()[0])
        return encoder
    if model is None:
        return encoder
    twin = copy.copy(encoder)
    twin.__class__ = _PackedEncoder
    twin.model, twin._fingerprint = model, encoder.fingerprint  # packed weights would give another one
    # It is in evaluation mode once and for all: no walk over its modules in every call.
    model.eval = lambda: model
    return twin


def _pack(model: Any) -> Any:
    """A copy that shares all tensors but the packed ones; None where a packed layer gives something else."""
    shared = {id(part): part for part in (*model.parameters(), *model.buffers())}
    twin = copy.deepcopy(model, shared).eval()
    for parent in list(twin.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) is nn.Dropout:
                setattr(parent, name, nn.Identity())
            if type(layer) is not nn.Linear or layer._forward_hooks or layer._forward_pre_hooks:
                continue  # a hook may be an adapter's, which wants the layer it was put on
            act = getattr(parent, "intermediate_act_fn", None)
            gelu = name == "dense" and type(act).__name__ == "GELUActivation"
            one = PackedLinear(layer, gelu=gelu)
            if not _same(one, layer, gelu=gelu):
                return None
            setattr(parent, name, one)
            if gelu:
                parent.intermediate_act_fn = nn.Identity()
    return twin


@torch.no_grad()
def _same(one: PackedLinear, layer: nn.Linear, *, gelu: bool) -> bool:
    x = torch.linspace(-1, 1, 3 * layer.in_features).sin().view(1, 3, -1)
    expected = F.gelu(layer(x)) if gelu else layer(x)
    return torch.allclose(one(x), expected, rtol=_CLOSE, atol=_CLOSE)
