"""Convolutional heads written once more from their formulas, one kernel tap at a time, window by window.

A picture x is (tokens, width, channels), and a batch is a list of such windows, each cut to its real tokens: a
reference never sees a pad.
"""

import math
from typing import Any

import torch
from torch import Tensor

from bertvision.heads import StateBatch
from bertvision.heads.layers import BatchNorm, Conv
from bertvision.heads.papers.cnn import Module, XceptionBlock


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


def convolved(x: Tensor, layer: Any) -> Tensor:
    weight = (
        layer.weight if layer.weight.ndim == 4 else layer.weight[:, :, None]
    )  # (out, in, tokens, features)
    if not isinstance(layer, Conv):  # 'same', with a stride of 1
        rows, columns = centred(x.shape[0], 1, 1), slide(x.shape[1], weight.shape[3], 1)
    else:
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


def separated(x: Tensor, layer: Any) -> Tensor:
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
        x = 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
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
        elif hasattr(block, "conv"):
            windows = relu(normed([convolved(x, block.conv) for x in windows], block.norm))
        else:
            windows = relu(normed([separated(x, block[0]) for x in windows], block[1]))
    return windows


def reference(head: Any, batch: StateBatch) -> Tensor:
    """Logits of all real tokens, or of all windows."""
    states, mask = batch.states, batch.mask
    cut = [states[:, b, : int(mask[b].sum())] for b in range(len(mask))]
    match head.name:
        case "cnn.v1":
            return torch.cat(cnn_reference(head, cut))
        case "inception.v1":
            return torch.cat(inception_reference(head, cut))
        case "xception_mod.v1":
            windows = xception_reference(head, [reduced(head, window) for window in cut])
            return torch.cat([head.project(x.transpose(1, 2).flatten(1)) for x in windows])
        case "cacnn.v1":
            return torch.cat(
                [cacnn_reference(head, w[-1], batch.context[b, : w.shape[1]]) for b, w in enumerate(cut)]
            )
    cls, pooled = [*states[:, :, 0]], batch.pooled
    picture = torch.stack([pooled, *cls])  # type: ignore[list-item]
    x = xception_reference(head, [picture.permute(1, 2, 0)])[0].mean(1)
    return head.project(torch.cat([x, picture[-1]], 1) if getattr(head.config, "cls", False) else x)


# ---- the context-aware CNN: a window z is (tokens, H)


def simple_filters(head: Any, z: Tensor, n: int, rows: int) -> Tensor:
    """(rows, H, n)."""
    N, H = z.shape
    x = convolved(z[None], head.make.generate)[0].clamp(min=0) + head.make.after_bias
    x = torch.stack([x[max(0, t - 3) : t + 5].amax(0) for t in range(N)])
    found = []
    for r in range(rows):
        part = x[math.floor(r * N * 350 / 384 / (rows + 1)) : math.ceil((r + 2) * N * 350 / 384 / (rows + 1))]
        found.append(part.amax(0) if head.config.pool == "max" else part.mean(0))
    return torch.stack(found).view(rows, n, H).transpose(1, 2)


def context_filters(head: Any, z: Tensor, n: int, rows: int) -> Tensor:
    """(rows, H, n)."""
    H = z.shape[1]
    text = torch.cat([convolved(z[None], layer)[0].clamp(min=0) for layer in head.make.bank], dim=1)
    context = text.amax(0) if head.config.reduce == "max" else text.sum(0)
    numbers = convolved(context[None, :, None], head.make.generate)[0].T.flatten()  # map after map
    needed = n * rows * H
    return numbers.repeat(-(-needed // len(numbers)))[:needed].view(n, rows, H).permute(1, 2, 0)


def cacnn_reference(head: Any, z: Tensor, context: Tensor) -> Tensor:
    simple = head.config.variant == "simple"
    n, rows = head.config.n or (4 if simple else 8), head.config.rows or (6 if simple else 5)
    filters = (simple_filters if simple else context_filters)(head, z, n, rows)
    target = z * context[:, None] if head.config.mask_question else z
    seen = z.new_zeros(len(z), n)
    for t in range(len(z)):
        for j in range(rows):
            at = t + j - (rows - 1) // 2
            if 0 <= at < len(z):
                seen[t] += target[at] @ filters[j]
    start = seen[:, : n // 2] @ head.start.weight[0] + head.start.bias
    end = seen[:, n // 2 :] @ head.end.weight[0] + head.end.bias
    return torch.stack([start, end], dim=1)
