"""The optimiser, its schedule and the noise of a step.

The learning rate is a pure function of the step, and so is dropout in heads: resuming a run needs nothing but the
step's number. Heads that are fitted together must not draw from one stream either, because one more head, or one that
is dropped, would change the others.
"""

import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from bertvision.train.config import OptimConfig

_MOMENTUM = 0.9
_LATE = 1e6
"""A count of steps at which Adam's corrections 1 - beta^t are 1 in every bit, and float32 still counts on."""
_PARTS = 1 << 20  # more parts than a batch is ever cut into


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
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, p in named:
        groups[p.ndim >= 2 and not name.endswith("bias")].append(p)
    device = named[0][1].device
    settings = [
        {"params": own, "weight_decay": config.weight_decay if decays else 0.0}
        | ({"lr": torch.tensor(config.lr, device=device)} if capturable else {})
        for decays, own in groups.items()
        if own
    ]
    fused = device.type in ("cpu", "cuda")
    if config.optimizer == "sgd":
        return torch.optim.SGD(settings, lr=config.lr, momentum=_MOMENTUM, fused=fused)
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    optimizer = kind(settings, lr=config.lr, eps=config.eps, fused=fused, capturable=capturable)
    # Without corrections Adam counts from a million, and its moments begin at zero.
    for group in optimizer.param_groups if not config.bias_correction else ():
        for parameter in group["params"]:
            place = parameter.device if group["capturable"] or group["fused"] else torch.device("cpu")
            optimizer.state[parameter] = {
                "step": torch.tensor(_LATE, dtype=torch.float32, device=place),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
    return optimizer


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


# ---- random numbers


def noise_numbers(seed: int, step: int, part: int = 0, rank: int = 0) -> tuple[int, ...]:
    """What the dropout of a head draws from: every part of a batch, and every process, has noise of its own."""
    number = part + rank * _PARTS
    return (seed, step, number) if number else (seed, step)


def rank_seed(seed: int, rank: int) -> int:
    """Seed of one process's random numbers; `seed + rank` would give runs of neighbouring seeds the same dropout."""
    return int(np.random.SeedSequence([seed, rank]).generate_state(1, np.uint64)[0] >> 1) if rank else seed


def generator_of(device: torch.device) -> torch.Generator:
    """The generator that dropout on `device` draws from."""
    if device.type == "cuda":
        torch.cuda.init()
        index = torch.cuda.current_device() if device.index is None else device.index
        return torch.cuda.default_generators[index]
    if device.type == "mps":
        return torch.mps._get_default_mps_generator()
    return torch.default_generator


@contextmanager
def seeded(device: torch.device, *numbers: int) -> Iterator[None]:
    """Draw from a stream that `numbers` alone decide; the stream outside is left where it was."""
    generator = generator_of(device)
    before = generator.get_state()
    # The CPU's generator reads 32 bits of a seed, so all numbers are mixed into those.
    generator.manual_seed(zlib.crc32(repr(numbers).encode()))
    try:
        yield
    finally:
        generator.set_state(before)


T = TypeVar("T")
