"""What the convolutional heads are built of.

    tokens apart     (N, channels, features)       the real tokens packed: a kernel sees one token's numbers
    tokens together  (B, channels, T, features)    a square kernel sees neighbours too: pads are kept at zero

Sizes follow Keras: 'same' padding gives ceil(n / stride) numbers and puts the odd zero on the right; batch norm keeps
0.99 of its running statistics and adds 1e-3 to the variance. Its first hundred steps are a plain average, or a short
fit would be evaluated with the statistics it began with. Along tokens a kernel is centred on every stride-th token.

A head with `recompute` keeps only the inputs of its blocks and computes the rest again in the backward pass: slower,
far less memory, the same numbers to the last bit.
"""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from bertvision.heads.base import Head
from bertvision.heads.layers import pack, unpack
from bertvision.shapes import Bool, Float

_RECOMPUTING: ContextVar[bool] = ContextVar("recomputing", default=False)


@contextmanager
def _recomputing() -> Iterator[None]:
    token = _RECOMPUTING.set(True)
    try:
        yield
    finally:
        _RECOMPUTING.reset(token)


class ConvHead(Head):
    """A head made of blocks whose activations can be computed again in the backward pass."""

    recompute: bool = False
    """Set while fitting when not even one window's activations fit into memory."""

    def run_block(self, block: nn.Module, *inputs: Any) -> Any:
        if not (self.recompute and torch.is_grad_enabled()):
            return block(*inputs)
        # Nothing in a head draws from a random stream, so no random state has to be restored.
        how: Any = {"use_reentrant": False, "preserve_rng_state": False}
        return checkpoint(block, *inputs, context_fn=lambda: (nullcontext(), _recomputing()), **how)

    def run_blocks(self, blocks: nn.Module, x: Tensor, *mask: Tensor) -> Tensor:
        for block in blocks.children():
            x = self.run_block(block, x, *mask)
        return x


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
