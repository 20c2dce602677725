"""Parts of convolutional heads: blocks, pools, padding and batch norm against their formulas."""

from typing import Any

import pytest
import torch
from conv_reference import block_reference, module_reference, shake

from bertvision.heads.conv import BatchNorm, Conv, avg_pool, max_pool, same_padding
from bertvision.heads.inception import Module, interpolate
from bertvision.heads.xception import XceptionBlock


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


def test_logits_lie_on_lines_between_the_positions_of_a_window() -> None:
    x = torch.tensor([[[0.0], [6.0], [3.0]], [[1.0], [1e3], [1e3]]])
    mask = torch.tensor([[True, True, True], [True, False, False]])
    found = interpolate(x, mask, 8, 3)[..., 0]
    assert found[0].tolist() == pytest.approx([0, 2, 4, 6, 5, 4, 3, 3])
    assert found[1].tolist() == [1.0] * 8


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
