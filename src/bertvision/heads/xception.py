"""Xception with kernels along the numbers of one token: entry and middle blocks, no striding, no exit.

        pooled states -> adapter (a), 1 channel
        Conv3/32 s2 valid - BN - ReLU - Conv5/64 - BN - ReLU
        3 entry blocks (128, 256, 728):  2 x (ReLU - SepConv5 - BN)  + (Conv1 - BN) of the block's input
        3 middle blocks (728):           3 x (ReLU - SepConv5 - BN)  + the block's input
        flatten (width * 728) -> Linear(C)

Only the size of this head is published; kernel 5 and three middle blocks meet it.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from bertvision.heads.adapter import Down
from bertvision.heads.base import Geometry, glorot_linear, register
from bertvision.heads.conv import BatchNorm, Conv, ConvHead, ConvNorm, Separable, avg_pool, max_pool
from bertvision.heads.layers import Gelu, check_at_least, pack, unpack
from bertvision.heads.pooling import LearnedMix
from bertvision.shapes import Bool, Float

__all__ = ["XceptionBlock", "XceptionMod", "XceptionModConfig", "middle_block"]


class XceptionBlock(nn.Module):
    """(ReLU - SepConv - BN) for each width [- pool 3, stride 2] + shortcut."""

    def __init__(
        self,
        inputs: int,
        widths: tuple[int, ...],
        kernel: int,
        *,
        lead: bool = True,
        pool: Literal["avg", "max"] | None = None,
        project: bool = True,
    ) -> None:
        super().__init__()
        self.lead, self.pool = lead, pool
        self.convs, self.norms = nn.ModuleList(), nn.ModuleList()
        for before, after in zip((inputs, *widths), widths, strict=False):
            self.convs.append(Separable(before, after, kernel))
            self.norms.append(BatchNorm(after))
        self.short = None
        if project:
            stride = (2,) if pool else (1,)
            self.short = nn.Sequential(Conv(inputs, widths[-1], 1, stride=stride), BatchNorm(widths[-1]))

    def forward(self, x: Float[Tensor, "N C W"]) -> Float[Tensor, "N D V"]:
        y = x
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            y = norm(conv(y.relu() if i or self.lead else y))
        if self.pool == "avg":
            y = avg_pool(y, 3, 2)
        elif self.pool == "max":
            y = max_pool(y, 3, (2,))
        return y + (x if self.short is None else self.short(x))


def middle_block(kernel: int) -> XceptionBlock:
    return XceptionBlock(728, (728,) * 3, kernel, project=False)


@dataclass(frozen=True)
class XceptionModConfig:
    adapter: int = 386
    """Numbers the pooled state is reduced to."""
    gelu: Gelu = "tanh"
    """The adapter's: tanh approximation as in the papers' TensorFlow code, erf for the exact one."""

    def __post_init__(self) -> None:
        check_at_least("xception_mod", "adapter", self.adapter, 3)  # the first kernel takes no padding


@register("xception_mod.v1", XceptionModConfig)
class XceptionMod(ConvHead):
    """gamma * softmax(w) over layers -> adapter -> Xception's entry and middle over its numbers -> Linear(C)."""

    def __init__(self, config: XceptionModConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        self.mix = LearnedMix(geometry.states)
        self.down = Down(geometry.hidden, config.adapter, kind=config.gelu, std=1e-3)
        self.blocks = nn.Sequential(
            ConvNorm(Conv(1, 32, 3, stride=(2,), valid=True)),
            ConvNorm(Conv(32, 64, 5)),
            XceptionBlock(64, (128, 128), 5, lead=False),
            XceptionBlock(128, (256, 256), 5),
            XceptionBlock(256, (728, 728), 5),
            *(middle_block(5) for _ in range(3)),
        )
        self.project = glorot_linear(728 * ((config.adapter - 3) // 2 + 1), geometry.outputs)

    def forward(self, states: Float[Tensor, "L B T H"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T C"]:
        reduced = self.down(self.mix(states))[..., : self.config.adapter]
        return unpack(self.in_parts(self._tokens, pack(reduced, mask)[:, None]), mask)

    def _tokens(self, x: Float[Tensor, "N 1 a"]) -> Float[Tensor, "N C"]:
        for block in self.blocks:
            x = self.run_block(block, x)
        return self.project(x.flatten(1))

    def layer_weights(self) -> list[float]:
        return self.mix.shares()
