"""Readouts: one vector of a token or a text, then a linear layer.

    last_state        states[-1]                                         the head of plain fine-tuning
    layer_reader      states[k]                                          what the encoder knows at one layer
    average_pooling   mean over layers, or of the first and the last     no parameters of its own
    learned_pooling   gamma * sum_l softmax(w)_l states_l                L + 1 parameters
    cls_linear        the pooler's vector, or the last layer's [CLS]
    tenney_small      learned pooling of the [CLS] channels
    mean_pooler       mean over the real tokens of a text, then learned pooling
    triplet           distances between the [CLS] vectors of texts; no linear layer

last_state and cls_linear are controls: fitted again on a frozen snapshot they show what refitting the classifier gains.
A layer_reader for each hidden state (`fit --heads each_layer`) shows at which layer an answer can be read: a linear
layer adds next to nothing of its own, and state 0 is the embedding output, what the words alone say. Learned pooling is
Tenney's scalar mix; the mean of the first and the last layer is from Ma et al., "Universal Text Representation from
BERT: An Empirical Study", 2019. Encoders that were tuned for sentences put the meaning of a text into the mean of its
tokens, not into [CLS] (Reimers and Gurevych, "Sentence-BERT: Sentence Embeddings using Siamese BERT-Networks", 2019);
`mean_pooler:last` is the control for what the mix of layers gains.

Sums are taken in the order that writes least: token heads mix the projected states instead of projecting a mixed copy
of all states, and mean_pooler takes the mean over tokens before the mix. All these steps are linear.

Channels (S, B, H) are the [CLS] vectors of all layers, and before them the pooler's vector where the encoder has a
pooler: S = L + 1 or L. So channel -1 is the last layer's [CLS], as in the papers' code.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertvision.errors import ConfigError
from bertvision.heads import fused
from bertvision.heads.base import Geometry, Head, StateBatch, register
from bertvision.heads.layers import glorot_linear, wide
from bertvision.heads.spec import HeadConfig, NoOptions, at_least
from bertvision.shapes import Float

Pooling = Literal["learned", "average"]


# ---- mixes of layers, and channels


class Mix(nn.Module):
    """A weighted sum of layers."""

    def weights(self) -> Float[Tensor, " L"]:
        raise NotImplementedError

    def forward(self, states: Float[Tensor, "L *batch H"]) -> Float[Tensor, "*batch H"]:
        if fused.usable(states):
            return fused.mix(states, self.weights())
        return (self.weights().to(states.dtype) @ states.flatten(1)).view(states.shape[1:])


class LearnedMix(Mix):
    """gamma * softmax(w): one weight a layer."""

    def __init__(self, states: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.empty(states).normal_(std=0.05))
        self.gamma = nn.Parameter(torch.ones(1))

    def weights(self) -> Float[Tensor, " L"]:
        return self.gamma * self.w.softmax(0)

    def shares(self) -> list[float]:
        """The learned weight of each layer, without the common scale."""
        return self.w.detach().softmax(0).tolist()


class AverageMix(Mix):
    """The same weight for every layer."""

    share: Tensor

    def __init__(self, states: int) -> None:
        super().__init__()
        self.register_buffer("share", torch.full((states,), 1 / states), persistent=False)

    def weights(self) -> Float[Tensor, " L"]:
        return self.share


def make_mix(pooling: Pooling, states: int) -> LearnedMix | AverageMix:
    return LearnedMix(states) if pooling == "learned" else AverageMix(states)


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
    """The one vector of a window: the pooled one, or the last layer's [CLS] where there is no pooler."""
    return batch.first[-1] if batch.pooled is None else batch.pooled


# ---- heads


class Readout(Head):
    """A vector -> Linear(H, C); `mix` makes it of the layers."""

    stackable = True

    def __init__(self, config: Any, geometry: Geometry, mix: Mix | None = None) -> None:
        super().__init__(config, geometry)
        self.mix = mix
        self.project = glorot_linear(geometry.hidden, geometry.outputs)

    def project_mixed(self, states: Float[Tensor, "L B T H"]) -> Float[Tensor, "B T C"]:
        """project(mix(states))."""
        assert self.mix is not None
        projected = F.linear(states, wide(self.project.weight, states))  # (L, B, T, C)
        mixed = torch.einsum("l,lbtc->btc", self.mix.weights().to(projected.dtype), projected)
        return mixed[..., : self.project.out_features] + self.project.bias


@register("last_state.v1", NoOptions)
class LastState(Readout):
    """states[-1] -> Linear(H, C)."""

    last_only = True

    def forward(self, batch: StateBatch) -> Float[Tensor, "B T C"]:
        return self.project(batch.states[-1])


@dataclass(frozen=True)
class LayerReaderConfig(HeadConfig):
    layer: int = at_least(-1, -1)
    """Index of the hidden state among those that are read: 0 is the embedding output, -1 the last one."""


@register("layer_reader.v1", LayerReaderConfig)
class LayerReader(Readout):
    """states[k] -> Linear(H, C); for windows that of the classification token."""

    units = ("token", "window")
    cls_only = True

    def __init__(self, config: LayerReaderConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        if config.layer >= geometry.states:
            raise ConfigError(
                f"layer_reader:layer={config.layer} does not exist: the encoder gives {geometry.states} hidden "
                f"states, numbered 0 to {geometry.states - 1}"
            )
        self.cls_only = geometry.unit == "window"

    def forward(self, batch: StateBatch) -> Float[Tensor, "B *T C"]:
        states = batch.first if self.cls_only else batch.states
        return self.project(states[self.config.layer])


def layer_of(head: Head) -> int | None:
    """Index of the state that a layer_reader reads; None for any other head."""
    return head.config.layer % head.geometry.states if isinstance(head, LayerReader) else None


@dataclass(frozen=True)
class AveragePoolingConfig(HeadConfig):
    of: Literal["all", "first-last"] = "all"
    """The layers whose mean is taken."""


@register("average_pooling.v1", AveragePoolingConfig)
class AveragePooling(Readout):
    """mean over layers -> Linear(H, C)."""

    def __init__(self, config: AveragePoolingConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry, AverageMix(geometry.states))

    def forward(self, batch: StateBatch) -> Float[Tensor, "B T C"]:
        if self.config.of == "first-last":
            return self.project((batch.states[0] + batch.states[-1]) / 2)
        return self.project_mixed(batch.states)


@register("learned_pooling.v1", NoOptions)
class LearnedPooling(Readout):
    """gamma * softmax(w) over layers -> Linear(H, C)."""

    def __init__(self, config: NoOptions, geometry: Geometry) -> None:
        super().__init__(config, geometry, LearnedMix(geometry.states))

    def forward(self, batch: StateBatch) -> Float[Tensor, "B T C"]:
        return self.project_mixed(batch.states)


@register("cls_linear.v1", NoOptions)
class ClsLinear(Readout):
    """pooled vector (last layer's [CLS] without a pooler) -> Linear(H, C)."""

    units = ("window",)
    last_only = True
    cls_only = True

    def forward(self, batch: StateBatch) -> Float[Tensor, "B C"]:
        return self.project(cls_vector(batch))


@register("tenney_small.v1", NoOptions)
class TenneySmall(Readout):
    """gamma * softmax(w) over the [CLS] channels -> Linear(H, C)."""

    units = ("window",)
    cls_only = True

    def __init__(self, config: NoOptions, geometry: Geometry) -> None:
        super().__init__(config, geometry, LearnedMix(num_channels(geometry)))

    def forward(self, batch: StateBatch) -> Float[Tensor, "B C"]:
        assert self.mix is not None
        return self.project(self.mix(channels(batch)))


@dataclass(frozen=True)
class MeanPoolerConfig(HeadConfig):
    last: bool = False
    """Read the last state alone instead of a learned mix of all."""


@register("mean_pooler.v1", MeanPoolerConfig)
class MeanPooler(Readout):
    """mean over tokens of gamma * softmax(w) over layers, or of the last state -> Linear(H, C)."""

    units = ("window",)

    def __init__(self, config: MeanPoolerConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry, None if config.last else LearnedMix(geometry.states))
        self.last_only = config.last

    def forward(self, batch: StateBatch) -> Float[Tensor, "B C"]:
        states = batch.states[-1:] if self.mix is None else batch.states
        sums = (batch.mask.to(states.dtype)[:, None] @ states).squeeze(-2)  # (L, B, H)
        # In float32: in bf16 a factor of 1/T is off by up to 0.4 %, the same for all numbers of a text.
        means = sums / batch.mask.sum(-1, keepdim=True).clamp(min=1).float()
        return self.project(means[0] if self.mix is None else self.mix(means))


@dataclass(frozen=True)
class TripletConfig(HeadConfig):
    negatives: int = at_least(1, 5)
    """n: texts of an example that should be far from the anchor."""


@register("triplet.v1", TripletConfig)
class Triplet(Head):
    """last layer's [CLS] of anchor, positive and negatives -> Euclidean distances to the anchor.

        window i * (2 + n)          anchor of example i
        window i * (2 + n) + 1      its positive
        the n windows that follow   its negatives

    The first distance (E, 1 + n) is the one that should be small. The triplet task makes a loss of the distances, which
    trains the encoder; this head has nothing to fit, so `bertvision heads` does not list it.
    """

    units = ()
    last_only = True
    cls_only = True

    @property
    def windows(self) -> int:
        return 2 + self.config.negatives

    def forward(self, batch: StateBatch) -> Float[Tensor, "E D"]:
        cls = batch.first[-1]  # (B, H)
        vectors = cls.to(torch.promote_types(cls.dtype, torch.float32)).unflatten(0, (-1, self.windows))
        # Equal vectors have distance 0 and gradient 0 there, so a text may be its own neighbour.
        return torch.linalg.vector_norm(vectors[:, 1:] - vectors[:, :1], dim=-1)
