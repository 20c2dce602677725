"""Small layers that several heads share.

Dropout draws nothing from a random stream. Whether a number is kept follows from a key and its position, so a head
computes the same alone, beside other heads, stacked with them, or recomputed, and a resumed fit needs no random state.
"""

import math
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

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


# ---- convolutions
#
#     tokens apart     (N, channels, features)       the real tokens packed: a kernel sees one token's numbers
#     tokens together  (B, channels, T, features)    a square kernel sees neighbours too: pads are kept at zero
#
# Sizes follow Keras: 'same' padding gives ceil(n / stride) numbers and puts the odd zero on the right; batch norm keeps
# 0.99 of its running statistics and adds 1e-3 to the variance. Its first hundred steps are a plain average, or a short
# fit would be evaluated with the statistics it began with. Along tokens a kernel is centred on every stride-th token.

_RECOMPUTING: ContextVar[bool] = ContextVar("recomputing", default=False)


@contextmanager
def recomputing() -> Iterator[None]:
    token = _RECOMPUTING.set(True)
    try:
        yield
    finally:
        _RECOMPUTING.reset(token)


def same_padding(size: int, kernel: int, stride: int = 1, dilation: int = 1) -> tuple[int, int]:
    """Keras' 'same': zeros on both sides, and further zeros on the right."""
    span = (kernel - 1) * dilation + 1
    total = max((-(-size // stride) - 1) * stride + span - size, 0)
    return total // 2, total % 2


def zero_pads(x: Float[Tensor, "B C T W"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B C T W"]:
    return x.masked_fill(~mask[:, None, :, None], 0)


class Conv(nn.Module):
    """A convolution with Glorot weights along features, `stride` (s,), or along tokens and features, (s, s)."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        stride: tuple[int, ...] = (1,),
        dilation: int = 1,
        valid: bool = False,
        groups: int = 1,
        bias: float | None = None,
    ) -> None:
        super().__init__()
        self.kernel, self.stride, self.dilation = kernel, stride, dilation
        self.valid, self.groups = valid, groups
        self.weight = nn.Parameter(torch.empty(outputs, inputs // groups, *[kernel] * len(stride)))
        self.bias = None if bias is None else nn.Parameter(torch.full((outputs,), bias))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Float[Tensor, "N C ... W"]) -> Float[Tensor, "N D ... V"]:
        dims, span = len(self.stride), (self.kernel - 1) * self.dilation + 1
        both, right, beside = 0, 0, span // 2 if dims == 2 else 0
        if not self.valid:
            both, right = same_padding(x.shape[-1], self.kernel, self.stride[-1], self.dilation)
        if not self.valid and (torch.compiler.is_exporting() or min(x.shape[2:]) < span):
            # Explicit zeros: a tap that reads none but implied ones may get an arbitrary gradient (oneDNN, bf16).
            x = F.pad(x, (both, both + right, beside, beside)[: 2 * dims])
            both = beside = 0
        elif right:
            x = F.pad(x, (0, right))
        run, padding = (F.conv1d, both) if dims == 1 else (F.conv2d, (beside, both))
        return run(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)


def separable(inputs: int, outputs: int, kernel: int) -> nn.Sequential:
    """A kernel for every channel by itself, then a 1 x 1 convolution."""
    depthwise = Conv(inputs, inputs, kernel, groups=inputs)
    return nn.Sequential(OrderedDict(depthwise=depthwise, pointwise=Conv(inputs, outputs, 1)))


class BatchNorm(nn.Module):
    """(x - mean) / sqrt(variance + 1e-3) * weight + bias, mean and variance of every channel over real tokens.

    The running variance is that of a sample (n - 1). Step n, from 0, keeps min(0.99, n / (n + 1)) of the statistics.
    """

    running_mean: Tensor
    running_var: Tensor
    steps: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.register_buffer("steps", torch.tensor(0))

    def forward(
        self, x: Float[Tensor, "N C ... W"], mask: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "N C ... W"]:
        """Of packed tokens; or with a mask of padded windows, whose pads become zero."""
        if mask is not None:
            B, C, T, W = x.shape
            packed = pack(x.transpose(1, 2).reshape(B, T, C * W), mask)  # (N, C * W)
            normed = self(packed.view(-1, C, W)).flatten(1)
            return unpack(normed, mask).view(B, T, C, W).transpose(1, 2)
        mean, var = self.running_mean, self.running_var
        # One number has no variance: then the running statistics serve, as in evaluation.
        train = self.training and x.numel() > x.shape[1]
        if train:  # at a momentum of 1 the kernel leaves the statistics of this batch there
            mean, var = torch.zeros_like(mean), torch.zeros_like(var)
        # The kernel sums in float32 whatever x is, and keeps nothing but x for the backward pass.
        out = F.batch_norm(x, mean, var, self.weight, self.bias, train, momentum=1.0, eps=1e-3)
        if train and not _RECOMPUTING.get():  # otherwise this step has been counted already
            # A tensor, not a number: reading it would wait for the device.
            share = (self.steps + 1).to(mean.dtype).reciprocal().clamp(min=0.01)
            self.running_mean.lerp_(mean, share)
            self.running_var.lerp_(var, share)
            self.steps += 1
        return out


def normed(conv: Conv) -> nn.Sequential:
    """Convolution -> batch norm -> ReLU."""
    return nn.Sequential(OrderedDict(conv=conv, norm=BatchNorm(conv.weight.shape[0]), relu=nn.ReLU()))


def max_pool(
    x: Float[Tensor, "N C ... W"], kernel: int, stride: tuple[int, ...]
) -> Float[Tensor, "N C ... V"]:
    """The largest of `kernel` neighbours on each axis, those beyond the edge left out."""
    both, right = same_padding(x.shape[-1], kernel, stride[-1])
    x = F.pad(x, (0, right), value=-torch.inf) if right else x
    if len(stride) == 1:
        return F.max_pool1d(x, kernel, stride, both)
    return F.max_pool2d(x, kernel, stride, (kernel // 2, both))


def avg_pool(x: Float[Tensor, "N C W"], kernel: int, stride: int) -> Float[Tensor, "N C V"]:
    """The mean of `kernel` neighbours, those beyond the edge not counted."""
    size = x.shape[-1]
    both, right = same_padding(size, kernel, stride)
    pooled = F.avg_pool1d(F.pad(x, (both, both + right)), kernel, stride)
    first = torch.arange(pooled.shape[-1], device=x.device) * stride - both
    inside = (first + kernel).clamp(max=size) - first.clamp(min=0)
    return pooled * (kernel / inside).to(x.dtype)
