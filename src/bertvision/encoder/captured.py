"""A frozen model's forward pass captured once per shape and replayed: a small encoder is otherwise bound by Python.

The states a replay gives lie in memory that the next call overwrites: whoever needs them longer copies them, as
sources of states do anyway. That is what lets graphs of many shapes share one pool of memory.
"""

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bertvision.encoder.batch import TokenBatch

__all__ = ["CapturedForward"]

logger = logging.getLogger(__name__)

_MOST = 64
"""Shapes that are captured; rarer ones run as they are."""

Forward = Callable[[TokenBatch], tuple[Tensor, ...]]


class CapturedForward:
    """Calls `forward`, and from the second time it sees a shape replays a CUDA graph of it."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # of its own: graphs of heads come and go on another
        self._seen: Counter[tuple[int, ...]] = Counter()
        self._graphs: dict[tuple[int, ...], tuple[torch.cuda.CUDAGraph, TokenBatch, tuple[Tensor, ...]]] = {}
        self._possible = True

    def __call__(self, batch: TokenBatch) -> tuple[Tensor, ...]:
        shape = tuple(batch.ids.shape)
        self._seen[shape] += 1
        if shape not in self._graphs:
            if not self._possible or self._seen[shape] < 2 or len(self._graphs) == _MOST:
                return self._forward(batch)
            if not self._capture(batch):
                return self._forward(batch)
        graph, static, layers = self._graphs[shape]
        for name in ("ids", "mask", "types"):
            getattr(static, name).copy_(getattr(batch, name), non_blocking=True)
        graph.replay()
        return layers

    def _capture(self, batch: TokenBatch) -> bool:
        static = TokenBatch(batch.ids.clone(), batch.mask.clone(), batch.types.clone(), batch.windows)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                layers = self._forward(static)
        except RuntimeError as error:
            # Some architectures look at values on their way; they run as they are.
            logger.info("the encoder's forward pass cannot be captured (%s)", str(error).splitlines()[0])
            layers = None
        self._possible = layers is not None and all(layer.is_contiguous() for layer in layers)
        if layers is None or not self._possible:
            return False
        self._graphs[tuple(batch.ids.shape)] = graph, static, tuple(_alias(layer) for layer in layers)
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
