"""An encoder that no device holds whole: every rank keeps a part of each parameter (FSDP).

A layer's parameters are brought together when it is computed and given up again, so a device holds its share of
weights, gradients and moments, and one layer besides. What is frozen is shared out as well. Gradients arrive as the
sum over ranks (FSDP itself would give the mean), so that a loss divided by the whole batch means the same here as in
train/parallel.py. Every rank must call the model, `gathered` and `clip_` the same number of times.
"""

import os
import warnings
from collections.abc import Iterable, Mapping

import torch
import torch.distributed as distributed
from torch import Tensor, nn

from bertvision.train.parallel import Parallel


def wants_sharding() -> bool:
    """Whether `accelerate launch --use_fsdp` started this process."""
    return os.environ.get("ACCELERATE_USE_FSDP", "").lower() in ("1", "true", "yes")


def is_sharded(tensor: Tensor) -> bool:
    """Whether this is one rank's part of a tensor."""
    # Not by class: its module takes a while to import, and one process never needs it.
    return hasattr(tensor, "full_tensor")


def shard(
    model: nn.Module,
    layers: Iterable[nn.Module],
    parallel: Parallel,
    device: torch.device,
    *,
    dtype: torch.dtype | None = None,
) -> None:
    """Share out each layer, then the rest of `model`, in place; with `dtype` layers are computed in it.

    Every rank must hold the same weights. Optimisers are made afterwards: the parameters are new ones. One group of
    an optimiser holds either shared-out parameters or others, so a small head is best shared out as well.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    # Nobody here changes a model's output in place.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
    mesh = init_device_mesh(device.type, (parallel.world,))
    # Weights travel and are used in `dtype`; sums of gradients, like the weights themselves, stay in float32.
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    different = {id(layer): layer for layer in layers}.values()  # ALBERT's are one and the same
    for module in (*different, model):
        kind = type(module)
        fully_shard(module, mesh=mesh, mp_policy=policy)
        assert isinstance(module, FSDPModule)
        # It is of a class of FSDP's now. transformers finds what to record of a model (its hidden states) by the
        # name of its class, and writes that name into config.json.
        for name in ("__module__", "__qualname__", "__name__"):
            setattr(type(module), name, getattr(kind, name))
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # gloo has no mean


def whole(tensor: Tensor) -> Tensor:
    """The tensor of all ranks' parts; one that is not shared out comes back as it is."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # pyright: ignore[reportAttributeAccessIssue]


def gathered(module: nn.Module) -> dict[str, Tensor]:
    """The whole state of a module on the CPU, tensor after tensor; every rank calls it and rank 0 alone keeps it."""
    return gathered_tensors(module.state_dict())


def gathered_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same for tensors by name."""
    keep = not distributed.is_initialized() or distributed.get_rank() == 0
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        complete = whole(tensor.detach())
        found[name] = complete.cpu() if keep else torch.empty(0)
    return found if keep else {}


def split_like(value: Tensor, like: Tensor) -> Tensor:
    """This rank's part of a whole tensor, cut as `like` is; every rank has the whole, so nothing travels."""
    if not is_sharded(like):
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    place = value.to(like.device)
    return distribute_tensor(place, like.device_mesh, like.placements, src_data_rank=None)


def clip_(parameters: Iterable[nn.Parameter], most: float) -> Tensor:
    """Scale all gradients down to a common norm of at most `most`; returns the norm before.

    Parameters that are split over ranks and parameters that every rank has may be mixed.
    """
    given = [p for p in parameters if p.grad is not None]
    kinds = [own for split in (True, False) if (own := [p for p in given if is_sharded(p) == split])]
    norms = [whole(nn.utils.get_total_norm([p.grad for p in own if p.grad is not None])) for own in kinds]
    norm = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms or [torch.zeros(())]))
    for own in kinds:
        nn.utils.clip_grads_with_norm_(own, most, norm)
    return norm
