"""The encoder as it answers on a CPU: the same weights, laid out for the processor once instead of in every call.

An encoder that is known in every detail (serve/fast_known.py: BERT and its kin as transformers writes them) is
computed by a forward pass of our own, without pads and without anything beside the states (serve/fast_forward.py).

Any other keeps its code, in a copy whose linear layers are packed. A linear layer of torch sorts its weights into the
blocks a processor multiplies fast, for every call anew. With one text at a time that is a good part of the work. Here
every `nn.Linear` of the copy keeps its weights in that order (oneDNN), the GELU behind the first layer of a
feed-forward block is computed while its numbers are still at hand, and dropout is left out.

Results differ from torch's own in the last digits alone; where a first try says otherwise, or the processor has no such
order, the encoder stays as it is. Only a frozen encoder in float32 on a CPU is packed. What is packed takes as much
memory as the linear layers have.
"""

import contextlib
import copy
import logging
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertvision.encoder.batch import TokenBatch
from bertvision.encoder.encoder import Encoder, read_tokens
from bertvision.serve.fast_forward import FastForward, pack_linear
from bertvision.serve.fast_known import known_parts
from bertvision.shapes import Float

__all__ = ["PackedLinear", "is_fast", "last_alone", "packed"]

logger = logging.getLogger(__name__)

_CLOSE = 1e-4
"""Most that a packed layer may differ from the plain one, for numbers around 1."""


class PackedLinear(nn.Module):
    """Linear, and GELU behind it where asked for, with weights in the processor's order."""

    def __init__(self, layer: nn.Linear, *, gelu: bool = False) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        # Not a parameter: it is no plain tensor, and nobody may train or save it.
        self._packed = pack_linear(layer.weight)
        self._bias = None if layer.bias is None else layer.bias.detach()
        self._after = ("gelu", "none") if gelu else ("none", "")

    def forward(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        name, how = self._after
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, name, [], how)


class _FloatEncoder(Encoder):
    """An encoder whose kernels know float32 alone, whatever its caller has made torch compute in."""

    def autocast(self, *, cache: bool = True) -> contextlib.AbstractContextManager[Any]:
        if not torch.is_autocast_enabled("cpu"):
            return contextlib.nullcontext()
        return torch.autocast("cpu", enabled=False)


class _PackedEncoder(_FloatEncoder):
    """An encoder whose model is a packed copy; only its frozen states may be asked for."""


class _LastState(_PackedEncoder):
    """The same for heads that read the last state alone: the others are not gathered."""

    def _forward(self, model: Any, batch: TokenBatch) -> Any:
        types = batch.types if self.passes_types else None
        last = read_tokens(model, batch.ids, batch.mask, types, last_only=True)
        return (None,) * (self.num_states - 1) + last


class _FastEncoder(_FloatEncoder):
    """An encoder with a forward pass of its own; its model shares the weights and still has the pooler."""

    _fast: FastForward
    _last = False
    """Whether the last state alone is read."""

    def _forward(self, model: Any, batch: TokenBatch) -> Any:
        types = batch.types if self.passes_types else None
        states = self._fast(batch.ids, batch.mask, types, last_only=self._last)
        return super()._forward(model, batch) if states is None else states


def is_fast(encoder: Encoder) -> bool:
    """Whether pads cost its calls nothing."""
    return isinstance(encoder, _FastEncoder)


def last_alone(encoder: Encoder) -> Encoder:
    """The encoder to ask where nothing but the last state is read."""
    twin = copy.copy(encoder)
    if isinstance(twin, _FastEncoder):
        twin._last = True
    elif type(twin) is _PackedEncoder:
        twin.__class__ = _LastState
    else:
        return encoder
    return twin


def packed(encoder: Encoder) -> Encoder:
    """`encoder` as it computes fastest, or itself where there is no such way; its own model is not touched."""
    if encoder.device.type != "cpu" or encoder.precision != "fp32" or type(encoder) is not Encoder:
        return encoder
    if not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")):
        return encoder
    try:
        return _fast(encoder) or _with_packed_layers(encoder) or encoder
    # No such kernel on this processor, code that reads the layers' weights, fewer positions than the try has.
    except (AttributeError, IndexError, RuntimeError) as error:
        logger.info("the encoder is not packed: %s", str(error).splitlines()[0])
        return encoder


def _twin(encoder: Encoder, model: Any, kind: type[Encoder]) -> Any:
    """The encoder with another model of the same weights, which is in evaluation mode once and for all."""
    twin = copy.copy(encoder)
    twin.__class__ = kind
    twin.model, twin._fingerprint = model, encoder.fingerprint  # packed weights would give another one
    model.eval = lambda: model  # no walk over its modules in every call
    return twin


def _shared(model: Any) -> Any:
    """A copy in evaluation mode that shares all tensors and what is packed."""
    layers = (part for part in model.modules() if isinstance(part, PackedLinear))
    parts = (*model.parameters(), *model.buffers(), *layers)
    return copy.deepcopy(model, {id(part): part for part in parts}).eval()


# ---- a forward pass of our own


def _fast(encoder: Encoder) -> Encoder | None:
    """The encoder with the short forward pass; None where it is not known, or gives something else."""
    model = _shared(encoder.model)
    parts = known_parts(model)
    if parts is None:
        return None
    twin = _twin(encoder, model, _FastEncoder)
    twin._fast = FastForward(parts)
    return twin if _same_states(twin, encoder) else None


@torch.no_grad()
def _same_states(twin: Encoder, encoder: Encoder) -> bool:
    """Whether both give the same states for two short windows, one of them padded."""
    lengths = torch.tensor([[7], [4]])
    places = torch.arange(7).expand(2, 7)
    mask = places < lengths
    ids = torch.where(mask, (places * 7 + lengths) % encoder.model.config.vocab_size, encoder.pad_id)
    batch = TokenBatch(ids, mask, (mask & (places > 2)).long(), lengths[:, 0].numpy())
    both = zip(twin._forward(twin.model, batch), encoder._forward(_shared(encoder.model), batch), strict=True)
    return all(torch.allclose(a[mask], b[mask], rtol=_CLOSE, atol=_CLOSE) for a, b in both)


# ---- packed layers in the model's own code


def _with_packed_layers(encoder: Encoder) -> Encoder | None:
    """The encoder with a packed copy; None where that gives something else."""
    model = _pack(encoder.model)
    # It is tried in a copy: short windows make some models (BigBird) attend in another way from then on.
    if model is None or not _same_states(_twin(encoder, _shared(model), _PackedEncoder), encoder):
        return None
    return _twin(encoder, model, _PackedEncoder)


def _pack(model: Any) -> Any:
    """A copy that shares all tensors but the packed ones; None where a packed layer gives something else."""
    twin = _shared(model)
    for parent in list(twin.modules()):
        if not type(parent).__module__.startswith("transformers."):
            continue  # LoRA, for one, reads the weights of the layers inside
        for name, layer in list(parent.named_children()):
            if layer._forward_hooks or layer._forward_pre_hooks:
                continue  # it may be an adapter's, which wants the layer (or the dropout) it was put on
            if type(layer) is nn.Dropout:
                setattr(parent, name, nn.Identity())
            if type(layer) is not nn.Linear:
                continue
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
