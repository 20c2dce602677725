"""What a head is, what it costs, the registry that finds it by its versioned name, and its two files.

    @register("mine.v1", MyConfig)
    class Mine(Head):
        def __init__(self, config: MyConfig, geometry: Geometry): ...
        def forward(self, batch: StateBatch): ...      # -> (B, T, C) for tokens, (B, C) for windows

A saved head is `config.json` (versioned name, config, geometry, library version, and what the caller adds) and
`model.safetensors`. A head that changes its structure gets a new version, so that saved heads keep their code.
docs/heads.md shows a whole head in twenty lines.

Costs are counted by running the head on the meta device, which computes shapes and no numbers. Operations are those of
matrix products and convolutions, two per multiply-add; memory is what the backward pass keeps, the states excluded.
"""

import contextlib
import dataclasses
import functools
import importlib
import logging
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from bertvision._version import __version__
from bertvision.artifacts import read_json, read_tensors, write_json, write_tensors
from bertvision.errors import ArtifactError, ConfigError, nearest
from bertvision.heads.layers import BYTES_DRAWN, Dropout
from bertvision.heads.spec import HeadConfig, HeadSpec, Unit
from bertvision.shapes import Bool, Float, Int
from bertvision.states.base import StateBatch

logger = logging.getLogger(__name__)

SCHEMA = 1
_UNITS: dict[Unit, str] = {"token": "each token (spans)", "window": "whole windows (labels, scores)"}


@dataclass(frozen=True)
class Geometry:
    states: int  # L: embedding output and every layer, or those of them that are read
    hidden: int  # H
    outputs: int = 2  # C: logits for each token or window; 2 for the start and end of a span
    unit: Unit = "token"  # what a row of logits belongs to
    pooled: bool = False  # whether there is a pooler's output, which window heads read as one more channel


class Head(nn.Module, ABC):
    """Turns states into logits. Subclasses are registered with a frozen config dataclass."""

    name: ClassVar[str]
    config_class: ClassVar[type]
    units: ClassVar[tuple[Unit, ...]] = ("token",)
    """What it can give logits for; none: it has nothing to fit."""
    stackable: ClassVar[bool] = False
    """`forward` writes no buffer and branches on no value: equal heads can run as one batched computation
    (torch.func.vmap), and a step can be captured."""
    last_only: bool = False
    """Reads states[-1] and pooled alone. A head whose options decide this sets it on the instance."""
    cls_only: bool = False
    """Reads batch.first and pooled alone, which fit into memory for a whole dataset. Of a head for both units the class
    says what holds for windows, the instance what it was built for."""
    reads_context: bool = False
    """Reads batch.context, which is an input of an exported graph then."""
    windows: int = 1
    """Windows of one example: 2 for a pair of texts encoded apart, 7 for a triplet with five negatives."""

    def __init__(self, config: Any, geometry: Geometry) -> None:
        super().__init__()
        self.config = config
        self.geometry = geometry

    @abstractmethod
    def forward(self, batch: StateBatch) -> Tensor:
        """Logits of every token (B, T, C), or of every window (B, C); those of pads mean nothing."""

    def penalty(self, progress: float) -> Tensor | None:
        """Added to a step's loss, asked before its forward pass; such a step is never captured. `progress`: 0 to 1."""
        return None

    @property
    def num_parameters(self) -> int:  # that are trained
        return sum(p.numel() for p in self.parameters() if p.requires_grad)

    def layer_weights(self) -> list[float] | None:
        """The weight of each hidden state, where it is learned; that of the pooled vector comes first."""
        shares = getattr(getattr(self, "mix", None), "shares", None)
        return shares() if shares else None


def bare_batch(
    states: Float[Tensor, "L B T H"],
    mask: Bool[Tensor, "B T"],
    *,
    bounds: Int[Tensor, "B 2"] | None = None,
    pooled: Float[Tensor, "B H"] | None = None,
    cls: Int[Tensor, " B"] | None = None,
) -> StateBatch:
    """What a head reads, without targets or window numbers; without `bounds` all tokens belong to the paragraph."""
    B, T = mask.shape
    if bounds is None:
        bounds = torch.tensor([0, T], device=mask.device).expand(B, 2)
    targets = torch.zeros(B, 1, dtype=torch.long, device=mask.device)
    return StateBatch(states, mask, targets, np.zeros(0, np.int64), bounds, pooled, cls)


def running_statistics(head: nn.Module) -> list[Tensor]:
    """Means and variances that batch norms collect while they are trained."""
    return [b for name, b in head.named_buffers() if name.endswith(("running_mean", "running_var"))]


# ---- the registry

_REGISTRY: dict[str, type[Head]] = {}
_H = TypeVar("_H", bound=type[Head])


def register(name: str, config_class: type = HeadConfig) -> Callable[[_H], _H]:
    """Register a head under a versioned name such as `adapter.v1`; without a config it has no options."""

    def wrap(cls: _H) -> _H:
        if name in _REGISTRY:
            raise ValueError(f"a head named {name} is registered already")
        if not (dataclasses.is_dataclass(config_class) and getattr(config_class, "__hash__", None)):
            raise ValueError(f"the config of {name} must be a dataclass with frozen=True")
        cls.name, cls.config_class = name, config_class
        if issubclass(config_class, HeadConfig):
            config_class.head = name.rsplit(".v", 1)[0]
        _REGISTRY[name] = cls
        return cls

    return wrap


@functools.cache
def _import_shipped() -> None:
    package = importlib.import_module("bertvision.heads")
    for module in pkgutil.walk_packages(package.__path__, "bertvision.heads."):
        importlib.import_module(module.name)


def registered() -> list[str]:
    _import_shipped()
    return sorted(_REGISTRY)


def head_class(name: str, unit: Unit | None = None, *, sets: Iterable[str] = ()) -> type[Head]:
    """The class of `adapter.v1`, or of the newest `adapter`, if it suits `unit`; `sets` may have been meant too."""
    versions = [known for known in registered() if name in (known, known.rsplit(".v", 1)[0])]
    if not versions:
        bare = dict.fromkeys(known.rsplit(".v", 1)[0] for known in registered())
        raise ConfigError(f"there is no head {name!r}: {nearest(name, [*sets, *bare])}")
    cls = _REGISTRY[max(versions, key=lambda known: (len(known), known))]
    if unit is None or not cls.units or unit in cls.units:
        return cls
    others = [name for name in registered() if unit in _REGISTRY[name].units]
    gives = f"{cls.name} gives logits of {_UNITS[cls.units[0]]}"  # of one kind, or it would suit
    raise ConfigError(f"{gives}, and this task needs them of {_UNITS[unit]}: use one of {', '.join(others)}")


# ---- files


def save_head(head: Head, folder: Path, *, about: dict[str, Any]) -> None:
    """Write the head's two files into `folder`; the caller makes the folder atomic."""
    config = {
        "bertvision": __version__,
        "schema": SCHEMA,
        "head": {"name": head.name, "config": dataclasses.asdict(head.config)},
        "geometry": dataclasses.asdict(head.geometry),
        "parameters": head.num_parameters,
        **about,
    }
    write_tensors(folder / "model.safetensors", head.state_dict())
    write_json(folder / "config.json", config)


def read_head_config(folder: Path) -> dict[str, Any]:
    config = read_json(folder / "config.json")
    if not isinstance(config, dict) or "head" not in config or "geometry" not in config:
        raise ArtifactError(f"{folder / 'config.json'} does not describe a bertvision head: check the folder")
    if config.get("schema") != SCHEMA:
        found = f"head format {config.get('schema')} by bertvision {config.get('bertvision')}"
        here = f"this is {__version__} and reads format {SCHEMA}"
        raise ArtifactError(f"{folder} was written in {found}, {here}: install that version")
    return config


def load_head(folder: Path) -> tuple[Head, dict[str, Any]]:
    """The head in `folder` in evaluation mode, and its config."""
    config = read_head_config(folder)
    try:
        cls = head_class(config["head"]["name"])
        head = cls(cls.config_class(**config["head"]["config"]), Geometry(**config["geometry"]))
    except (ConfigError, TypeError, KeyError) as error:
        where = folder / "config.json"
        raise ArtifactError(f"{where} names a head this version cannot build: {error}") from error
    tensors, _ = read_tensors(folder / "model.safetensors")
    try:
        head.load_state_dict(tensors)
    except RuntimeError as error:
        where, first = folder / "model.safetensors", shorten(str(error).splitlines()[1], 200)  # of hundreds
        raise ArtifactError(f"{where} and its config.json belong to different heads: {first}") from error
    return head.eval(), config


# ---- costs


@dataclass(frozen=True)
class HeadCost:
    parameters: int  # trainable
    total: int  # all, and running means and variances, as Keras counts
    flops_per_token: int | None  # of a forward pass; None: it reads values, which the meta device lacks


def cost(head: Head | HeadSpec, geometry: Geometry, *, tokens: int = 384) -> HeadCost:
    """Parameters and FLOPs of a head for a window of `tokens` tokens, without allocating memory."""
    module, batch = _on_meta(head, geometry, tokens)
    flops = None
    with contextlib.suppress(RuntimeError, NotImplementedError):
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            module.eval()(batch)
        flops = counter.get_total_flops() // tokens
    total = sum(t.numel() for t in [*module.parameters(), *running_statistics(module)])
    return HeadCost(module.num_parameters, total, flops)


def activation_bytes(head: Head | HeadSpec, geometry: Geometry, *, tokens: int) -> int:
    """Bytes kept for the backward pass of a window in float32, states excluded, the largest dropout included."""
    module, batch = _on_meta(head, geometry, tokens)
    own = {id(t.untyped_storage()) for t in (batch.states, *module.parameters())}
    kept: dict[int, Any] = {}  # storages are held, so that no id is given twice

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if id(storage) not in own:
            kept[id(storage)] = storage
        return tensor

    drawn = [0]
    for layer in (m for m in module.modules() if isinstance(m, Dropout) and m.active):
        layer.register_forward_hook(lambda _, inputs, __: drawn.append(inputs[0].numel() * BYTES_DRAWN))
    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with torch.device("meta"), torch.enable_grad(), hooks:
        logits = module.train()(batch)
        # A head that scores pairs gives factors beside its two logits: scores, softmax and its gradient.
        pairs = 12 * tokens**2 if logits.shape[-1] > geometry.outputs else 0
        return sum(storage.nbytes() for storage in kept.values()) + max(drawn) + pairs


def _on_meta(head: Head | HeadSpec, geometry: Geometry, tokens: int) -> tuple[Head, StateBatch]:
    cls = head_class(head.name, geometry.unit)
    with torch.device("meta"):
        module = cls(head.config, geometry)
        states = torch.empty(geometry.states, module.windows, tokens, geometry.hidden)
        mask = torch.ones(module.windows, tokens, dtype=torch.bool)
        pooled = torch.empty(module.windows, geometry.hidden) if geometry.pooled else None
    return module, bare_batch(states, mask, pooled=pooled)


@functools.lru_cache(maxsize=4096)
def _window_bytes(name: str, config: Any, geometry: Geometry, tokens: int) -> int:
    try:
        return max(1, activation_bytes(HeadSpec(name, config), geometry, tokens=tokens))
    except (RuntimeError, NotImplementedError) as error:
        # A user's head may look at values, which the meta device does not have.
        why = str(error).splitlines()[0]
        logger.info("the memory of head %s cannot be measured (%s): it reads every batch whole", name, why)
        return 1


def rows_at_once(head: Head, tokens: int, budget_gb: float) -> int:
    """How many windows of `tokens` tokens a head can read at once within the budget; 0 when not even one."""
    rounded = -(-tokens // 32) * 32  # few different lengths, because each is measured once
    window = _window_bytes(head.name, head.config, head.geometry, rounded) * tokens / rounded
    return int(budget_gb * 1e9 / window)
