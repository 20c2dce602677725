"""What a head costs: parameters, floating-point operations and memory.

All are counted by running the head on the meta device, which computes shapes and no numbers: every head, a user's own
too, is counted by the same rule. Operations are those of matrix products and convolutions, two per multiply-add.
Memory is what the backward pass keeps of the forward pass, the states themselves excluded.
"""

import contextlib
import functools
import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from bertvision.heads.base import Geometry, Head, StateBatch, bare_batch, head_class
from bertvision.heads.layers import BYTES_DRAWN, Dropout
from bertvision.heads.spec import HeadSpec

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class HeadCost:
    parameters: int
    """Trainable."""
    total: int
    """With running means and variances."""
    flops_per_token: int | None
    """Forward pass of one token; None where a head reads values, which the meta device does not have."""

    def percent_of(self, encoder_parameters: int) -> float:
        return 100 * self.parameters / encoder_parameters


def cost(head: Head | HeadSpec, geometry: Geometry, *, tokens: int = 384) -> HeadCost:
    """Parameters and FLOPs of a head for a window of `tokens` tokens, without allocating memory."""
    module, batch = _on_meta(head, geometry, tokens)
    flops = None
    with contextlib.suppress(RuntimeError, NotImplementedError):
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            module.eval()(batch)
        flops = counter.get_total_flops() // tokens
    return HeadCost(module.num_parameters, module.num_total, flops)


def activation_bytes(head: Head | HeadSpec, geometry: Geometry, *, tokens: int) -> int:
    """Bytes kept for the backward pass of one window of `tokens` tokens in float32, states excluded.

    Includes what the largest dropout needs while it draws, and the scores of pairs of tokens that the loss keeps.
    """
    module, batch = _on_meta(head, geometry, tokens)
    own = {id(t.untyped_storage()) for t in (batch.states, *module.parameters())}
    kept: dict[int, tuple[Any, int]] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if id(storage) not in own:
            kept[id(storage)] = (storage, storage.nbytes())  # held, so that no id is given twice
        return tensor

    drawn = [0]
    for layer in (m for m in module.modules() if isinstance(m, Dropout) and m.active):
        layer.register_forward_hook(lambda _, inputs, __: drawn.append(inputs[0].numel() * BYTES_DRAWN))
    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with torch.device("meta"), torch.enable_grad(), hooks:
        logits = module.train()(batch)
    # A head that scores pairs gives factors beside its two logits (tasks/span_loss.py).
    pairs = 12 * tokens**2 if logits.shape[-1] > geometry.outputs else 0  # scores, softmax and its gradient
    return sum(size for _, size in kept.values()) + max(drawn) + pairs


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
    # Few different lengths, because each is measured once.
    rounded = -(-tokens // 32) * 32
    window = _window_bytes(head.name, head.config, head.geometry, rounded) * tokens / rounded
    return int(budget_gb * 1e9 / window)
