"""Readouts: one vector of a token or a text, then a linear layer or a few dense ones.

last_state and cls_linear are controls: fitted again on a frozen snapshot they show what refitting the classifier gains.
A layer_reader for each hidden state (`fit --heads each_layer`) shows at which layer an answer can be read; state 0 is
the embedding output. Learned pooling is Tenney's scalar mix; the mean of the first and the last layer is from Ma et
al., "Universal Text Representation from BERT: An Empirical Study", 2019. Encoders tuned for sentences put the meaning
of a text into the mean of its tokens (Reimers and Gurevych, "Sentence-BERT", 2019).

The width h of the MLPs follows from an adapter over all layers: what that gains beyond an MLP of as many parameters
comes from the other layers, not from its size. `activation=none` is a linear map of the same size.

Sums are taken in the order that writes least: token heads mix the projected states, mean_pooler takes the mean over
tokens before the mix. All these steps are linear.

Channels (S, B, H) are the [CLS] vectors of all layers, and before them the pooler's vector where the encoder has a
pooler: S = L + 1 or L. So channel -1 is the last layer's [CLS], as in the papers' code.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertvision.errors import ConfigError
from bertvision.heads import fused
from bertvision.heads.base import Geometry, Head, StateBatch, register
from bertvision.heads.layers import Dropout, gelu, glorot_linear, wide
from bertvision.heads.spec import HeadConfig, at_least, rate
from bertvision.shapes import Float

Pooling = Literal["learned", "average"]


# ---- mixes of layers, and channels


class Mix(nn.Module):
    """A weighted sum of layers: gamma * softmax(w), or the same weight for all (average)."""

    share: Tensor

    def __init__(self, states: int, pooling: Pooling = "learned") -> None:
        super().__init__()
        self.learned = pooling == "learned"
        if self.learned:
            self.w = nn.Parameter(torch.empty(states).normal_(std=0.05))
            self.gamma = nn.Parameter(torch.ones(1))
        else:
            self.register_buffer("share", torch.full((states,), 1 / states), persistent=False)

    def weights(self) -> Float[Tensor, " L"]:
        return self.gamma * self.w.softmax(0) if self.learned else self.share

    def shares(self) -> list[float] | None:
        """Learned weights without the common scale."""
        return self.w.detach().softmax(0).tolist() if self.learned else None

    def forward(self, states: Float[Tensor, "L *batch H"]) -> Float[Tensor, "*batch H"]:
        if fused.usable(states):
            return fused.mix(states, self.weights())
        return (self.weights().to(states.dtype) @ states.flatten(1)).view(states.shape[1:])


def channels(batch: StateBatch) -> Float[Tensor, "S B H"]:
    """The pooled vector, where there is one, and the [CLS] vectors of all layers."""
    cls = batch.first
    if batch.pooled is None:
        return cls
    if cls.dtype == torch.float16:  # stored so; under autocast to bf16 torch joins no float16 to anything
        cls = cls.float()
    return torch.cat([batch.pooled[None].to(cls.dtype), cls])


def num_channels(geometry: Geometry) -> int:
    return geometry.states + geometry.pooled


def cls_vector(batch: StateBatch) -> Float[Tensor, "B H"]:
    """The pooled vector, or the last layer's [CLS] where there is no pooler."""
    return batch.first[-1] if batch.pooled is None else batch.pooled


# ---- a linear layer


class Readout(Head):
    """A vector, or what `pooling` makes of the states (with `cls_only`: of the channels) -> Linear(H, C)."""

    stackable = True
    pooling: ClassVar[Pooling | None] = None

    def __init__(self, config: Any, geometry: Geometry, *, pooling: Pooling | None = None) -> None:
        super().__init__(config, geometry)
        pooling = pooling or self.pooling
        states = num_channels(geometry) if self.cls_only else geometry.states
        self.mix: Any = Mix(states, pooling) if pooling else None
        self.project = glorot_linear(geometry.hidden, geometry.outputs)

    def project_mixed(self, states: Float[Tensor, "L B T H"]) -> Float[Tensor, "B T C"]:
        projected = F.linear(states, wide(self.project.weight, states))  # (L, B, T, C)
        mixed = torch.einsum("l,lbtc->btc", self.mix.weights().to(projected.dtype), projected)
        return mixed[..., : self.project.out_features] + self.project.bias


@register("last_state.v1")
class LastState(Readout):
    """states[-1] -> Linear(H, C)."""

    last_only = True

    def forward(self, batch: StateBatch) -> Float[Tensor, "B T C"]:
        return self.project(batch.states[-1])


@dataclass(frozen=True)
class LayerReaderConfig(HeadConfig):
    layer: int = at_least(-1, -1)  # 0 is the embedding output, -1 the last of those that are read


@register("layer_reader.v1", LayerReaderConfig)
class LayerReader(Readout):
    """states[k] -> Linear(H, C); for windows that of the classification token."""

    units = ("token", "window")
    cls_only = True

    def __init__(self, config: LayerReaderConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        if config.layer >= geometry.states:
            found = f"the encoder gives {geometry.states} hidden states, numbered 0 to {geometry.states - 1}"
            raise ConfigError(f"layer_reader:layer={config.layer} does not exist: {found}")
        self.cls_only = geometry.unit == "window"

    def forward(self, batch: StateBatch) -> Float[Tensor, "B *T C"]:
        states = batch.first if self.cls_only else batch.states
        return self.project(states[self.config.layer])


def layer_of(head: Head) -> int | None:
    """Index of the state that a layer_reader reads; None for any other head."""
    return head.config.layer % head.geometry.states if isinstance(head, LayerReader) else None


@dataclass(frozen=True)
class AveragePoolingConfig(HeadConfig):
    of: Literal["all", "first-last"] = "all"  # the layers whose mean is taken


@register("average_pooling.v1", AveragePoolingConfig)
class AveragePooling(Readout):
    """mean over layers -> Linear(H, C)."""

    pooling = "average"

    def forward(self, batch: StateBatch) -> Float[Tensor, "B T C"]:
        if self.config.of == "first-last":
            return self.project((batch.states[0] + batch.states[-1]) / 2)
        return self.project_mixed(batch.states)


@register("learned_pooling.v1")
class LearnedPooling(Readout):
    """gamma * softmax(w) over layers -> Linear(H, C)."""

    pooling = "learned"

    def forward(self, batch: StateBatch) -> Float[Tensor, "B T C"]:
        return self.project_mixed(batch.states)


@register("cls_linear.v1")
class ClsLinear(Readout):
    """pooled vector (last layer's [CLS] without a pooler) -> Linear(H, C)."""

    units = ("window",)
    last_only = True
    cls_only = True

    def forward(self, batch: StateBatch) -> Float[Tensor, "B C"]:
        return self.project(cls_vector(batch))


@register("tenney_small.v1")
class TenneySmall(Readout):
    """gamma * softmax(w) over the [CLS] channels -> Linear(H, C)."""

    units = ("window",)
    cls_only = True
    pooling = "learned"

    def forward(self, batch: StateBatch) -> Float[Tensor, "B C"]:
        return self.project(self.mix(channels(batch)))


@dataclass(frozen=True)
class MeanPoolerConfig(HeadConfig):
    last: bool = False  # read the last state alone instead of a learned mix of all


@register("mean_pooler.v1", MeanPoolerConfig)
class MeanPooler(Readout):
    """mean over tokens of gamma * softmax(w) over layers, or of the last state -> Linear(H, C)."""

    units = ("window",)

    def __init__(self, config: MeanPoolerConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry, pooling=None if config.last else "learned")
        self.last_only = config.last

    def forward(self, batch: StateBatch) -> Float[Tensor, "B C"]:
        states = batch.states[-1:] if self.config.last else batch.states
        sums = (batch.mask.to(states.dtype)[:, None] @ states).squeeze(-2)  # (L, B, H)
        # In float32: in bf16 a factor of 1/T is off by up to 0.4 %, the same for all numbers of a text.
        means = sums / batch.mask.sum(-1, keepdim=True).clamp(min=1).float()
        return self.project(means[0] if self.config.last else self.mix(means))


# ---- dense layers


@dataclass(frozen=True)
class ClsMLPConfig(HeadConfig):
    match: int = at_least(1, 386)  # size of the adapter (adapter_pooler) that is as large
    width: int = at_least(0, 0)  # hidden numbers; 0 = from `match`
    dropout: float = rate()


@dataclass(frozen=True)
class LastStateMLPConfig(ClsMLPConfig):
    activation: Literal["gelu", "none"] = "gelu"  # none: a linear map of the same number of parameters


@register("last_state_mlp.v1", LastStateMLPConfig)
class LastStateMLP(Head):
    """states[-1] -> Linear(H, h) -> GELU -> Linear(h, C), as many parameters as an adapter."""

    stackable = True
    last_only = True

    def __init__(self, config: Any, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        L, H, C, match = geometry.states, geometry.hidden, geometry.outputs, config.match
        # Beside the output bias: a mix of the channels, and an output layer that reads channel -1 too; or one over all.
        others = num_channels(geometry) + 1 + (match + H) * C if self.cls_only else match * L * C
        self.width = config.width or max(1, round((match * (H + 1) + others) / (H + 1 + C)))
        self.down = glorot_linear(H, self.width)
        self.dropout = Dropout(config.dropout)
        self.project = glorot_linear(self.width, C)

    def forward(self, batch: StateBatch) -> Float[Tensor, "B *T C"]:
        hidden = self.down(batch.first[-1] if self.cls_only else batch.states[-1])
        linear = getattr(self.config, "activation", "gelu") == "none"
        return self.project(self.dropout(hidden if linear else gelu(hidden, "tanh")))


@register("cls_mlp.v1", ClsMLPConfig)
class ClsMLP(LastStateMLP):
    """last layer's [CLS] -> Linear(H, h) -> GELU -> Linear(h, C), as many parameters as adapter_pooler."""

    units = ("window",)
    cls_only = True


@dataclass(frozen=True)
class MinBertConfig(HeadConfig):
    blocks: int = at_least(0, 4)  # hidden layers
    width: int = at_least(0, 0)  # numbers in each of them; 0 = H
    dropout: float = rate(0.1)
    vectors: int = 1  # 2 reads two texts that were encoded apart, 1 reads one window

    def check(self) -> None:
        if self.vectors not in (1, 2):
            raise ConfigError(f"vectors of minbert must be 1 or 2, not {self.vectors}")


@register("minbert.v1", MinBertConfig)
class MinBert(Head):
    """pooled vector, or two -> (Linear -> LayerNorm -> dropout -> ReLU) x blocks -> Linear(C).

    The study's "5 densely connected layers" are read as four blocks and the output layer. With `vectors=2` rows 2i and
    2i + 1 of a batch are the texts of example i, encoded apart.
    """

    units = ("window",)
    stackable = True
    last_only = True
    cls_only = True

    def __init__(self, config: MinBertConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        self.windows = config.vectors
        width, inputs = config.width or geometry.hidden, config.vectors * geometry.hidden
        layers: list[nn.Module] = []
        for _ in range(config.blocks):
            layers += [nn.Linear(inputs, width), nn.LayerNorm(width), Dropout(config.dropout), nn.ReLU()]
            inputs = width
        self.blocks = nn.Sequential(*layers)
        self.project = nn.Linear(inputs, geometry.outputs)

    def forward(self, batch: StateBatch) -> Float[Tensor, "examples C"]:
        vector = cls_vector(batch)
        pairs = vector.reshape(vector.shape[0] // self.windows, -1)  # (examples, vectors * H)
        return self.project(self.blocks(pairs))


# ---- distances


@dataclass(frozen=True)
class TripletConfig(HeadConfig):
    negatives: int = at_least(1, 5)  # n: texts of an example that should be far from the anchor


@register("triplet.v1", TripletConfig)
class Triplet(Head):
    """last layer's [CLS] of anchor, positive and negatives -> Euclidean distances to the anchor.

    Example i is the windows from i * (2 + n) on: anchor, positive, n negatives. The first of the distances (E, 1 + n)
    should be small. The task makes a loss of them, which trains the encoder: this head has nothing to fit.
    """

    units = ()
    last_only = True
    cls_only = True

    def __init__(self, config: TripletConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        self.windows = 2 + config.negatives

    def forward(self, batch: StateBatch) -> Float[Tensor, "E D"]:
        cls = batch.first[-1]  # (B, H)
        vectors = cls.to(torch.promote_types(cls.dtype, torch.float32)).unflatten(0, (-1, self.windows))
        # Equal vectors have distance 0 and gradient 0 there, so a text may be its own neighbour.
        return torch.linalg.vector_norm(vectors[:, 1:] - vectors[:, :1], dim=-1)
