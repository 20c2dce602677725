"""A head over all layers that trains together with the top of the encoder.

        numbers (p) = digest of states 0 .. c - 1          fixed, encoder/digest.py; kept with the head as buffers
        inner head over [Linear(numbers) (H), state c, states c + 1 .. L - 1]

Why: under `--policy cut-K` the states below the cut never change, so they are computed once; all of them would be
too much to keep, p numbers a token beside the state at the cut are not. Training calls `from_parts` with numbers that
were kept; `forward` computes them from all L states, so the trained head is used like any other.

Such a head cannot be made from a text alone: its projection comes from the data. `digest_head` makes one, and
`load_head` brings one back; `bertvision heads` does not list it and `fit --heads` refuses it.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bertvision.encoder.digest import Digest, check_size, project_states
from bertvision.errors import ConfigError
from bertvision.heads.base import Geometry, Head, check_task, head_class, register
from bertvision.heads.spec import HeadSpec, TrainOverrides, parse_head
from bertvision.shapes import Bool, Float

__all__ = ["DigestConfig", "DigestHead", "digest_head"]


@dataclass(frozen=True)
class DigestConfig:
    cut: int
    """c: number of the state at the cut; the states below it are read as a digest."""
    size: int
    """p: numbers the digest gives a token."""
    head: str
    """The inner head as it is written for `fit --heads`, without settings of its training."""

    def __post_init__(self) -> None:
        check_size(self.size)
        if self.cut < 1:
            raise ConfigError(
                f"cut of a digest head must be at least 1, not {self.cut}: no state lies below it"
            )
        spec = parse_head(self.head)
        if spec.name == "digest.v1":
            raise ConfigError(f"the head inside a digest head must be another one, not {self.head!r}")
        if spec.train != TrainOverrides():
            raise ConfigError(
                f"the head inside a digest head has no training of its own, as {self.head!r} asks for"
            )


@register("digest.v1", DigestConfig)
class DigestHead(Head):
    """digest of the lower states -> Linear(H), beside the state at the cut and those above it -> inner head."""

    tasks = ("span", "label", "score")
    extras = ("context", "pooled")
    needs_data = True

    mean: Tensor
    components: Tensor

    def __init__(self, config: DigestConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        c, p, H = config.cut, config.size, geometry.hidden
        if c >= geometry.states:
            raise ConfigError(f"a digest of the states below {c} needs more than {geometry.states} states")
        inner = parse_head(config.head)
        check_task(head_class(inner.name), geometry.task)
        self.register_buffer("mean", torch.zeros(c, H))
        self.register_buffer("components", torch.zeros(c, p, H))
        self.lift = nn.Linear(p, H)
        upper = dataclasses.replace(geometry, states=1 + geometry.states - c)
        self.inner = head_class(inner.name)(inner.config, upper)

    def take(self, digest: Digest) -> None:
        """Project with this digest from now on."""
        if digest.components.shape != self.components.shape:
            raise ConfigError(
                f"the digest has (states, numbers, hidden) {tuple(digest.components.shape)}, its head "
                f"{tuple(self.components.shape)}: make both for the same cut and --digest"
            )
        self.mean.copy_(digest.mean)
        self.components.copy_(digest.components)

    def forward(
        self, states: Float[Tensor, "L B T H"], mask: Bool[Tensor, "B T"], **extras: Any
    ) -> Float[Tensor, "B *T C"]:
        cut = self.config.cut
        numbers = project_states(states[:cut], self.mean, self.components)
        return self.from_parts(numbers, states[cut:], mask, **extras)

    def from_parts(
        self,
        numbers: Float[Tensor, "B T p"],
        upper: Float[Tensor, "states B T H"],
        mask: Bool[Tensor, "B T"],
        **extras: Any,
    ) -> Float[Tensor, "B *T C"]:
        """The logits from a digest's numbers and the states from the cut on; of `extras` what the inner head reads."""
        self.inner.checkpoint = self.checkpoint
        lifted = self.lift(numbers.to(self.lift.weight.dtype)).to(upper.dtype)
        read = {name: extras[name] for name in self.inner.extras}
        return self.inner(torch.cat([lifted[None], upper]), mask, **read)

    # ---- what a head is asked for is up to the inner one

    @property
    def windows(self) -> int:
        return self.inner.windows

    def at(self, progress: float) -> None:
        self.inner.at(progress)

    def penalty(self) -> Tensor | None:
        return self.inner.penalty()

    def loss_bytes(self, tokens: int) -> int:
        return self.inner.loss_bytes(tokens)


def digest_head(digest: Digest, head: str, geometry: Geometry, *, seed: int) -> DigestHead:
    """A head over all states of the encoder (`geometry`) with `head` inside; its weights come from the seed alone."""
    config = DigestConfig(cut=digest.cut, size=digest.size, head=head)
    made = HeadSpec(DigestHead.name, config).build(geometry, seed=seed)
    assert isinstance(made, DigestHead)
    made.take(digest)
    return made
