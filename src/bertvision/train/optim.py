"""The optimiser and its schedule, as small functions of plain settings.

The learning rate is a pure function of the step, so resuming a run needs nothing but the step's number.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from bertvision.train.config import OptimConfig
from bertvision.train.parallel import is_sharded

_MOMENTUM = 0.9
_LATE = 1e6
"""A count of steps at which Adam's corrections 1 - beta^t are 1 in every bit, and float32 still counts on."""


def learning_rate(config: OptimConfig, step: int, total: int) -> float:
    """Rate of step `step` (from 0) out of `total`."""
    warm = round(config.warmup * total)
    if step < warm:
        return config.lr * (step + 1) / warm
    if config.schedule == "constant":
        return config.lr
    return config.lr * (total - step) / max(total - warm, 1)


def make_optimizer(
    modules: Iterable[nn.Module], config: OptimConfig, *, capturable: bool = False
) -> torch.optim.Optimizer:
    """The optimiser over everything trainable in `modules`; biases, norms and scales are not decayed.

    A capturable one keeps its rate and step count on the device, so that a CUDA graph can replay its steps.
    """
    named = [(n, p) for module in modules for n, p in module.named_parameters() if p.requires_grad]
    decayed = [p for n, p in named if p.ndim >= 2 and not n.endswith("bias")]
    kept = {id(p) for p in decayed}
    parts = ((decayed, config.weight_decay), ([p for _, p in named if id(p) not in kept], 0.0))
    # The fused kernels take no group of which a part is shared out; the encoder, which may be, comes before its head.
    groups = [
        {"params": own, "weight_decay": decay}
        for params, decay in parts
        for shared in (True, False)
        if (own := [p for p in params if is_sharded(p) == shared])
    ]
    fused = all(p.device.type in ("cpu", "cuda") for _, p in named)
    if capturable:
        for group in groups:
            group["lr"] = torch.tensor(config.lr, device=named[0][1].device)
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=_MOMENTUM, fused=fused)
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    optimizer = kind(groups, lr=config.lr, eps=config.eps, fused=fused, capturable=capturable)
    if not config.bias_correction:
        _begin_late(optimizer)
    return optimizer


def _begin_late(optimizer: torch.optim.Optimizer) -> None:
    """Let Adam count from a million: its moments begin at zero and nothing corrects them."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            place = parameter.device if group["capturable"] or group["fused"] else torch.device("cpu")
            optimizer.state[parameter] = {
                "step": torch.tensor(_LATE, dtype=torch.float32, device=place),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }


def set_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def apply_gradients(optimizer: torch.optim.Optimizer, clip: float) -> None:
    """Clip, step and clear the gradients."""
    if clip:
        nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
