"""CUDA graphs by key, and a frozen model's forward pass captured once per shape: a small encoder is otherwise bound by
Python.

The states a replay gives lie in memory that the next call overwrites: whoever needs them longer copies them. That is
what lets graphs of many shapes share one pool of memory.
"""

import logging
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch
from torch import Tensor

from bertvision.encoder.batch import TokenBatch

logger = logging.getLogger(__name__)

_MOST = 64
"""Shapes that are captured; rarer ones run as they are."""

T = TypeVar("T")
Forward = Callable[[TokenBatch], tuple[Tensor, ...]]


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
        """Compute it again, into the memory of the captured result, which the next graph may use."""
        self._graphs[key].replay()

    def beside(self, function: Callable[[], T]) -> T:
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            result = function()
        torch.cuda.current_stream().wait_stream(self.stream)
        return result


class CapturedForward:
    """Calls `forward`, and from the second time it sees a shape replays a CUDA graph of it."""

    def __init__(self, forward: Forward) -> None:
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
