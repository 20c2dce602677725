"""Hulburd's context-aware CNN: filters made from a window are slid over that same window.

    simple   Z (T, H) --conv k=5--> ReLU + bias --max over 8--> dropout --pool along T--> filters (rows, H, n)
    ctx      Z --convs of widths 3, 5, 7--> ReLU --max or sum over T--> c (H) --conv k=5--> filters (rows, H, n)
    both     Z * filters ('same' along T) --> (T, n), its halves --> Linear(1) each --> start, end

Z is the last hidden state, zero at pads. After D. Shen et al., "Learning Context-Sensitive Convolutional Filters for
Text Processing", 2017. The simple variant follows public code of the author, ctx only the study's text.

Pooling along T: windows of 100 tokens, stride 50, give 6 rows at the study's 384 tokens. Here a window of any number N
of real tokens gives `rows` rows: row r covers the real tokens from r * s to (r + 2) * s, with s = N * 350 / 384 /
(rows + 1), the study's grid at N = 384 and six rows. With fewer tokens the grid shrinks where the study fills rows with
pads: so pads enter no number, and the padded length of a batch changes no logit.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertvision.errors import ConfigError
from bertvision.heads.base import Geometry, Head, StateBatch, register
from bertvision.heads.layers import Dropout, truncated_normal_
from bertvision.heads.spec import HeadConfig, at_least, rate
from bertvision.shapes import Bool, Float


@dataclass(frozen=True)
class CaCnnConfig(HeadConfig):
    variant: Literal["simple", "ctx"] = "simple"  # filters from stretches of the text, or a context vector
    n: int = at_least(0, 0)  # filters of a window, half of them for the start; 0 = 4 (simple) or 8 (ctx)
    rows: int = at_least(0, 0)  # tokens a filter spans; 0 = 6 (simple, the study's at 384 tokens) or 5 (ctx)
    kernel: int = at_least(1, 5)  # tokens (ctx: numbers of the vector) that a filter's number is made from
    pool: Literal["max", "mean"] = "max"  # simple: what a row takes from its stretch of the text
    dropout: float = rate(0.2)  # simple: before that
    bank: str = "3-5-7"  # ctx: widths of the convolutions that read the text
    filters: int = at_least(0, 0)  # ctx: outputs of each of them; 0 = H in all
    reduce: Literal["max", "sum"] = "max"  # ctx: how the context vector is made from all tokens
    maps: int = at_least(0, 0)  # ctx: numbers made from each number of the context vector; 0 = rows * n
    fill: Literal["concat", "tile"] = "concat"  # ctx: these as they come, or repeated and cut to fit
    mask_question: bool = False  # slide over the paragraph alone; hides [CLS] too, where no answer is marked

    def check(self) -> None:
        if self.n % 2:
            raise ConfigError(f"n of cacnn must be even, half of it makes the start, not {self.n}")
        if not all(part.isdecimal() and 0 < int(part) < 1000 for part in self.bank.split("-")):
            raise ConfigError(f"bank of cacnn must be widths such as 3-5-7, not {self.bank!r}")


class SameConv(nn.Conv1d):
    """Convolution that keeps T; of an even width the larger half reaches to the right, as in Keras."""

    def __init__(self, inputs: int, outputs: int, width: int) -> None:
        super().__init__(inputs, outputs, width)
        nn.init.xavier_uniform_(self.weight)
        assert self.bias is not None
        nn.init.zeros_(self.bias)

    def forward(self, input: Float[Tensor, "B F T"]) -> Float[Tensor, "B G T"]:
        width = self.kernel_size[0]
        return super().forward(F.pad(input, ((width - 1) // 2, width // 2)))


def slide(z: Float[Tensor, "B H T"], filters: Float[Tensor, "B n H rows"]) -> Float[Tensor, "B n T"]:
    """Every window convolved with its own filters: one convolution with a group for each window."""
    B, H, T = z.shape
    n, rows = filters.shape[1], filters.shape[3]
    wide = F.pad(z, ((rows - 1) // 2, rows // 2))
    if torch.compiler.is_exporting():  # in ONNX groups are a fixed number: a product for every row instead
        return torch.stack([filters[..., r] @ wide[..., r : r + T] for r in range(rows)]).sum(0)
    wide = wide.reshape(1, B * H, -1)
    return F.conv1d(wide, filters.reshape(B * n, H, rows).to(z.dtype), groups=B).view(B, n, T)


def pool_rows(
    x: Float[Tensor, "B F T"], mask: Bool[Tensor, "B T"], rows: int, pool: Literal["max", "mean"]
) -> Float[Tensor, "B F rows"]:
    """Max or mean over overlapping stretches of the real tokens, as many as `rows`."""
    count = mask.sum(1, keepdim=True)
    place = mask.cumsum(1) - 1  # of a token among the real ones
    found = []
    for r in range(rows):
        # Whole numbers, so that 384 tokens and 6 rows give 50 r to 50 r + 100 exactly; never an empty row.
        first = r * count * 350 // (384 * (rows + 1))
        past = -(-(r + 2) * count * 350 // (384 * (rows + 1)))
        outside = (~mask | (place < first) | (place >= past))[:, None]  # (B, 1, T)
        if pool == "max":
            found.append(x.masked_fill(outside, float("-inf")).max(-1).values)
        else:
            found.append(x.masked_fill(outside, 0).sum(-1) / (past - first))
    return torch.stack(found, dim=-1)


class SimpleFilters(nn.Module):
    """conv(H, H * n) -> ReLU + bias -> max over 8 tokens -> dropout -> pooled along T to `rows`."""

    def __init__(self, config: CaCnnConfig, hidden: int, n: int, rows: int) -> None:
        super().__init__()
        self.config, self.n, self.rows = config, n, rows
        self.generate = SameConv(hidden, hidden * n, config.kernel)
        self.after_bias = nn.Parameter(torch.empty(hidden * n))
        truncated_normal_(self.after_bias, 1.0)
        self.dropout = Dropout(config.dropout)

    def forward(self, z: Float[Tensor, "B H T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B n H rows"]:
        x = self.generate(z).relu()
        x = (x + self.after_bias[:, None].to(x.dtype)).masked_fill(~mask[:, None], float("-inf"))
        # Of 8 neighbours along T; only the pool over two axes is exported for any T.
        x = F.max_pool2d(F.pad(x, (3, 4), value=float("-inf"))[:, :, None], (1, 8), stride=1)[:, :, 0]
        x = self.dropout(x.masked_fill(~mask[:, None], 0))  # zero times infinity is NaN
        return pool_rows(x, mask, self.rows, self.config.pool).view(z.shape[0], self.n, z.shape[1], self.rows)


class ContextFilters(nn.Module):
    """convs of several widths -> ReLU -> max or sum over T -> conv over the vector -> filled up to rows * H * n."""

    def __init__(self, config: CaCnnConfig, hidden: int, n: int, rows: int) -> None:
        super().__init__()
        self.config, self.n, self.rows = config, n, rows
        widths = [int(width) for width in config.bank.split("-")]
        share, rest = divmod(hidden, len(widths))
        sizes = [config.filters or share + (i < rest) for i in range(len(widths))]
        if min(sizes) < 1:
            raise ConfigError(f"bank of cacnn has {len(widths)} widths, too many for {hidden} features")
        maps, needed = config.maps or rows * n, rows * hidden * n
        if config.fill == "concat" and sum(sizes) * maps != needed:
            wrong = f"cacnn makes {sum(sizes)} * {maps} numbers and its filters need {needed}"
            raise ConfigError(f"{wrong}: set fill=tile, or leave filters and maps at 0")
        self.bank = nn.ModuleList(SameConv(hidden, size, w) for size, w in zip(sizes, widths, strict=True))
        self.generate = SameConv(1, maps, config.kernel)

    def forward(self, z: Float[Tensor, "B H T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B n H rows"]:
        B, H, _ = z.shape
        found = []
        for conv in self.bank:
            # A ReLU's output is never below zero, so zeros at pads change neither sum nor maximum.
            x = conv(z).relu().masked_fill(~mask[:, None], 0)
            found.append(x.max(-1).values if self.config.reduce == "max" else x.sum(-1))
        context = torch.cat(found, dim=1)[:, None]  # (B, 1, C1)
        numbers = self.generate(context).flatten(1)  # (B, maps * C1)
        needed = self.n * self.rows * H
        times = -(-needed // numbers.shape[1])
        return numbers.repeat(1, times)[:, :needed].view(B, self.n, self.rows, H).mT


@register("cacnn.v1", CaCnnConfig)
class CaCnn(Head):
    """filters made from the window, slid over states[-1] -> (T, n) -> Linear(n/2, 1) for start and end."""

    stackable = True
    last_only = True

    def __init__(self, config: CaCnnConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        if geometry.outputs != 2:
            raise ConfigError(f"cacnn makes 2 outputs a token, a start and an end, not {geometry.outputs}")
        self.reads_context = config.mask_question
        simple = config.variant == "simple"
        n, rows = config.n or (4 if simple else 8), config.rows or (6 if simple else 5)
        kind = SimpleFilters if simple else ContextFilters
        self.make = kind(config, geometry.hidden, n, rows)
        self.start, self.end = nn.Linear(n // 2, 1), nn.Linear(n // 2, 1)
        for layer in (self.start, self.end):
            truncated_normal_(layer.weight, 0.03)
            nn.init.constant_(layer.bias, 0.01)

    def forward(self, batch: StateBatch) -> Float[Tensor, "B T C"]:
        z = batch.states[-1].mT.masked_fill(~batch.mask[:, None], 0)  # (B, H, T)
        filters = self.make(z, batch.mask)
        if self.config.mask_question:
            z = z.masked_fill(~batch.context[:, None], 0)
        start, end = slide(z, filters).mT.chunk(2, dim=-1)  # (B, T, n / 2)
        return torch.cat([self.start(start), self.end(end)], dim=-1)
