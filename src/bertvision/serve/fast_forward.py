"""The forward pass of BERT and its kin on a CPU, and nothing beside it.

All windows of a call stand one behind the other in one matrix of tokens, without pads: linear layers do not care where
a window ends, and attention reads each window by itself (those of equal length together). Queries, keys and values come
from one product; weights lie in the order the processor likes (oneDNN), GELU is computed while its numbers are at hand.
N tokens, W windows, H features.

What comes out are the states that the model's own code gives, but for rounding (sums in another order), and zeros on
pads, which nobody reads. Whether that is so is tried once, on two short windows, before any answer is made of it.
"""

from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertvision.serve.fast_known import Block, Parts
from bertvision.shapes import Bool, Float, Int

__all__ = ["FastForward", "pack_linear"]

_BIAS_STEP = 128
"""Widths for which a bias of distances is computed at once: that of a narrower window is a corner of it."""

_ROUND = 16
"""Attention is a tenth faster over such multiples of keys: a window takes rows of the one behind it along, masked."""


def pack_linear(weight: Tensor) -> Tensor:
    """A linear layer's weight in the processor's order."""
    return torch.ops.mkldnn._reorder_linear_weight.default(weight.detach())


class _Linear:
    """One product with weights of one or several layers side by side, and GELU behind it where asked for."""

    def __init__(self, *layers: nn.Linear, gelu: bool = False) -> None:
        self._weight = pack_linear(torch.cat([layer.weight.detach() for layer in layers]))
        biases = [layer.bias for layer in layers if layer.bias is not None]
        if len(biases) not in (0, len(layers)):
            raise RuntimeError("some of the layers have a bias and some have none")
        self._bias = torch.cat([bias.detach() for bias in biases]) if biases else None
        self._after = ("gelu", [], "none") if gelu else ("none", [], "")
        self._call = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: Float[Tensor, "N inputs"]) -> Float[Tensor, "N outputs"]:
        return self._call(x, self._weight, self._bias, *self._after)


class _Norm:
    def __init__(self, norm: nn.LayerNorm) -> None:
        weight, bias = norm.weight, norm.bias
        self._rest = norm.normalized_shape, weight.detach(), None if bias is None else bias.detach(), norm.eps

    def __call__(self, x: Float[Tensor, "N H"]) -> Float[Tensor, "N H"]:
        return F.layer_norm(x, *self._rest)


@dataclass(frozen=True)
class _Run:
    """Neighbouring windows that are equally long."""

    begin: int
    """Their first token."""
    count: int
    length: int
    keys: int
    """How many rows attention looks at: a window by itself may look past its end, see _ROUND."""
    mask: Tensor | None
    """What is added to the attention's scores."""


class _Layer:
    def __init__(self, block: Block, heads: int) -> None:
        self._heads = heads
        self._read = _Linear(block.query, block.key, block.value)
        self._mix, self._mix_norm = _Linear(block.mix), _Norm(block.mix_norm)
        self._rise, self._fall = _Linear(block.rise, gelu=True), _Linear(block.fall)
        self._fall_norm = _Norm(block.fall_norm)

    def __call__(self, x: Float[Tensor, "N H"], runs: list[_Run]) -> Float[Tensor, "N H"]:
        x = self._mix_norm(self._mix(self._attend(self._read(x), runs)).add_(x))
        return self._fall_norm(self._fall(self._rise(x)).add_(x))

    def _attend(self, read: Float[Tensor, "N QKV"], runs: list[_Run]) -> Float[Tensor, "N H"]:
        found: list[Tensor] = []
        for run in runs:
            rows = read[run.begin : run.begin + run.count * run.length]
            query, key, value = self._heads_of(rows, run.count)
            if run.keys > run.length:
                _, key, value = self._heads_of(read[run.begin : run.begin + run.keys], 1)
            mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=run.mask)
            found.append(mixed.transpose(1, 2).reshape(len(rows), -1))
        return found[0] if len(found) == 1 else torch.cat(found)

    def _heads_of(self, rows: Float[Tensor, "n QKV"], count: int) -> tuple[Tensor, ...]:
        """Queries, keys and values of so many windows, (count, heads, length, d) each."""
        return (
            rows.view(count, -1, 3, self._heads, rows.shape[1] // 3 // self._heads)
            .permute(2, 0, 3, 1, 4)
            .unbind()
        )


class FastForward:
    """An encoder's parts, packed."""

    def __init__(self, parts: Parts) -> None:
        """Raises RuntimeError where the processor has no such kernels."""
        self._parts = parts
        self._norm = _Norm(parts.norm)
        self._project = None if parts.project is None else _Linear(parts.project)
        self._layers = [_Layer(block, parts.heads) for block in parts.blocks]
        self._places = parts.places
        if parts.types is not None:  # what tokens without a segment of their own add is the same for all
            self._untyped = parts.places + parts.types[0]
        else:
            self._untyped = parts.places
        self._bias: Tensor | None = None  # (1, heads, T, T) for the widest window so far

    def __call__(
        self,
        ids: Int[Tensor, "B T"],
        mask: Bool[Tensor, "B T"],
        types: Int[Tensor, "B T"] | None,
        *,
        last_only: bool = False,
    ) -> tuple[Float[Tensor, "B T H"] | None, ...] | None:
        """All states, None in place of those that nobody wants; nothing where real tokens do not stand in front."""
        lengths = mask.sum(dim=1).tolist()
        full = min(lengths) == mask.shape[1]
        if not (full or _in_front(mask, lengths)):
            return None
        real = None if full else mask.flatten().nonzero().squeeze(1)  # (N,) where the tokens stand
        x = self._embed(ids, types, real)
        runs = _runs(lengths, self._bias_of(max(lengths)))
        kept: list[Tensor | None] = [None if last_only else x]
        for layer in self._layers:
            x = layer(x, runs)
            kept.append(None if last_only else x)
        kept[-1] = x
        return tuple(None if one is None else _padded(one, mask, real) for one in kept)

    def _embed(
        self, ids: Int[Tensor, "B T"], types: Int[Tensor, "B T"] | None, real: Tensor | None
    ) -> Float[Tensor, "N H"]:
        parts, flat = self._parts, ids.flatten()
        if parts.pad is None:
            places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids).reshape(-1)
        else:
            counted = ids != parts.pad
            places = (counted.cumsum(dim=1) * counted).flatten() + parts.pad
        types = None if types is None else types.flatten()
        if real is not None:
            flat, places = flat[real], places[real]
            types = None if types is None else types[real]
        x = F.embedding(flat, parts.words)
        if types is None or parts.types is None:
            x += F.embedding(places, self._untyped)
        else:
            x += F.embedding(types, parts.types)
            x += F.embedding(places, parts.places)
        x = self._norm(x)
        return x if self._project is None else self._project(x)

    def _bias_of(self, width: int) -> Tensor | None:
        if self._parts.biased is None:
            return None
        bias = self._bias  # another thread may put a narrower one there at any time
        if bias is None or bias.shape[-1] < width:
            wide = -(-width // _BIAS_STEP) * _BIAS_STEP
            bias = self._bias = self._parts.biased(torch.empty(1, wide, 1, device="cpu")).detach()
        return bias


def _in_front(mask: Bool[Tensor, "B T"], lengths: list[int]) -> bool:
    """Whether every window begins with its real tokens and has no pad between them."""
    return min(lengths) > 0 and bool((mask[:, :-1] >= mask[:, 1:]).all())


def _runs(lengths: list[int], bias: Tensor | None) -> list[_Run]:
    """The windows of a call, those of equal length that stand side by side together."""
    runs: list[_Run] = []
    begin, total = 0, sum(lengths)
    for length, group in groupby(lengths):
        count, keys, mask = len(list(group)), length, None
        if bias is not None:
            mask = bias[:, :, :length, :length]
        elif count == 1 and length % _ROUND and begin + length + -length % _ROUND <= total:
            keys = length + -length % _ROUND
            # Of its own kind and place, whatever others have made torch's default.
            mask = torch.zeros(1, 1, 1, keys, dtype=torch.float32, device="cpu")
            mask[..., length:] = -torch.inf
        runs.append(_Run(begin, count, length, keys, mask))
        begin += count * length
    return runs


def _padded(x: Float[Tensor, "N H"], mask: Bool[Tensor, "B T"], real: Tensor | None) -> Tensor:
    if real is None:
        return x.view(*mask.shape, -1)
    return x.new_zeros(mask.numel(), x.shape[1]).index_copy_(0, real, x).view(*mask.shape, -1)
