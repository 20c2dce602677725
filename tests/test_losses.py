"""Every loss against its formula in plain Python, in half precision, stacked, with pads and unknown labels."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from span_cases import log_sum, pair_score
from torch import Tensor
from torch.nn import functional as F

from bertvision.tasks.label_score import LabelTask, ScoreTask
from bertvision.tasks.span import SpanTask
from bertvision.tasks.span_decode import span_loss
from bertvision.tasks.triplet import triplet_loss

TASKS: dict[str, Any] = {
    "ce": LabelTask(("a", "b", "c")),
    "bce": LabelTask(("a", "b"), "bce"),
    "mse": ScoreTask(shift=2.5, scale=1.7),
}
LABELS = {"ce": [0, 2, 1, 1], "bce": [0, 1, 1, 0], "mse": [0.0, 5.0, 3.2, 2.5]}


def case(name: str, group: int = 1) -> tuple[Any, Tensor, Tensor]:
    task = replace(TASKS[name], group=group)
    logits = 4 * torch.randn(4, task.outputs, generator=torch.Generator().manual_seed(0))
    return task, logits, torch.tensor(LABELS[name]).repeat_interleave(group).unsqueeze(1)


def loss_of(task: Any, logits: Tensor, targets: Tensor) -> Tensor:
    batch: Any = SimpleNamespace(targets=targets)
    return task.loss(logits, batch)


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
    task, logits, labels = case(name, group)
    own = labels[::group, 0].tolist()
    expected = [by_hand(name, row, label) for row, label in zip(logits.tolist(), own, strict=True)]
    found = loss_of(task, logits, labels)
    assert (found.shape, found.dtype) == ((4 * group,), torch.float32)
    assert found.tolist() == pytest.approx(np.repeat(expected, group), rel=1e-5, abs=1e-6)
    rounded = logits.to(torch.bfloat16)
    assert loss_of(task, rounded, labels).equal(loss_of(task, rounded.float(), labels)), "widened first"


@pytest.mark.parametrize("name", TASKS)
def test_an_unknown_label_costs_nothing(name: str) -> None:
    task, logits, labels = case(name)
    labels[1] = math.nan if name == "mse" else -1
    logits.requires_grad_()
    loss = loss_of(task, logits, labels)
    assert loss[1] == 0
    assert (loss[[0, 2, 3]] > 0).all()
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert gradient.isfinite().all()
    assert gradient.any(dim=1).tolist() == [True, False, True, True]


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("group", [1, 2])
def test_stacked_heads_agree_with_single_ones(name: str, group: int) -> None:
    task, logits, labels = case(name, group)
    stacked = torch.stack([logits, -logits, 2 * logits])

    def total(one: Tensor) -> Tensor:
        return loss_of(task, one, labels).mean()

    gradients, together = torch.func.vmap(torch.func.grad_and_value(total))(stacked)
    for one, gradient, value in zip(stacked, gradients, together, strict=True):
        alone = one.clone().requires_grad_()
        (expected,) = torch.autograd.grad(total(alone), alone)
        torch.testing.assert_close(gradient, expected)
        assert value.item() == pytest.approx(total(one).item(), rel=1e-6)


def test_extreme_logits_stay_finite() -> None:
    for sign in (1e4, -1e4):
        logits = torch.tensor([[sign], [sign]], requires_grad=True)
        loss = loss_of(TASKS["bce"], logits, torch.tensor([[0], [1]]))
        (gradient,) = torch.autograd.grad(loss.sum(), logits)
        assert loss.isfinite().all()
        assert gradient.isfinite().all()
        assert loss.max().item() == 1e4


@pytest.mark.parametrize("objective", ["ce", "bce"])
def test_weights_of_classes_are_those_of_torch(objective: str) -> None:
    task = LabelTask(("no", "yes"), objective, weights=(0.25, 3.0))
    labels = torch.tensor([[0], [1], [-1], [1], [0]])
    logits = torch.randn(5, task.outputs, generator=torch.Generator().manual_seed(0))
    wide = logits if objective == "ce" else torch.cat([torch.zeros(5, 1), logits], dim=1)
    weight = torch.tensor([0.25, 3.0])
    expected = F.cross_entropy(wide, labels[:, 0], weight=weight, ignore_index=-1, reduction="none")
    assert torch.allclose(loss_of(task, logits, labels), expected, atol=1e-6)
    assert not torch.allclose(loss_of(replace(task, weights=()), logits, labels), expected)


def spans(outputs: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Logits (4, 7, outputs): starts and ends, or 2 + 2r numbers of heads that score pairs."""
    logits = 2 * torch.randn(4, 7, outputs, generator=torch.Generator().manual_seed(0))
    mask = torch.arange(7) < torch.tensor([7, 5, 3, 1])[:, None]
    return logits.to(dtype), mask, torch.tensor([[0, 6], [2, 4], [1, 1], [0, 0]])


def span_loss_by_hand(tokens: list[list[float]], first: int, last: int) -> float:
    if len(tokens[0]) == 2:
        starts, ends = zip(*tokens, strict=True)
        return (log_sum(list(starts)) - starts[first] + log_sum(list(ends)) - ends[last]) / 2
    pairs = {(i, j): pair_score(a, b) for i, a in enumerate(tokens) for j, b in enumerate(tokens) if i <= j}
    return (log_sum(list(pairs.values())) - pairs[first, last]) / 2


@pytest.mark.parametrize("outputs", [2, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_span_loss_is_the_formula(dtype: torch.dtype, outputs: int) -> None:
    logits, mask, labels = spans(outputs, dtype)
    rows = zip(logits.double(), mask, labels.tolist(), strict=True)
    expected = [span_loss_by_hand(row[real].tolist(), *label) for row, real, label in rows]
    found = span_loss(logits, mask, labels)
    assert found.dtype == torch.float32
    assert found.tolist() == pytest.approx(expected, abs=1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(span_loss(logits, mask, labels), found)


@pytest.mark.parametrize("outputs", [2, 8])
def test_pads_change_nothing_and_get_no_gradient(outputs: int) -> None:
    logits, mask, labels = spans(outputs)
    for poison in (1e9, math.inf, math.nan):
        poisoned = torch.where(mask.unsqueeze(-1), logits, torch.tensor(poison)).requires_grad_()
        loss = span_loss(poisoned, mask, labels)
        assert torch.equal(loss, span_loss(logits, mask, labels))
        (gradient,) = torch.autograd.grad(loss.sum(), poisoned)
        assert gradient.isfinite().all()
        assert not gradient[~mask].any()
        assert gradient[mask].any(0).all(), "s, e, u and v all learn"
        gradients = torch.func.vmap(torch.func.grad(lambda one: span_loss(one, mask, labels).sum()))
        torch.testing.assert_close(gradients(poisoned.detach()[None])[0], gradient)
    mask[3] = False
    assert span_loss(logits, mask, labels).isfinite().all(), "a row of pads alone"


@pytest.mark.parametrize("outputs", [2, 6])
def test_windows_without_an_answer_count_what_they_are_given(outputs: int) -> None:
    """With the null token in front and, as in some encoders, at the end; vmapped over heads as it is stacked."""
    mask = torch.arange(9) < torch.tensor([9, 7, 9, 5, 8])[:, None]
    bounds = torch.tensor([[4, 8], [3, 6], [4, 9], [0, 3], [0, 6]])
    labels = torch.tensor([[4, 7], [0, 0], [8, 8], [4, 4], [5, 5]])
    counted = torch.tensor([0.5, 3.0, 0.5, 3.0, 0.5])
    logits = torch.randn(3, 5, 9, outputs, generator=torch.Generator().manual_seed(0))
    batch: Any = SimpleNamespace(mask=mask, targets=labels, bounds=bounds)
    found = torch.func.vmap(lambda one: SpanTask(weights=(0.5, 3.0)).loss(one, batch))(logits)
    for head, losses in zip(logits, found, strict=True):
        plain = span_loss(head, mask, labels)
        assert torch.equal(SpanTask().loss(head, batch), plain)
        torch.testing.assert_close(losses, plain * counted)


def test_triplet_losses_by_hand() -> None:
    distances = torch.tensor([[1.0, 2.0, 3.0], [4.0, 0.5, 9.0]])
    rows = distances.tolist()
    softmin = [max(0.0, p + math.log(sum(math.exp(-n) for n in others)) + 0.5) for p, *others in rows]
    paper = [max(0.0, p - math.log(sum(math.exp(n) for n in others)) + 0.5) for p, *others in rows]
    assert triplet_loss(distances, margin=0.5).tolist() == pytest.approx(softmin)
    assert triplet_loss(distances, form="paper", margin=0.5).tolist() == pytest.approx(paper)
