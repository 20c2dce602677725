"""Small layers that several heads share.

Dropout draws nothing from a random stream. Whether a number is kept follows from a key and its position, so a head
computes the same alone, beside other heads, stacked with them, or recomputed, and a resumed fit needs no random state.
"""

import math
import zlib

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertvision.heads.spec import Gelu
from bertvision.shapes import Bool, Float


def gelu(x: Float[Tensor, "..."], kind: Gelu) -> Float[Tensor, "..."]:
    return F.gelu(x, approximate="tanh" if kind == "tanh" else "none")


def glorot_linear(inputs: int, outputs: int) -> nn.Linear:
    """The papers' output layer: Glorot-uniform weights, zero bias."""
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def truncated_normal_(weight: Tensor, std: float) -> None:
    """Keras' truncated normal: cut at two standard deviations."""
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def wide(weight: Float[Tensor, "*lead rows columns"], like: Tensor) -> Float[Tensor, "*lead padded columns"]:
    """On a GPU, pad a weight with zero rows to a multiple of 8, whose results the caller cuts off.

    Matrix units want rows of 16 bytes: other products in bf16 fall back to slow kernels.
    """
    missing = -weight.shape[-2] % 8 if like.is_cuda else 0
    return F.pad(weight, (0, 0, 0, missing)) if missing else weight


def map_layers(states: Float[Tensor, "L B T H"], weight: Float[Tensor, "*L a H"]) -> Float[Tensor, "L B T a"]:
    """W x of every state, with one W for all of any shape, or one for each layer."""
    if weight.ndim == 2:
        return F.linear(states, weight)
    L, B, T, H = states.shape
    return torch.bmm(states.reshape(L, B * T, H), weight.mT.to(states.dtype)).view(L, B, T, -1)


def split_columns(layer: nn.Linear, size: int) -> tuple[Float[Tensor, "C size"], Float[Tensor, "C rest"]]:
    """A layer's weight for the first `size` inputs, and for the others."""
    own, rest = layer.weight.split([size, layer.in_features - size], dim=1)
    return own, rest


def project_with_skip(
    layer: nn.Linear, x: Float[Tensor, "B T F"], last: Float[Tensor, "B T H"]
) -> Float[Tensor, "B T C"]:
    """layer([x; last]), or layer(x) where it reads no more; the wide vector is never written."""
    own, beside = split_columns(layer, x.shape[-1])
    logits = F.linear(x, own, layer.bias)
    return logits + F.linear(last, beside) if beside.numel() else logits


def unit_scale(states: Float[Tensor, "*batch H"]) -> Float[Tensor, "*batch 1"]:
    """1 / rms of every state, in float32: a linear map's result is scaled, not a copy of all states."""
    kind = torch.promote_types(states.dtype, torch.float32)
    norm = torch.linalg.vector_norm(states, dim=-1, keepdim=True, dtype=kind)
    return math.sqrt(states.shape[-1]) / norm.clamp(min=1e-6)


def pack(x: Float[Tensor, "*lead B T F"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "*lead N F"]:
    """The real tokens side by side: pads cost nothing and enter no statistic."""
    flat = x.flatten(-3, -2)  # (..., B * T, F)
    if torch.compiler.is_exporting():  # shapes of an exported graph cannot depend on values: pads stay
        return flat
    if x.is_meta:  # shapes only: every token counts as real
        return flat.clone()
    return flat.index_select(-2, mask.flatten().nonzero().squeeze(1))


def unpack(x: Float[Tensor, "N F"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T F"]:
    """The tokens at their places again, zeros at the pads."""
    if torch.compiler.is_exporting():
        return x.view(*mask.shape, x.shape[-1]).masked_fill(~mask[..., None], 0)
    if x.is_meta:
        return x.view(*mask.shape, -1).clone()
    full = x.new_zeros(mask.numel(), x.shape[-1])
    return full.index_copy(0, mask.flatten().nonzero().squeeze(1), x).view(*mask.shape, -1)


BYTES_DRAWN = 16  # that `Dropout` needs for each of its numbers while it draws, beside what is kept


class Dropout(nn.Module):
    """Zero a part `rate` of all numbers while training and scale up the others; a pure function of `key`."""

    rate: Tensor
    key: Tensor

    def __init__(self, rate: float) -> None:
        super().__init__()
        # Buffers, so that stacked heads can differ in them; not part of the weights.
        self.register_buffer("rate", torch.tensor(float(rate)), persistent=False)
        self.register_buffer("key", torch.tensor(0, dtype=torch.int32), persistent=False)
        self.active = rate > 0

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        if not (self.training and self.active):
            return x
        place = torch.arange(1, x.numel() + 1, dtype=torch.int32, device=x.device).view(x.shape)
        drawn = _mixed(_mixed(place) ^ self.key) & 0xFFFFFF  # 24 bits: what a float32 holds exactly
        return x * ((drawn >= self.rate * 2**24) / (1 - self.rate)).to(x.dtype)


def _mixed(x: Tensor) -> Tensor:
    """Well-mixed bits of every int32: multiply and shift (the finaliser of murmur3), with wrap-around."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * -2048144789
    x = (x ^ ((x >> 13) & 0x7FFFF)) * -1028477387
    return x ^ ((x >> 16) & 0xFFFF)


def set_noise(head: nn.Module, *numbers: int) -> None:
    """Set the key of every dropout in `head`, from `numbers` (a seed, a step) and its place in the head."""
    for i, module in enumerate(m for m in head.modules() if isinstance(m, Dropout)):
        module.key.fill_(zlib.crc32(repr((*numbers, i)).encode()) - 2**31)
