"""Convolutional heads written once more from their formulas, one kernel tap at a time, window by window.

A picture x is (tokens, width, channels), and a batch is a list of such windows, each cut to its real tokens: a
reference never sees a pad.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from bertvision.heads import conv
from bertvision.heads.conv import BatchNorm, Conv, Separable
from bertvision.heads.inception import Module
from bertvision.heads.xception import XceptionBlock


def shake(module: nn.Module) -> None:
    """Move every parameter and running statistic away from its initial value; activations stay near 1."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in module.parameters():
            scale = 1 / math.sqrt(parameter[0].numel()) if parameter.ndim > 1 else 0.5
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
        for name, buffer in module.named_buffers():
            if name.endswith("running_mean"):
                buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.5)
            elif name.endswith("running_var"):
                buffer.copy_(torch.rand(buffer.shape, generator=generator) + 0.5)


def slide(size: int, kernel: int, stride: int, dilation: int = 1) -> list[list[tuple[int, int]]]:
    """For every output: which (tap, input) pairs it reads, as Keras pads ('same')."""
    outputs = math.ceil(size / stride)
    missing = max((outputs - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
    at = [[(k, o * stride + k * dilation - missing // 2) for k in range(kernel)] for o in range(outputs)]
    return [[(k, i) for k, i in pairs if 0 <= i < size] for pairs in at]


def centred(size: int, kernel: int, stride: int, dilation: int = 1) -> list[list[tuple[int, int]]]:
    """The same along tokens: output o is centred on token o * stride."""
    middle = kernel // 2
    at = [[(k, o + (k - middle) * dilation) for k in range(kernel)] for o in range(0, size, stride)]
    return [[(k, i) for k, i in pairs if 0 <= i < size] for pairs in at]


def convolved(x: Tensor, layer: Conv) -> Tensor:
    weight = (
        layer.weight if layer.weight.ndim == 4 else layer.weight[:, :, None]
    )  # (out, in, tokens, features)
    along = (1, *layer.stride)[-2:]
    rows = centred(x.shape[0], weight.shape[2], along[0], layer.dilation)
    columns = slide(x.shape[1], weight.shape[3], along[1], layer.dilation)
    if layer.valid:
        outputs = (x.shape[1] - layer.kernel) // along[1] + 1
        columns = [[(k, o * along[1] + k) for k in range(layer.kernel)] for o in range(outputs)]
    out = x.new_zeros(len(rows), len(columns), weight.shape[0])
    for t, row in enumerate(rows):
        for o, column in enumerate(columns):
            for a, i in row:
                for b, j in column:
                    tap = weight[:, :, a, b]
                    out[t, o] += x[i, j] * tap[:, 0] if layer.groups > 1 else tap @ x[i, j]
    return out if layer.bias is None else out + layer.bias


def separated(x: Tensor, layer: Separable) -> Tensor:
    return convolved(convolved(x, layer.depthwise), layer.pointwise)


def pooled_max(x: Tensor, stride: tuple[int, int], *, rows: int = 3) -> Tensor:
    out = [
        [
            torch.stack([x[i, j] for _, i in row for _, j in column]).amax(0)
            for column in slide(x.shape[1], 3, stride[1])
        ]
        for row in centred(x.shape[0], rows, stride[0])
    ]
    return torch.stack([torch.stack(row) for row in out])


def pooled_avg(x: Tensor) -> Tensor:
    return torch.stack([x[:, [i for _, i in c]].mean(1) for c in slide(x.shape[1], 3, 2)], 1)


def normed(windows: list[Tensor], layer: BatchNorm) -> list[Tensor]:
    """With the running statistics, or while training with those of all tokens given."""
    mean, var = layer.running_mean, layer.running_var
    if layer.training:
        values = torch.cat([x.reshape(-1, x.shape[-1]) for x in windows])
        mean, var = values.mean(0), values.var(0, unbiased=False)
        layer.seen = mean, var * len(values) / (len(values) - 1)  # type: ignore[assignment]
    return [(x - mean) / (var + 1e-3).sqrt() * layer.weight + layer.bias for x in windows]


def relu(windows: list[Tensor]) -> list[Tensor]:
    return [x.clamp(min=0) for x in windows]


def add(some: list[Tensor], others: list[Tensor]) -> list[Tensor]:
    return [x + y for x, y in zip(some, others, strict=True)]


def reduced(head: Any, window: Tensor) -> Tensor:
    """(L, n, H) to the picture (n, width, channels): layers as channels, or pooled and made narrower."""
    if head.mix is None:
        return window.permute(1, 2, 0)
    x = torch.stack([w * layer for w, layer in zip(head.mix.weights(), window, strict=True)]).sum(0)
    if head.down is not None:
        x = x @ head.down.weight.T + head.down.bias
        if head.config.gelu == "tanh":
            x = 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        else:
            x = 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
    return x[..., None]


def cnn_reference(head: Any, given: list[Tensor]) -> list[Tensor]:
    windows = [reduced(head, window) for window in given]
    for stage in head.stages:
        own = normed([convolved(x, stage.conv) for x in windows], stage.norm)
        short = [convolved(x, stage.short) for x in windows]
        windows = relu(add(own, normed(short, stage.short_norm) if stage.short_norm else short))
    out = []
    for x, window in zip(windows, given, strict=True):
        flat = x.transpose(1, 2).flatten(1)
        out.append(head.project(torch.cat([flat, window[-1]], 1) if head.config.skip else flat))
    return out


def module_reference(module: Module, x: Tensor) -> Tensor:
    three = convolved(convolved(x, module.reduce3).clamp(min=0), module.three)
    five = convolved(convolved(x, module.reduce5).clamp(min=0), module.five)
    pooled = convolved(pooled_max(x, (1, 1)), module.pooled)
    return torch.cat([convolved(x, module.one), three, five, pooled], -1).clamp(min=0)


def inception_reference(head: Any, given: list[Tensor]) -> list[Tensor]:
    out, along = [], {"features": (1, 2), "tokens": (2, 1)}[head.config.axis]
    for window in given:
        blocks = head.blocks
        x = convolved(reduced(head, window), blocks["stem"].first).clamp(min=0)
        x = convolved(pooled_max(x, along), blocks["stem"].reduce).clamp(min=0)
        x = pooled_max(convolved(x, blocks["stem"].second).clamp(min=0), along)
        for name in ("3a", "3b", "pool 3", "4a", "4b", "4c", "4d", "4e", "pool 2", "5a", "5b"):
            if name.startswith("pool"):
                stride = int(name[-1])
                x = pooled_max(x, (1, stride) if head.config.axis == "features" else (stride, 1))
            else:
                x = module_reference(blocks[name], x)
        logits = head.project(x.transpose(1, 2).flatten(1))
        out.append(logits if head.config.axis == "features" else logits[:1].expand(window.shape[1], -1))
    return out


def block_reference(block: XceptionBlock, windows: list[Tensor]) -> list[Tensor]:
    x = windows
    for i, (sep, norm) in enumerate(zip(block.convs, block.norms, strict=True)):
        x = relu(x) if i or block.lead else x
        x = normed([separated(w, sep) for w in x], norm)  # type: ignore[arg-type]
    if block.pool:
        x = [pooled_avg(w) if block.pool == "avg" else pooled_max(w, (1, 2), rows=1) for w in x]
    if block.short is None:
        return add(x, windows)
    project, norm = block.short
    return add(x, normed([convolved(w, project) for w in windows], norm))  # type: ignore[arg-type]


def xception_reference(head: Any, windows: list[Tensor]) -> list[Tensor]:
    for block in head.blocks:
        if isinstance(block, XceptionBlock):
            windows = block_reference(block, windows)
        elif isinstance(block, conv.ConvNorm):
            windows = relu(normed([convolved(x, block.conv) for x in windows], block.norm))
        else:
            windows = relu(normed([separated(x, block[0]) for x in windows], block[1]))
    return windows


def reference(head: Any, given: dict[str, Any]) -> Tensor:
    """Logits of all real tokens, or of all windows."""
    states, mask = given["states"], given["mask"]
    cut = [states[:, b, : int(mask[b].sum())] for b in range(len(mask))]
    match head.name:
        case "cnn.v1":
            return torch.cat(cnn_reference(head, cut))
        case "inception.v1":
            return torch.cat(inception_reference(head, cut))
        case "xception_mod.v1":
            windows = xception_reference(head, [reduced(head, window) for window in cut])
            return torch.cat([head.project(x.transpose(1, 2).flatten(1)) for x in windows])
    cls = [states[i, :, 0] for i in range(len(states))]
    picture = torch.stack([*cls, given["pooled"]] if head.config.order == "last" else [given["pooled"], *cls])
    x = xception_reference(head, [picture.permute(1, 2, 0)])[0].mean(1)
    return head.project(torch.cat([x, picture[-1]], 1) if getattr(head.config, "cls", False) else x)
