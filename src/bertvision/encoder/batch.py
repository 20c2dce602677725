"""Windows become padded batches of tokens, and a Hugging Face model's pass makes hidden states of them.

On a GPU the pass is captured once per shape as a CUDA graph: a small encoder is otherwise bound by Python. The states a
replay gives lie in memory that the next call overwrites: whoever needs them longer copies them. That is what lets
graphs of many shapes share one pool of memory.
"""

import logging
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertvision.data.windows import Windows
from bertvision.shapes import Bool, Float, Int

logger = logging.getLogger(__name__)

_MOST = 64
"""Shapes whose pass is captured; rarer ones run as they are."""
T = TypeVar("T")


@dataclass(frozen=True)
class TokenBatch:
    ids: Int[Tensor, "B T"]
    mask: Bool[Tensor, "B T"]
    """True on real tokens."""
    types: Int[Tensor, "B T"]
    windows: NDArray[np.int64]  # (B,)


def padded_positions(
    offsets: NDArray[np.int64], indices: NDArray[np.int64], *, width: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Where the tokens of some windows stand in the flat arrays (B, T), and which are real (B, T).

    Pads point at their window's first token, so that a batch is one gather without a Python loop.
    """
    begins = offsets[indices]  # (B,)
    lengths = offsets[indices + 1] - begins  # (B,)
    columns = np.arange(width or lengths.max(initial=1))  # (T,)
    mask = columns < lengths[:, None]  # (B, T)
    return begins[:, None] + np.where(mask, columns, 0), mask


def collate(
    windows: Windows,
    indices: NDArray[np.int64],
    *,
    pad_id: int,
    device: torch.device,
    width: int | None = None,
) -> TokenBatch:
    """Pad the windows at `indices` to the longest of them, or to `width`."""
    flat, mask = padded_positions(windows.offsets, indices, width=width)
    ids, types = windows.ids[flat], windows.types[flat]  # copies, of 4 bytes and 1 byte a token
    ids[~mask], types[~mask] = pad_id, 0
    sent = [torch.from_numpy(array).to(device, non_blocking=True) for array in (ids, mask, types)]
    return TokenBatch(sent[0].long(), sent[1], sent[2].long(), np.asarray(indices, dtype=np.int64))


def read_tokens(
    model: Any,
    ids: Int[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    types: Int[Tensor, "B T"] | None,
    *,
    last_only: bool = False,
) -> tuple[Float[Tensor, "B T H"], ...]:
    """All hidden states of a Hugging Face model, or the last alone; gradients as usual."""
    inputs = {"input_ids": ids, "attention_mask": mask.long()}
    if types is not None:
        inputs["token_type_ids"] = types
    if last_only:
        return (model(**inputs).last_hidden_state,)
    # The last entry is the state after the final norm; it matters for pre-norm encoders.
    return model(**inputs, output_hidden_states=True).hidden_states


def pooled_by(
    model: Any, last: Float[Tensor, "B T H"], cls: Int[Tensor, " B"] | None = None
) -> Float[Tensor, "B H"] | None:
    """The pooler's vector of each window from the last state; None without a pooler.

    `cls` says where each window's classification token stands; None means first.
    """
    pooler = getattr(model, "pooler", None)
    if pooler is None:
        return None
    if cls is not None:
        # Every pooler reads the first token.
        last = last[torch.arange(len(cls), device=cls.device), cls][:, None]
    if isinstance(pooler, nn.Linear):  # ALBERT keeps its activation beside it
        return model.pooler_activation(pooler(last[:, 0]))
    return pooler(last)


def in_bf16(model: Any) -> Any:
    """Cast a model's weights in place; what its code computes anew, such as rotary frequencies, keeps its precision."""
    kept = [
        (module, name, module._buffers[name])
        for module in model.modules()
        for name in module._non_persistent_buffers_set
    ]
    model.to(torch.bfloat16)
    for module, name, buffer in kept:
        module._buffers[name] = buffer
    return model


# ---- CUDA graphs


class GraphCache:
    """CUDA graphs by key; they share one pool of memory.

    A graph is captured with the inputs and outputs of its function in fixed memory. What cannot be captured, because
    it looks at values on its way, is logged once and `possible` is False from then on.
    """

    def __init__(self, what: str, *, most: int = 1 << 20) -> None:
        """`what` is captured, for the log; beyond `most` keys `wanted` says no."""
        self.what, self.most, self.possible = what, most, True
        # A stream of its own: when graphs are dropped, torch clears the workspaces of the stream they were made on.
        self.stream = torch.cuda.Stream()
        self._seen: Counter[Hashable] = Counter()
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self.clear()

    def clear(self) -> None:
        self._graphs.clear()
        self._pool = torch.cuda.graph_pool_handle()  # a pool without graphs cannot be captured into again

    def __contains__(self, key: Hashable) -> bool:
        return key in self._graphs

    def __len__(self) -> int:
        return len(self._graphs)

    def wanted(self, key: Hashable) -> bool:
        """Whether to capture `key`, of which this counts a use: one that comes once would cost more than it takes."""
        self._seen[key] += 1
        return self.possible and self._seen[key] > 1 and len(self) < self.most

    def capture(self, key: Hashable, function: Callable[[], T]) -> T | None:
        """Capture a call of `function` without computing it; its result, or None where that is impossible.

        The result is the caller's: while it lives, no other graph uses its memory.
        """
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self.stream):
                result = function()
        except RuntimeError as error:
            logger.info("%s cannot be captured (%s)", self.what, str(error).splitlines()[0])
            self.possible = False
            return None
        self._graphs[key] = graph
        return result

    def replay(self, key: Hashable) -> None:
        self._graphs[key].replay()

    def beside(self, function: Callable[[], T]) -> T:
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            result = function()
        torch.cuda.current_stream().wait_stream(self.stream)
        return result


class CapturedForward:
    """Calls `forward`, and from the second time it sees a shape replays a CUDA graph of it."""

    def __init__(self, forward: Callable[[TokenBatch], tuple[Tensor, ...]]) -> None:
        self._forward = forward
        self._graphs = GraphCache("the encoder's forward pass", most=_MOST)
        self._static: dict[tuple[int, ...], TokenBatch] = {}
        self._layers: dict[tuple[int, ...], tuple[Tensor, ...]] = {}

    def __call__(self, batch: TokenBatch) -> tuple[Tensor, ...]:
        shape = tuple(batch.ids.shape)
        wanted = self._graphs.wanted(shape)
        if shape not in self._layers and not (wanted and self._capture(shape, batch)):
            return self._forward(batch)
        static = self._static[shape]
        for name in ("ids", "mask", "types"):
            getattr(static, name).copy_(getattr(batch, name), non_blocking=True)
        self._graphs.replay(shape)
        return self._layers[shape]

    def _capture(self, shape: tuple[int, ...], batch: TokenBatch) -> bool:
        static = TokenBatch(batch.ids.clone(), batch.mask.clone(), batch.types.clone(), batch.windows)
        layers = self._graphs.capture(shape, lambda: self._forward(static))
        if layers is None or not all(layer.is_contiguous() for layer in layers):
            self._graphs.possible = False
            return False
        self._static[shape], self._layers[shape] = static, tuple(_alias(layer) for layer in layers)
        return True


class _Place:
    """Memory of a tensor without its ownership."""

    def __init__(self, tensor: Tensor) -> None:
        words = tensor.element_size() // 2
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (tensor.numel() * words,),
            "typestr": "<i2",
            "data": (tensor.data_ptr(), False),
            "version": 3,
        }


def _alias(tensor: Tensor) -> Tensor:
    """The same memory; the pool may give it to the next shape's graph, which the tensor itself would forbid."""
    flat = torch.as_tensor(_Place(tensor), device=tensor.device)
    return flat.view(tensor.dtype).view(tensor.shape)
