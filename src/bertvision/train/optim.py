"""The optimiser and its schedule, as small functions of plain settings.

The learning rate is a pure function of the step, so resuming a run needs nothing but the step's number.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from bertvision.errors import ConfigError

__all__ = ["OptimConfig", "learning_rate", "make_optimizer", "update"]


@dataclass(frozen=True)
class OptimConfig:
    """AdamW and its schedule."""

    lr: float = 1e-3
    """Highest learning rate."""
    schedule: Literal["constant", "linear"] = "constant"
    """constant, or linear decay to zero at the end."""
    warmup: float = 0.0
    """Part of all steps over which the rate rises from zero."""
    weight_decay: float = 0.0
    """Decoupled weight decay of matrices; biases and norms are never decayed."""
    clip: float = 1.0
    """Largest norm of the whole gradient; 0 = no clipping."""
    seed: int = 0
    """Order of the data, dropout and initial weights."""

    def __post_init__(self) -> None:
        if not 0 < self.lr <= 1e36:  # Adam's first step is ten times that, and float32 ends at 3e38
            raise ConfigError(f"lr must lie above 0 and not above 1e36, not {self.lr}")
        if not 0 <= self.warmup < 1:
            raise ConfigError(f"warmup is a part of all steps, at least 0 and below 1, not {self.warmup}")
        for name in ("clip", "weight_decay"):
            value = getattr(self, name)
            if not (value >= 0 and math.isfinite(value)):
                raise ConfigError(f"{name} must be a finite number that is not negative, not {value}")
        if self.seed < 0:
            raise ConfigError(f"seed must not be negative, not {self.seed}")


def learning_rate(config: OptimConfig, step: int, total: int) -> float:
    """Rate of step `step` (from 0) out of `total`."""
    warm = round(config.warmup * total)
    if step < warm:
        return config.lr * (step + 1) / warm
    if config.schedule == "constant":
        return config.lr
    return config.lr * (total - step) / max(total - warm, 1)


def make_optimizer(modules: Iterable[nn.Module], config: OptimConfig) -> torch.optim.AdamW:
    """AdamW over everything trainable in `modules`; vectors (biases, norms, scales) are not decayed."""
    parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    fused = all(p.device.type in ("cpu", "cuda") for p in parameters)
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=config.lr, fused=fused)


def update(optimizer: torch.optim.Optimizer, config: OptimConfig, *, lr: float) -> None:
    """Clip, step at rate `lr` and clear the gradients."""
    if config.clip:
        nn.utils.clip_grad_norm_(
            [p for group in optimizer.param_groups for p in group["params"]], config.clip
        )
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
