"""What a head is, and the registry that finds it by its versioned name.

    @register("mine.v1", MyConfig)
    class Mine(Head):
        def __init__(self, config: MyConfig, geometry: Geometry): ...
        def forward(self, states, mask): ...      # (L, B, T, H), (B, T) -> (B, T, C), or (B, C) for labels

The version is part of the name because it is stored with the weights: a head that changes its structure gets
a new one, and old files keep loading with the old code. docs/heads.md shows a whole head in twenty lines.
"""

import dataclasses
import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from torch import Tensor, nn

from bertvision.errors import ConfigError
from bertvision.states.batch import StateBatch

__all__ = [
    "Geometry",
    "Head",
    "Task",
    "check_task",
    "glorot_linear",
    "head_class",
    "head_names",
    "nearest",
    "register",
    "run_head",
    "running_statistics",
]

Task = str
"""A kind of task (tasks/base.py): span, label, score, triplet."""


@dataclass(frozen=True)
class Geometry:
    """The shape of what a head reads and writes."""

    states: int
    """L: embedding output and every layer, or those of them that are read."""
    hidden: int
    """H."""
    outputs: int = 2
    """C: numbers a token (span) or an example (label, score, triplet) gets; 2 for a span's start and end."""
    task: Task = "span"
    pooled: bool = False
    """Whether the encoder has a pooler, whose output label heads read as one more channel."""


class Head(nn.Module, ABC):
    """Turns states into logits. Subclasses are registered with a frozen config dataclass."""

    name: ClassVar[str]
    config_class: ClassVar[type]
    tasks: ClassVar[tuple[Task, ...]] = ("span",)
    """What it can be fitted for."""
    extras: ClassVar[tuple[str, ...]] = ()
    """Further inputs `forward` takes by keyword: context (B, T) True on the paragraph's tokens; pooled (B, H),
    None where the encoder has no pooler."""
    stackable: ClassVar[bool] = False
    """Heads of equal shape may run as one batched computation (torch.func.vmap): no buffer is written in
    `forward` and no value decides what is computed."""

    last_only: bool = False
    """Reads states[-1] (and pooled) and no other, so that an encoder in training need not hand out the rest. A head
    whose options decide it sets it when it is made."""

    cls_only: bool = False
    """Reads states[:, :, 0] and pooled alone: the [CLS] states of a whole data set fit into memory. Of a head that can
    find spans too the class says what it does for labels, and the head what it was made for."""

    checkpoint: bool = False
    """Set while fitting where not even one window's activations fit into memory: a head that can should recompute
    them in the backward pass instead of keeping them."""

    def __init__(self, config: Any, geometry: Geometry) -> None:
        super().__init__()
        self.config = config
        self.geometry = geometry

    @abstractmethod
    def forward(self, *args: Any, **extras: Any) -> Tensor:
        """(states (L, B, T, H), mask (B, T)) -> logits of every token (B, T, C), or of every window (B, C) for labels.

        Logits of pads mean nothing; the task masks them.
        """

    @property
    def windows(self) -> int:
        """How many windows one example is read through: 2 for a pair of texts encoded apart, 7 for a triplet."""
        return 1

    def at(self, progress: float) -> None:
        """Told before every training step how much of the fit is done, from 0 to below 1."""

    def penalty(self) -> Tensor | None:
        """What is added to the loss while fitting."""
        return None

    def loss_bytes(self, tokens: int) -> int:
        """Bytes the loss keeps for one window, where they count: scores of pairs of tokens."""
        return 0

    @property
    def num_parameters(self) -> int:
        """Trainable parameters."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad)

    @property
    def num_total(self) -> int:
        """All parameters and the running means and variances, as Keras counts a model."""
        return sum(p.numel() for p in [*self.parameters(), *running_statistics(self)])

    def layer_weights(self) -> list[float] | None:
        """How much each hidden state counts, where the head has such weights."""
        return None


def running_statistics(head: nn.Module) -> list[Tensor]:
    """Means and variances that a head gathers while it is fitted."""
    return [b for name, b in head.named_buffers() if name.endswith(("running_mean", "running_var"))]


_REGISTRY: dict[str, type[Head]] = {}
_H = TypeVar("_H", bound=type[Head])


def register(name: str, config_class: type) -> Callable[[_H], _H]:
    """Make a head known under a versioned name such as `adapter.v1`."""

    def wrap(cls: _H) -> _H:
        if name in _REGISTRY:
            raise ValueError(f"a head named {name} is registered already")
        if not (dataclasses.is_dataclass(config_class) and getattr(config_class, "__hash__", None)):
            raise ValueError(f"the config of {name} must be a dataclass with frozen=True")
        cls.name, cls.config_class = name, config_class
        _REGISTRY[name] = cls
        return cls

    return wrap


def head_names() -> list[str]:
    return sorted(_REGISTRY)


def nearest(word: str, known: list[str]) -> str:
    """A phrase that helps after a mistyped word: the nearest ones, or all when there are few."""
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(close) + "?"
    return "known: " + ", ".join(known)


def head_class(name: str) -> type[Head]:
    """The class behind `adapter.v1`, or behind `adapter` when there is one newest version."""
    if name in _REGISTRY:
        return _REGISTRY[name]
    versions = [known for known in _REGISTRY if known.rsplit(".v", 1)[0] == name]
    if versions:
        return _REGISTRY[max(versions, key=lambda known: int(known.rsplit(".v", 1)[1]))]
    raise ConfigError(f"there is no head {name!r}: {nearest(name, head_names())}")


def check_task(cls: type[Head], task: Task) -> None:
    """Refuse a head that was made for something else."""
    if task not in cls.tasks:
        others = [name for name in head_names() if task in _REGISTRY[name].tasks]
        raise ConfigError(
            f"{cls.name} is a head for {' and '.join(cls.tasks)} tasks, not for {task}: use one of {', '.join(others)}"
        )


def run_head(head: nn.Module, batch: StateBatch) -> Tensor:
    """A head's logits for a batch, with the further inputs it asks for."""
    extras: tuple[str, ...] = getattr(head, "extras", ())
    return head(batch.states, batch.mask, **{name: getattr(batch, name) for name in extras})


def glorot_linear(inputs: int, outputs: int) -> nn.Linear:
    """The papers' output layer: Glorot-uniform weights, zero bias."""
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
