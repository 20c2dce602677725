"""AdamW with and without bias correction against the recursion itself, in float64, through a checkpoint too."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from bertvision.train.config import OptimConfig
from bertvision.train.optim import apply_gradients, learning_rate, make_optimizer, set_rate
from bertvision.train.run_folder import RunFolder

STEPS = 12


def gradients() -> NDArray[np.float64]:
    """(STEPS, 3, 4) of very different sizes, some of them zero: eps counts where they are small."""
    rng = np.random.default_rng(5)
    values = rng.normal(size=(STEPS, 3, 4)) * 10.0 ** rng.integers(-7, 1, (3, 4))
    values[3] = 0
    return values


def by_hand(config: OptimConfig, start: NDArray[np.float64], decayed: bool) -> NDArray[np.float64]:
    """w after all steps; no clipping."""
    w, m, v = start.copy(), np.zeros_like(start), np.zeros_like(start)
    for t, g in enumerate(gradients(), 1):
        rate = learning_rate(config, t - 1, STEPS)
        decay = config.weight_decay if decayed else 0.0
        if config.optimizer == "adam":
            g = g + decay * w
        else:
            w = w - rate * decay * w
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        first, second = (1 - 0.9**t, 1 - 0.999**t) if config.bias_correction else (1.0, 1.0)
        w = w - rate * (m / first) / (np.sqrt(v / second) + config.eps)
    return w


class Two(nn.Module):
    """A matrix, which decays, and what is called a bias, which does not."""

    def __init__(self, start: NDArray[np.float64]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.from_numpy(start).float())
        self.bias = nn.Parameter(torch.from_numpy(start).float())


def trained(module: Two, config: OptimConfig, steps: range, optimizer: Any = None) -> torch.optim.Optimizer:
    optimizer = optimizer or make_optimizer([module], config)
    for step in steps:
        for parameter in module.parameters():
            parameter.grad = torch.from_numpy(gradients()[step]).float()
        set_rate(optimizer, learning_rate(config, step, STEPS))
        apply_gradients(optimizer, config.clip)
    return optimizer


@pytest.mark.parametrize("correct", [True, False])
@pytest.mark.parametrize("eps", [1e-8, 1e-6])
@pytest.mark.parametrize("kind", ["adamw", "adam"])
def test_steps_are_the_recursion(kind: Any, correct: bool, eps: float, tmp_path: Path) -> None:
    config = OptimConfig(
        optimizer=kind, lr=0.05, schedule="linear", warmup=0.2, weight_decay=0.1, clip=0.0, eps=eps,
        bias_correction=correct,
    )  # fmt: skip
    start = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32).astype(np.float64)
    module = Two(start)
    trained(module, config, range(STEPS))
    for parameter, decayed in ((module.weight, True), (module.bias, False)):
        wanted = by_hand(config, start, decayed)
        assert np.abs(wanted - start).max() > 0.05
        assert np.allclose(parameter.detach().double().numpy(), wanted, rtol=0, atol=2e-6)

    first = Two(start)
    optimizer = trained(first, config, range(5))
    folder = RunFolder(tmp_path, {})
    folder.save({"m": first}, {"o": optimizer}, {"step": 5})
    second = Two(np.zeros_like(start))
    fresh = make_optimizer([second], config)
    assert folder.resume({"m": second}, {"o": fresh}) == {"step": 5}
    trained(second, config, range(5, STEPS), fresh)
    for one, other in zip(module.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other), "a checkpoint in between changes a bit"


def test_parameters_that_never_get_a_gradient_stay() -> None:
    """Without correction every moment exists from the beginning; that alone must not move or decay anything."""
    config = OptimConfig(lr=0.5, weight_decay=0.5, bias_correction=False)
    module = Two(np.ones((3, 4)))
    optimizer = make_optimizer([module], config)
    module.weight.grad = torch.ones(3, 4)
    set_rate(optimizer, 0.5)
    apply_gradients(optimizer, config.clip)
    assert torch.equal(module.bias, torch.ones(3, 4))
    assert not torch.equal(module.weight, torch.ones(3, 4))


def test_sgd_has_nothing_to_correct() -> None:
    module = Two(np.ones((3, 4)))
    config = OptimConfig(optimizer="sgd", lr=0.5, clip=0.0, bias_correction=False)
    trained(module, config, range(1))
    wanted = 1 - 0.5 * learning_rate(config, 0, STEPS) / 0.5 * gradients()[0]
    assert np.allclose(module.weight.detach().numpy(), wanted, atol=1e-6)
