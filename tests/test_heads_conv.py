"""Convolutional heads and their parts: references that add up one kernel tap at a time, window by window.

A reference never sees a pad. Where a head agrees with it, pads neither reach a real token nor enter a statistic.
"""

import math
from typing import Any

import pytest
import torch
from conv_reference import block_reference, reference
from head_cases import CONV, TOKEN, batch_of, cast, changed, real, shake, shaken

from bertvision.errors import ConfigError
from bertvision.heads import Geometry, parse_head
from bertvision.heads.layers import BatchNorm, Conv
from bertvision.heads.papers.cacnn import pool_rows
from bertvision.heads.papers.cnn import XceptionBlock, interpolate

RECOMPUTED = [case for case in CONV if not case[0].startswith("cacnn")]


@torch.no_grad()
@pytest.mark.parametrize(("text", "geometry"), CONV)
def test_a_head_is_its_formula(text: str, geometry: Geometry) -> None:
    head, batch = shaken(text, geometry).double(), cast(batch_of(geometry), torch.float64)
    expected, logits = reference(head, batch), real(head(batch), batch)
    assert expected.std() > 1e-3
    torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-9)


@torch.no_grad()
@pytest.mark.parametrize(
    ("text", "geometry"), [case for case in RECOMPUTED if not case[0].startswith("inception")]
)
def test_a_training_step_is_its_formula(text: str, geometry: Geometry) -> None:
    """Batch statistics are those of real tokens alone, and so is what is remembered of them."""
    head = shaken(text, geometry).double().train()
    for module in head.modules():
        if hasattr(module, "active"):
            module.active = False  # dropout
    batch = cast(batch_of(geometry, rows=3), torch.float64)
    before = {name: buffer.clone() for name, buffer in head.named_buffers()}
    expected, logits = reference(head, batch), real(head(batch), batch)
    torch.testing.assert_close(logits, expected, rtol=1e-7, atol=1e-7)
    for name, module in head.named_modules():
        if isinstance(module, BatchNorm):
            for i, kind in enumerate(("running_mean", "running_var")):
                now = 0.75 * before[f"{name}.{kind}"] + 0.25 * module.seen[i]  # type: ignore[index]
                torch.testing.assert_close(getattr(module, kind), now, rtol=1e-7, atol=1e-9)
            assert module.steps == 4
    for module in head.modules():
        if hasattr(module, "active"):
            module.active = bool(module.rate > 0)


@pytest.mark.parametrize(("text", "geometry"), RECOMPUTED)
@pytest.mark.parametrize("half", [False, True])
def test_recomputing_changes_no_number(text: str, geometry: Geometry, half: bool) -> None:
    found, kept, batch = [], [], batch_of(geometry)
    for again in (False, True):
        head = shaken(text, geometry).train()
        assert head.recompute is False
        head.recompute = again
        saved: list[int] = []
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda t, saved=saved: saved.append(t.numel()) or t, lambda t: t
        )
        with torch.autocast("cpu", torch.bfloat16, enabled=half), hooks:
            logits = head(batch)
        head.recompute = False
        real(logits, batch).float().pow(2).sum().backward()
        found.append([t.clone() for t in (logits, *head.buffers(), *(p.grad for p in head.parameters()))])
        kept.append(sum(saved))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert kept[1] < kept[0] / 2


def test_heads_begin_as_keras_would() -> None:
    head: Any = parse_head("inception:adapter=8").build(TOKEN, seed=0)
    layer = head.blocks["4a"].three
    limit = math.sqrt(6 / (9 * (96 + 208)))
    assert 0.99 * limit < layer.weight.abs().max() <= limit
    assert layer.bias.eq(0.2).all()
    separable: Any = parse_head("xception_mod:adapter=8").build(TOKEN, seed=0)
    depthwise = separable.blocks[4].convs[1].depthwise.weight
    limit = math.sqrt(6 / (5 * (728 + 1)))
    assert 0.99 * limit < depthwise.abs().max() <= limit
    head = parse_head("cacnn:kernel=1").build(Geometry(2, 64), seed=0)
    assert head.make.after_bias.std().item() == pytest.approx(0.8796, rel=0.15)
    assert head.start.bias.tolist() == pytest.approx([0.01])
    limit = math.sqrt(6 / (64 + 256))
    assert 0.98 * limit < head.make.generate.weight.abs().max() <= limit
    wide: Any = parse_head("cacnn:n=400,kernel=1").build(Geometry(2, 2), seed=0)
    assert wide.end.weight.abs().max() <= 0.06
    assert wide.end.weight.std().item() == pytest.approx(0.8796 * 0.03, rel=0.2)


# ---- blocks, pools and padding


@pytest.mark.parametrize("width", [1, 2, 5, 6])
@pytest.mark.parametrize("pool", [None, "avg", "max"])
def test_an_xception_block_at_any_width(width: int, pool: Any) -> None:
    block = XceptionBlock(4, (5, 6), 3, pool=pool).double().eval()
    shake(block)
    x = torch.randn(3, 4, width, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    expected = block_reference(block, [x.transpose(1, 2)])[0]
    assert torch.allclose(block(x).transpose(1, 2), expected, atol=1e-12)


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


# ---- inception over tokens


@torch.no_grad()
def test_logits_lie_on_lines_between_the_positions_of_a_window() -> None:
    x = torch.tensor([[[0.0], [6.0], [3.0]], [[1.0], [1e3], [1e3]]])
    mask = torch.tensor([[True, True, True], [True, False, False]])
    found = interpolate(x, mask, 8, 3)[..., 0]
    assert found[0].tolist() == pytest.approx([0, 2, 4, 6, 5, 4, 3, 3])
    assert found[1].tolist() == [1.0] * 8
    # 101 tokens leave three positions, at every 48th; a window alone and beside a longer one.
    head, batch = shaken("inception:adapter=2,axis=tokens"), batch_of(TOKEN, 2, 101)
    seen: list[Any] = []
    handle = head.project.register_forward_hook(lambda module, given, result: seen.append(result))
    logits = head(batch)
    handle.remove()
    assert torch.equal(logits[0, ::48], seen[0][0])
    together = logits[1, :51]
    alone = changed(batch.rows(slice(1, 2)), states=batch.states[:, 1:, :51], mask=batch.mask[1:, :51])
    torch.testing.assert_close(together, head(alone)[0], rtol=1e-4, atol=1e-4)


# ---- batch norm


def test_batch_norm_sums_in_float32() -> None:
    """The mean of many bf16 numbers far from zero would be lost in bf16."""
    norm = BatchNorm(2).train()
    x = (100 + torch.randn(4000, 2, 3, generator=torch.Generator().manual_seed(0))).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        norm(x)
    values = x.double().transpose(1, 2).reshape(-1, 2)
    assert norm.running_mean.tolist() == pytest.approx(values.mean(0).tolist(), rel=1e-5)
    assert norm.running_var.tolist() == pytest.approx(values.var(0).tolist(), rel=1e-4)


def test_running_statistics_average_a_hundred_steps_and_then_keep_99_percent() -> None:
    """Against both formulas, before and beyond the change at step 99, and resumed in between."""
    norm = BatchNorm(2).double().train()
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(5, 2, 3, dtype=torch.float64, generator=generator) for _ in range(130)]
    means = torch.stack([x.transpose(0, 1).flatten(1).mean(1) for x in batches])
    variances = torch.stack([x.transpose(0, 1).flatten(1).var(1) for x in batches])
    for n, x in enumerate(batches):
        if n == 50:
            state, norm = norm.state_dict(), BatchNorm(2).double().train()
            norm.load_state_dict(state)
        norm(x)
        if n in (0, 1, 40, 99):
            assert torch.allclose(norm.running_mean, means[: n + 1].mean(0))
            assert torch.allclose(norm.running_var, variances[: n + 1].mean(0))
    mean, var = means[:100].mean(0), variances[:100].mean(0)
    for n in range(100, 130):
        mean, var = 0.99 * mean + 0.01 * means[n], 0.99 * var + 0.01 * variances[n]
    assert torch.allclose(norm.running_mean, mean)
    assert torch.allclose(norm.running_var, var)
    norm.eval()(batches[0])
    assert norm.steps == 130


def test_one_number_has_no_variance() -> None:
    norm = BatchNorm(3).train()
    shake(norm)
    before = {name: b.clone() for name, b in norm.named_buffers()}
    x = torch.randn(1, 3, 1, generator=torch.Generator().manual_seed(0))
    found = norm(x)
    assert torch.equal(found, norm.eval()(x))
    assert all(torch.equal(b, before[name]) for name, b in norm.named_buffers())


# ---- the context-aware CNN


@pytest.mark.parametrize("rows", [1, 6, 7])
@pytest.mark.parametrize("pool", ["max", "mean"])
def test_every_length_gives_all_rows(rows: int, pool: Any) -> None:
    """Against the grid written with fractions, in one padded batch; at 384 tokens and six rows it is the study's."""
    x, mask = torch.randn(2, 3, 384), torch.ones(2, 384, dtype=torch.bool)
    study = torch.nn.functional.max_pool1d if pool == "max" else torch.nn.functional.avg_pool1d
    torch.testing.assert_close(pool_rows(x, mask, 6, pool), study(x, 100, stride=50))
    lengths = [1, 2, 3, 5, 8, 40, 99, 383, 384, 500]
    x = torch.randn(len(lengths), 2, 500)
    mask = torch.arange(500) < torch.tensor(lengths)[:, None]
    pooled = pool_rows(x, mask, rows, pool)
    for b, length in enumerate(lengths):
        for r in range(rows):
            first = math.floor(r * length * 350 / (384 * (rows + 1)) + 1e-9)
            past = math.ceil((r + 2) * length * 350 / (384 * (rows + 1)) - 1e-9)
            assert 0 <= first < past <= length
            part = x[b, :, first:past]
            torch.testing.assert_close(pooled[b, :, r], part.amax(-1) if pool == "max" else part.mean(-1))


@pytest.mark.parametrize(
    ("text", "geometry", "words"),
    [
        ("cacnn", Geometry(3, 5, outputs=3), "2 outputs .* not 3"),
        ("biaffine", Geometry(3, 5, outputs=3), "2 outputs, not 3"),
        ("cacnn:variant=ctx,filters=4", Geometry(3, 5), r"12 \* 40 numbers .* need 200"),
        ("cacnn:variant=ctx,maps=4", Geometry(3, 5), "fill=tile"),
        ("cacnn:variant=ctx", Geometry(3, 2), "3 widths, .* 2 features"),
    ],
)
def test_options_that_do_not_fit_the_encoder_are_refused(text: str, geometry: Geometry, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_head(text).build(geometry, seed=0)
