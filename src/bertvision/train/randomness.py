"""Random numbers (dropout) as a pure function of a seed and a step.

Heads that are fitted together must not draw from one stream: one more head, or one that is dropped, would change
the others. And a stream that depends on the step alone needs no state in a checkpoint.
"""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_PARTS = 1 << 20
"""More parts than a batch is ever cut into."""


def generator_of(device: torch.device) -> torch.Generator:
    """The generator that dropout on `device` draws from."""
    if device.type == "cuda":
        torch.cuda.init()
        index = torch.cuda.current_device() if device.index is None else device.index
        return torch.cuda.default_generators[index]
    if device.type == "mps":
        return torch.mps._get_default_mps_generator()
    return torch.default_generator


def noise_numbers(seed: int, step: int, part: int = 0, rank: int = 0) -> tuple[int, ...]:
    """What the dropout of a head draws from: every part of a batch, and every process, has noise of its own."""
    number = part + rank * _PARTS
    return (seed, step, number) if number else (seed, step)


def rank_seed(seed: int, rank: int) -> int:
    """Seed of one process's random numbers; `seed + rank` would give runs of neighbouring seeds the same dropout."""
    return int(np.random.SeedSequence([seed, rank]).generate_state(1, np.uint64)[0] >> 1) if rank else seed


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
