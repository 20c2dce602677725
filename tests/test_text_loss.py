"""The losses of labels and scores against their formulas in plain Python."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from bertvision.tasks.text import TextTask, text_loss

TASKS = {
    "ce": TextTask("label", ("a", "b", "c")),
    "bce": TextTask("label", ("a", "b"), "bce"),
    "mse": TextTask("score", (), "mse", "pearson", shift=2.5, scale=1.7),
}


def grouped(name: str, group: int) -> TextTask:
    return replace(TASKS[name], group=group)


def batch(name: str, group: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(4, TASKS[name].outputs, generator=generator)
    labels = {
        "ce": torch.tensor([0, 2, 1, 1]),
        "bce": torch.tensor([0, 1, 1, 0]),
        "mse": torch.tensor([0.0, 5.0, 3.2, 2.5]),
    }[name]
    return logits, labels.repeat_interleave(group).unsqueeze(1)


def by_hand(name: str, logits: list[float], label: float) -> float:
    if name == "ce":
        return math.log(sum(math.exp(z) for z in logits)) - logits[int(label)]
    if name == "bce":
        chance = 1 / (1 + math.exp(-logits[0]))
        return -math.log(chance if label else 1 - chance)
    return (logits[0] - (label - 2.5) / 1.7) ** 2


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("group", [1, 2, 3])
def test_equal_to_the_formula_at_each_window(name: str, group: int) -> None:
    logits, labels = batch(name, group)
    expected = [
        by_hand(name, row, label)
        for row, label in zip(logits.tolist(), labels[::group, 0].tolist(), strict=True)
    ]
    found = text_loss(logits, labels, grouped(name, group))
    assert found.shape == (4 * group,)
    assert found.dtype == torch.float32
    assert found.tolist() == pytest.approx(
        [loss for loss in expected for _ in range(group)], rel=1e-5, abs=1e-6
    )
    assert found.mean().item() == pytest.approx(sum(expected) / 4, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", TASKS)
def test_half_precision_is_widened_first(name: str) -> None:
    logits, labels = batch(name)
    rounded = logits.to(torch.bfloat16)
    assert text_loss(rounded, labels, TASKS[name]).equal(text_loss(rounded.float(), labels, TASKS[name]))


@pytest.mark.parametrize("name", TASKS)
def test_an_unknown_label_costs_nothing(name: str) -> None:
    logits, labels = batch(name)
    labels[1] = math.nan if name == "mse" else -1
    logits.requires_grad_()
    loss = text_loss(logits, labels, TASKS[name])
    assert loss[1] == 0
    assert (loss[[0, 2, 3]] > 0).all()
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert gradient.isfinite().all()
    assert not gradient[1].any()
    assert gradient[[0, 2, 3]].any(dim=1).all()


def test_bce_is_ce_of_zero_and_its_logit() -> None:
    logits, labels = batch("bce")
    two = torch.cat([torch.zeros_like(logits), logits], dim=1)
    wide = text_loss(two, labels, TextTask("label", ("a", "b")))
    assert text_loss(logits, labels, TASKS["bce"]).tolist() == pytest.approx(
        wide.tolist(), rel=1e-5, abs=1e-6
    )


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("group", [1, 2])
def test_stacked_heads_agree_with_single_ones(name: str, group: int) -> None:
    logits, labels = batch(name, group)
    task = grouped(name, group)
    stacked = torch.stack([logits, -logits, 2 * logits])

    def total(one: Tensor) -> Tensor:
        return text_loss(one, labels, task).mean()

    gradients, together = torch.func.vmap(torch.func.grad_and_value(total))(stacked)
    for one, gradient, value in zip(stacked, gradients, together, strict=True):
        alone = one.clone().requires_grad_()
        (expected,) = torch.autograd.grad(total(alone), alone)
        torch.testing.assert_close(gradient, expected)
        assert value.item() == pytest.approx(total(one).item(), rel=1e-6)


def test_extreme_logits_stay_finite() -> None:
    for sign in (1e4, -1e4):
        logits = torch.tensor([[sign], [sign]], requires_grad=True)
        loss = text_loss(logits, torch.tensor([[0], [1]]), TASKS["bce"])
        (gradient,) = torch.autograd.grad(loss.sum(), logits)
        assert loss.isfinite().all()
        assert gradient.isfinite().all()
        assert loss.max().item() == 1e4
