"""The span loss against the formula in float64, and what pads may not do to it."""

import math

import pytest
import torch

from bertvision.tasks.span import span_loss


def batch(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(4, 7, 2, generator=generator)
    lengths = torch.tensor([7, 5, 3, 1])
    mask = torch.arange(7) < lengths[:, None]
    labels = torch.tensor([[0, 6], [2, 4], [1, 1], [0, 0]])
    return logits.to(dtype), mask, labels


def by_hand(logits: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor) -> list[float]:
    losses = []
    for row, real, label in zip(logits.double(), mask, labels.tolist(), strict=True):
        parts = []
        for side in (0, 1):
            values = row[real, side].tolist()
            parts.append(math.log(sum(math.exp(v) for v in values)) - values[label[side]])
        losses.append(sum(parts) / 2)
    return losses


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_equal_to_the_formula(dtype: torch.dtype) -> None:
    logits, mask, labels = batch(dtype)
    expected = by_hand(logits, mask, labels)
    each = span_loss(logits, mask, labels, reduction="none")
    assert each.dtype == torch.float32
    assert each.tolist() == pytest.approx(expected, abs=1e-5)
    assert span_loss(logits, mask, labels).item() == pytest.approx(sum(expected) / 4, abs=1e-5)
    assert span_loss(logits, mask, labels, reduction="sum").item() == pytest.approx(sum(expected), abs=1e-5)


def test_pads_change_nothing_and_get_no_gradient() -> None:
    logits, mask, labels = batch()
    poisoned = torch.where(mask.unsqueeze(-1), logits, torch.tensor(1e9)).requires_grad_()
    loss = span_loss(poisoned, mask, labels)
    assert loss.item() == span_loss(logits, mask, labels).item()
    (gradient,) = torch.autograd.grad(loss, poisoned)
    assert gradient.isfinite().all()
    assert not gradient[~mask].any()
    assert gradient[mask].any()


def test_all_pad_row_is_finite() -> None:
    logits, mask, labels = batch()
    mask[3] = False
    assert span_loss(logits, mask, labels).isfinite()


def test_weights_count_windows() -> None:
    logits, mask, labels = batch()
    each = span_loss(logits, mask, labels, reduction="none")
    weight = torch.tensor([1.0, 2.5, 0.0, 1.0])
    mean = span_loss(logits, mask, labels, weight=weight)
    assert mean.item() == pytest.approx(float((each * weight).sum() / weight.sum()))
    repeated = [0, 1, 1, 3]  # a weight of 2 is the window twice
    double = span_loss(logits, mask, labels, weight=torch.tensor([1.0, 2.0, 0.0, 1.0]))
    assert double.item() == pytest.approx(
        span_loss(logits[repeated], mask[repeated], labels[repeated]).item()
    )


def test_stacked_heads_agree_with_single_ones() -> None:
    logits, mask, labels = batch()
    stacked = torch.stack([logits, -logits, 2 * logits])
    together = torch.func.vmap(lambda one: span_loss(one, mask, labels))(stacked)
    alone = [span_loss(one, mask, labels).item() for one in stacked]
    assert together.tolist() == pytest.approx(alone, rel=1e-6)
