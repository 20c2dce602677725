"""Convolutional heads: exact sizes, and references that add up one kernel tap at a time, window by window.

A reference never sees a pad: it gets every window cut to its real tokens. Where a head agrees with it, pads
neither reach a real token nor enter a statistic.
"""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertvision.errors import ConfigError
from bertvision.heads import Geometry, Head, conv, cost, load_head, parse_head, save_head
from bertvision.heads.conv import BatchNorm, Conv, Separable, avg_pool, max_pool, same_padding
from bertvision.heads.inception import Module, interpolate
from bertvision.heads.xception import XceptionBlock

LARGE = Geometry(states=25, hidden=1024)
"""BERT-large: the geometry of the published counts."""
LABELS = Geometry(states=25, hidden=1024, task="label", pooled=True)
SMALL = Geometry(states=3, hidden=12)
SMALL_LABEL = Geometry(states=3, hidden=21, outputs=3, task="label", pooled=True)

CNNS = ["cnn:dropout=0.1", "cnn:dilated", "cnn:input=learned,skip=false", "cnn:input=average",
        "cnn:input=learned,adapter=5,gelu=erf", "cnn:kernel=nxn,input=learned,adapter=6,skip=false",
        "cnn:kernel=nxn,dilated"]  # fmt: skip
INCEPTIONS = ["inception:adapter=4", "inception:adapter=3,axis=tokens"]
XCEPTIONS = ["xception_mod:adapter=7"]
LABEL_HEADS = ["xception_abbr", "xception_abbr:cls,order=last", "xception:pool=max"]
SMALL_SPECS = [*CNNS, *INCEPTIONS, *XCEPTIONS, *LABEL_HEADS]


def geometry_of(text: str) -> Geometry:
    return SMALL_LABEL if text in LABEL_HEADS else SMALL


def inputs(geometry: Geometry, *, lengths: tuple[int, ...] = (4, 2), tokens: int = 4) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(geometry.states, len(lengths), tokens, geometry.hidden, generator=generator)
    mask = torch.arange(tokens) < torch.tensor(lengths)[:, None]
    given: dict[str, Any] = {"states": states, "mask": mask}
    if geometry.task != "span":
        pooled = torch.randn(len(lengths), geometry.hidden, generator=generator)
        given["pooled"] = pooled if geometry.pooled else None
    return given


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


def shaken(text: str, geometry: Geometry | None = None) -> Any:
    head = parse_head(text).build(geometry or geometry_of(text), seed=0).eval()
    shake(head)
    return head


# ---- the papers' numbers


@pytest.mark.parametrize(
    ("text", "total", "percent"),
    [
        ("cnn", 332_450, 0.099),
        ("cnn:dilated", 406_850, 0.121),
        ("cnn:dropout=0", 332_450, 0.099),
        ("cnn:input=learned", 313_276, 0.093),
        ("cnn:input=average", 313_250, 0.093),
        ("cnn:input=learned,adapter=386", 693_326, 0.207),
        ("cnn:kernel=nxn,input=learned,adapter=386,skip=false", 1_113_078, 0.332),
        ("inception", 6_681_422, 1.994),
        ("xception_mod", 6_602_478, 1.970),
    ],
)
def test_published_sizes_of_span_heads(text: str, total: int, percent: float) -> None:
    counted = cost(parse_head(text), LARGE, tokens=2).total
    assert counted == total
    assert round(100 * counted / 335_143_938, 3) == percent


@pytest.mark.parametrize(
    ("text", "trainable", "total"),
    [
        ("xception_abbr", 264_066, 267_010),
        ("xception_abbr:cls", 266_114, 269_058),
        ("xception", 20_662_106, 20_716_634),
        ("xception:pool=max", 20_662_106, 20_716_634),
    ],
)
def test_published_sizes_of_label_heads(text: str, trainable: int, total: int) -> None:
    counted = cost(parse_head(text), LABELS, tokens=2)
    assert (counted.parameters, counted.total) == (trainable, total)


def test_the_strided_axis_changes_the_output_layer_alone() -> None:
    features = parse_head("inception:adapter=5").build(SMALL, seed=0).state_dict()
    tokens = parse_head("inception:adapter=5,axis=tokens").build(SMALL, seed=0).state_dict()
    assert features.keys() == tokens.keys()
    same = [name for name in features if not name.startswith("project.weight")]
    assert all(torch.equal(features[name], tokens[name]) for name in same)
    assert (features["project.weight"].shape, tokens["project.weight"].shape) == ((2, 1024), (2, 5 * 1024))


# ---- layers from their formulas: x is (tokens, width, channels), windows are a list of them


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


def real(logits: Tensor, given: dict[str, Any]) -> Tensor:
    return logits[given["mask"]] if logits.ndim == 3 else logits


def doubled(given: dict[str, Any]) -> dict[str, Any]:
    return {k: v.double() if v is not None and v.is_floating_point() else v for k, v in given.items()}


@pytest.mark.parametrize("text", SMALL_SPECS)
def test_a_head_is_its_formula(text: str) -> None:
    head = shaken(text).double()
    given = doubled(inputs(geometry_of(text)))
    with torch.no_grad():
        expected, logits = reference(head, given), real(head(**given), given)
    assert expected.std() > 1e-3
    assert torch.allclose(logits, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "text",
    ["cnn:dropout=0", "cnn:kernel=nxn,input=learned,adapter=6,dropout=0", "cnn:dilated,dropout=0", *XCEPTIONS,
     *LABEL_HEADS],
)  # fmt: skip
def test_a_training_step_is_its_formula(text: str) -> None:
    """Batch statistics are those of real tokens alone, and so is what is remembered of them."""
    head = shaken(text).double().train()
    for module in head.modules():
        if isinstance(module, BatchNorm):
            module.steps.fill_(3)
    given = doubled(inputs(geometry_of(text), lengths=(4, 2, 3)))
    before = {name: buffer.clone() for name, buffer in head.named_buffers()}
    with torch.no_grad():
        expected, logits = reference(head, given), real(head(**given), given)
    assert torch.allclose(logits, expected, rtol=1e-7, atol=1e-7)
    for name, module in head.named_modules():
        if isinstance(module, BatchNorm):
            for i, kind in enumerate(("running_mean", "running_var")):
                now = 0.75 * before[f"{name}.{kind}"] + 0.25 * module.seen[i]  # type: ignore[index]
                assert torch.allclose(getattr(module, kind), now, rtol=1e-7, atol=1e-9), name
            assert module.steps == 4


@pytest.mark.parametrize("width", [1, 2, 5, 6])
@pytest.mark.parametrize("pool", [None, "avg", "max"])
def test_a_block_at_any_width(width: int, pool: Any) -> None:
    block = XceptionBlock(4, (5, 6), 3, pool=pool).double().eval()
    shake(block)
    x = torch.randn(3, 4, width, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    expected = block_reference(block, [x.transpose(1, 2)])[0]
    assert torch.allclose(block(x).transpose(1, 2), expected, atol=1e-12)


def test_a_googlenet_module_is_its_formula() -> None:
    module = Module(5, (2, 3, 4, 2, 3, 2)).double()
    shake(module)
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(2, 5, 6, 4, dtype=torch.float64, generator=generator) - 2  # a pad of 0 would be a maximum
    mask = torch.arange(6) < torch.tensor([6, 3])[:, None]
    out, after = module(x, mask)
    assert torch.equal(after, mask)
    for b, length in enumerate((6, 3)):
        expected = module_reference(module, x[b, :, :length].permute(1, 2, 0))
        assert torch.allclose(out[b, :, :length].permute(1, 2, 0), expected, atol=1e-12)


def test_pools_leave_out_what_lies_beyond_the_edge() -> None:
    x = torch.tensor([[[-3.0, -6.0, -9.0, -1.0]]])
    assert avg_pool(x, 3, 2).tolist() == [[[-6.0, -5.0]]]
    assert max_pool(x, 3, (2,)).tolist() == [[[-3.0, -1.0]]]
    assert avg_pool(x[..., :3], 3, 2).tolist() == [[[-4.5, -7.5]]]
    assert max_pool(x[..., :3], 3, (2,)).tolist() == [[[-3.0, -6.0]]]


def test_padding_as_keras_counts_it() -> None:
    """Zeros on both sides, further zeros on the right; known cases of its documentation's formula."""
    cases = {(1024, 7, 2): (2, 1), (512, 3, 2): (0, 1), (193, 3, 2): (1, 0), (386, 3, 2): (0, 1), (49, 3, 3): (1, 0),
             (5, 1, 2): (0, 0), (256, 3, 1): (1, 0)}  # fmt: skip
    assert {case: same_padding(*case) for case in cases} == cases
    assert same_padding(256, 3, 1, 2) == (2, 0)


@pytest.mark.parametrize("kernel", [3, 7])
def test_a_tap_that_reads_only_padding_gets_no_gradient(kernel: int) -> None:
    """oneDNN leaves it unset in bf16 where the zeros are implied: huge numbers, not always."""
    layer = Conv(100, 100, kernel, stride=(2,))
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(5):
            layer.weight.grad = None
            sum(torch.full_like(layer.weight, 1e30) for _ in range(4))  # what lies in freed memory
            layer(torch.ones(6, 100, 1)).float().pow(2).sum().backward()
            taps = layer.weight.grad.abs().amax((0, 1))  # type: ignore[union-attr]
            assert (taps > 0).tolist() == [k == kernel // 2 for k in range(kernel)]


# ---- tokens made fewer


def test_logits_lie_on_lines_between_the_positions_of_a_window() -> None:
    x = torch.tensor([[[0.0], [6.0], [3.0]], [[1.0], [1e3], [1e3]]])
    mask = torch.tensor([[True, True, True], [True, False, False]])
    found = interpolate(x, mask, 8, 3)[..., 0]
    assert found[0].tolist() == pytest.approx([0, 2, 4, 6, 5, 4, 3, 3])
    assert found[1].tolist() == [1.0] * 8


def test_fewer_tokens_do_not_depend_on_the_other_windows() -> None:
    """101 tokens leave three positions; the same window alone and beside a longer one."""
    head = shaken("inception:adapter=2,axis=tokens")
    given = inputs(SMALL, lengths=(101, 53), tokens=101)
    with torch.no_grad():
        together = head(**given)[1, :53]
        alone = head(given["states"][:, 1:, :53], given["mask"][1:, :53])[0]
    assert torch.allclose(together, alone, atol=1e-5)
    assert together[:, 0].unique().numel() > 40  # the line between two positions


# ---- pads


@pytest.mark.parametrize("text", SMALL_SPECS)
@pytest.mark.parametrize("training", [False, True])
def test_pads_change_nothing(text: str, training: bool) -> None:
    given = inputs(geometry_of(text))
    noisy = dict(given, states=torch.where(given["mask"][None, :, :, None], given["states"], 1e3))
    found = []
    for one in (given, noisy):
        head = shaken(text).train(training)
        logits = real(head(**one), one)
        logits.sum().backward()
        found.append([logits, *head.buffers(), *(p.grad for p in head.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert all(bool(t.isfinite().all()) for t in found[1])


@pytest.mark.parametrize("text", [*CNNS, *INCEPTIONS])
def test_further_pads_change_nothing(text: str) -> None:
    head = shaken(text)
    given = inputs(SMALL)
    more = {"states": F.pad(given["states"], (0, 0, 0, 3), value=7.0), "mask": F.pad(given["mask"], (0, 3))}
    with torch.no_grad():
        assert torch.allclose(head(**more)[:, :4][given["mask"]], real(head(**given), given), atol=1e-5)
        assert bool(head(**more).isfinite().all())


# ---- batch norm


def test_batch_norm_sums_in_float32() -> None:
    """The mean of many bf16 numbers far from zero would be lost in bf16."""
    norm = BatchNorm(2).train()
    x = (100 + torch.randn(4000, 2, 3, generator=torch.Generator().manual_seed(0))).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        out = norm(x)
    values = x.double().transpose(1, 2).reshape(-1, 2)
    assert norm.running_mean.tolist() == pytest.approx(values.mean(0).tolist(), rel=1e-5)
    assert norm.running_var.tolist() == pytest.approx(values.var(0).tolist(), rel=1e-4)
    assert bool(out.isfinite().all())
    assert norm.running_mean.dtype == torch.float32


def test_the_first_steps_are_a_plain_average() -> None:
    """And later ones keep 0.99: against both formulas, in the middle and beyond the change at step 99."""
    norm = BatchNorm(2).double().train()
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(5, 2, 3, dtype=torch.float64, generator=generator) for _ in range(130)]
    means = torch.stack([x.transpose(0, 1).flatten(1).mean(1) for x in batches])
    variances = torch.stack([x.transpose(0, 1).flatten(1).var(1) for x in batches])
    for n, x in enumerate(batches):
        norm(x)
        if n in (0, 1, 40, 99):
            assert torch.allclose(norm.running_mean, means[: n + 1].mean(0))
            assert torch.allclose(norm.running_var, variances[: n + 1].mean(0))
    mean, var = means[:100].mean(0), variances[:100].mean(0)
    for n in range(100, 130):
        mean, var = 0.99 * mean + 0.01 * means[n], 0.99 * var + 0.01 * variances[n]
    assert torch.allclose(norm.running_mean, mean)
    assert torch.allclose(norm.running_var, var)
    assert norm.steps == 130
    norm.eval()(batches[0])
    assert norm.steps == 130


def test_a_resumed_norm_goes_on_counting() -> None:
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(4, 3, 2, generator=generator) for _ in range(6)]
    whole, first, second = BatchNorm(3), BatchNorm(3), BatchNorm(3)
    for x in batches:
        whole(x)
    for x in batches[:3]:
        first(x)
    second.load_state_dict(first.state_dict())
    for x in batches[3:]:
        second(x)
    assert all(torch.equal(v, second.state_dict()[k]) for k, v in whole.state_dict().items())


def test_one_number_has_no_variance() -> None:
    norm = BatchNorm(3).train()
    shake(norm)
    before = {name: b.clone() for name, b in norm.named_buffers()}
    x = torch.randn(1, 3, 1, generator=torch.Generator().manual_seed(0))
    found = norm(x)
    assert torch.equal(found, norm.eval()(x))
    assert all(torch.equal(b, before[name]) for name, b in norm.named_buffers())


# ---- computing blocks again


@pytest.mark.parametrize("text", SMALL_SPECS)
@pytest.mark.parametrize("half", [False, True])
def test_checkpointing_changes_no_number(text: str, half: bool) -> None:
    given = inputs(geometry_of(text))
    found, kept = [], []
    for again in (False, True):
        head = shaken(text).train()
        head.checkpoint = again
        saved: list[int] = []
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda t, saved=saved: saved.append(t.numel()) or t, lambda t: t
        )
        with torch.autocast("cpu", torch.bfloat16, enabled=half), hooks:
            logits = head(**given)
        real(logits, given).float().pow(2).sum().backward()
        found.append([logits, *head.buffers(), *(p.grad for p in head.parameters())])
        kept.append(sum(saved))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert kept[1] < kept[0] / 2


def test_a_head_is_not_checkpointed_unasked() -> None:
    assert all(shaken(text).checkpoint is False for text in ("cnn", "xception_abbr"))


@pytest.mark.parametrize("text", [*CNNS, *INCEPTIONS, *XCEPTIONS])
def test_evaluation_in_parts_changes_no_logit(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    head, given = shaken(text), inputs(SMALL, lengths=(4, 2, 3))
    with torch.no_grad():
        whole = head(**given)
        monkeypatch.setattr(conv, "_PART", 5)
        assert torch.allclose(head(**given), whole, atol=1e-5)


# ---- as any head


@pytest.mark.parametrize("text", SMALL_SPECS)
def test_every_parameter_is_trained(text: str) -> None:
    head, given = shaken(text).train(), inputs(geometry_of(text))
    real(head(**given), given).pow(2).sum().backward()
    idle = [n for n, p in head.named_parameters() if p.grad is None or not bool(p.grad.abs().sum() > 0)]
    assert idle == []


@pytest.mark.parametrize(
    "text", ["cnn", "cnn:dilated", "cnn:kernel=nxn,input=average", *INCEPTIONS, *XCEPTIONS]
)
@pytest.mark.parametrize("hidden", [1, 7, 32])
def test_any_width_and_a_single_token(text: str, hidden: int) -> None:
    geometry = Geometry(states=2, hidden=hidden, outputs=3)
    head, given = shaken(text, geometry), inputs(geometry, lengths=(1,), tokens=1)
    assert head(**given).shape == (1, 1, 3)
    assert bool(head(**given).isfinite().all())
    assert bool(head.train()(**given).isfinite().all())


@pytest.mark.parametrize("text", LABEL_HEADS)
@pytest.mark.parametrize("hidden", [1, 12, 40])
@pytest.mark.parametrize("pooled", [False, True])
def test_labels_of_any_width_with_and_without_a_pooler(text: str, hidden: int, pooled: bool) -> None:
    geometry = Geometry(states=2, hidden=hidden, outputs=1, task="score", pooled=pooled)
    head, given = shaken(text, geometry), inputs(geometry, lengths=(1,), tokens=1)
    assert head(**given).shape == (1, 1)
    assert bool(head(**given).isfinite().all())
    assert bool(head.train()(**given).isfinite().all())


@pytest.mark.parametrize("text", SMALL_SPECS)
def test_half_precision_states(text: str) -> None:
    head, given = shaken(text), inputs(geometry_of(text))
    whole = real(head(**given), given)
    half = {k: v.bfloat16() if v.is_floating_point() else v for k, v in given.items()}
    with torch.autocast("cpu", torch.bfloat16):
        logits = real(head(**half), half).float()
    assert (logits - whole).abs().max() < 0.1 * whole.abs().max()


@pytest.mark.parametrize("text", SMALL_SPECS)
def test_a_saved_head_comes_back_bit_by_bit(text: str, tmp_path: Path) -> None:
    head, given = shaken(text), inputs(geometry_of(text))
    save_head(head, tmp_path, about={})
    loaded, _ = load_head(tmp_path)
    assert torch.equal(loaded(**given), head(**given))


def test_heads_begin_as_keras_would() -> None:
    head: Any = parse_head("inception:adapter=8").build(SMALL, seed=0)
    layer = head.blocks["4a"].three
    limit = math.sqrt(6 / (9 * (96 + 208)))
    assert 0.99 * limit < layer.weight.abs().max() <= limit
    assert layer.bias.eq(0.2).all()
    separable: Any = parse_head("xception_mod:adapter=8").build(SMALL, seed=0)
    depthwise = separable.blocks[4].convs[1].depthwise.weight
    limit = math.sqrt(6 / (5 * (728 + 1)))
    assert 0.99 * limit < depthwise.abs().max() <= limit
    norm = separable.blocks[4].norms[1]
    values = [norm.weight, norm.bias, norm.running_mean, norm.running_var]
    assert [t.detach().unique().tolist() for t in values] == [[1], [0], [0], [1]]


def test_pooled_inputs_tell_how_much_each_layer_counts() -> None:
    for text in ("cnn:input=learned", "inception:adapter=3", "xception_mod:adapter=3"):
        head: Head = shaken(text)
        assert sum(head.layer_weights() or []) == pytest.approx(1)
    assert shaken("cnn").layer_weights() is None
    assert shaken("cnn:input=average").layer_weights() is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cnn:adapter=8", "adapter of cnn .* input=learned"),
        ("cnn:adapter=-1,input=learned", "adapter of cnn must be at least 0"),
        ("cnn:dropout=1", "dropout of cnn must lie"),
        ("cnn:kernel=3x3", "must be one of 1xn, nxn"),
        ("inception:adapter=0", "adapter of inception must be at least 1"),
        ("inception:dropout=-0.1", "dropout of inception must lie"),
        ("inception:axis=layers", "must be one of features, tokens"),
        ("xception_mod:adapter=2", "adapter of xception_mod must be at least 3"),
        ("xception:pool=min", "must be one of avg, max"),
        ("xception_abbr:order=middle", "must be one of first, last"),
    ],
)
def test_bad_options_are_one_sentence(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        parse_head(text)
    assert "\n" not in str(caught.value)


def test_span_and_label_heads_are_told_apart() -> None:
    with pytest.raises(ConfigError, match=r"xception\.v1 is a head for label and score"):
        parse_head("xception").build(SMALL, seed=0)
    with pytest.raises(ConfigError, match=r"cnn\.v1 is a head for span"):
        parse_head("cnn").build(SMALL_LABEL, seed=0)
