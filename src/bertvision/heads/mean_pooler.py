"""Mean pooling of a text: every token counts alike, the layers as much as is learned.

    m_l    = mean over the window's real tokens of states_l        (B, H) a layer
    logits = Linear(gamma * sum_l softmax(w)_l m_l)                `last`: Linear(m_{L-1}), no layer weights

Why: encoders that were tuned for sentences put the meaning of a text into the mean of its tokens, not into [CLS]
(Reimers and Gurevych, "Sentence-BERT: Sentence Embeddings using Siamese BERT-Networks", 2019). `last` is the control:
what the mix gains beyond it comes from the other layers.

The mean over tokens is taken before the mix, which is the same sum and writes no mixed copy of the states. The sum is
divided in float32: in bf16 a factor of 1/T is off by up to 0.4 %, the same for all numbers of a text.
"""

from dataclasses import dataclass

from torch import Tensor

from bertvision.heads.base import Geometry, Head, StateBatch, glorot_linear, register
from bertvision.heads.options import HeadConfig
from bertvision.heads.pooling import LearnedMix
from bertvision.shapes import Float


@dataclass(frozen=True)
class MeanPoolerConfig(HeadConfig):
    last: bool = False
    """Read the last state alone instead of a learned mix of all."""


@register("mean_pooler.v1", MeanPoolerConfig)
class MeanPooler(Head):
    """mean over tokens of gamma * softmax(w) over layers, or of the last state -> Linear(H, C)."""

    units = ("window",)
    stackable = True

    def __init__(self, config: MeanPoolerConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        self.last_only = config.last
        self.mix = None if config.last else LearnedMix(geometry.states)
        self.project = glorot_linear(geometry.hidden, geometry.outputs)

    def forward(self, batch: StateBatch) -> Float[Tensor, "B C"]:
        states = batch.states[-1:] if self.mix is None else batch.states
        sums = (batch.mask.to(states.dtype)[:, None] @ states).squeeze(-2)  # (L, B, H)
        means = sums / batch.mask.sum(-1, keepdim=True).clamp(min=1).float()
        return self.project(means[0] if self.mix is None else self.mix(means))
