"""Apply a policy (policy.py) to a model: insert what it inserts, freeze all else, count what trains."""

import re
from collections.abc import Iterable
from itertools import chain
from typing import Any

from torch import nn

from bertvision.encoder.houlsby import adapters_of, hosts_of, insert_adapters
from bertvision.encoder.lora import check_peft, inject_lora
from bertvision.encoder.policy import Policy
from bertvision.encoder.stack import embeddings_of, final_norm_of, layers_of, norms_of, pooler_of
from bertvision.errors import ConfigError

_WIDEST = 64
"""Adapters more than this many times as wide as the hidden size are a typing error that would fill the memory."""


def apply_policy(model: Any, policy: Policy, *, seed: int, name: str) -> None:
    """Insert what the policy inserts and let nothing but its parameters train; `name` is for messages."""
    check_policy(model, policy, name=name)
    if policy.rule == "lora":
        inject_lora(model, policy.number, seed=seed)
    if policy.adapter is not None:
        insert_adapters(model, policy.adapter, seed=seed)
    model.requires_grad_(False)
    for parameter in _trained(model, policy):
        parameter.requires_grad_(True)


def check_policy(model: Any, policy: Policy, *, name: str, adapted: bool = False) -> None:
    """Refuse, before anything is changed, what this model or this installation cannot do.

    `adapted` says that the encoder has adapters which `model`, made from the settings alone, has not.
    """
    hidden, refused = model.config.hidden_size, f"--policy {policy}: {name}"
    if policy.rule == "lora":
        check_peft(policy.number)
        if policy.number > hidden:
            raise ConfigError(f"{refused} has states of {hidden} numbers, so R is at most {hidden}")
    if (adapted or adapters_of(model)) and (policy.adapter is not None or policy.rule == "lora"):
        raise ConfigError(f"{refused} has adapters already; tune the encoder it was made from")
    if policy.adapter is not None:
        hosts_of(model)
        if policy.adapter > _WIDEST * hidden:
            raise ConfigError(
                f"{refused} has states of {hidden} numbers, and M is at most {_WIDEST} times the {hidden} numbers"
            )
    if policy.rule == "bitfit" and not _biases(model):
        raise ConfigError(f"{refused} has no biases; use top-0, houlsby-64 or lora-16")
    if policy.rule not in ("top", "cut") or policy.number == 0:
        return
    layers = layers_of(model)
    if policy.number > len(layers):
        raise ConfigError(
            f"{refused} has {len(layers)} layers, so K of {policy.rule}-K is at most {len(layers)}"
        )
    shared = len({id(layer) for layer in layers}) < len(layers)
    if shared and not (policy.rule == "top" and policy.number == len(layers)):
        raise ConfigError(
            f"{refused} has layers that share their weights, so they train together or not at all; "
            "use full, layers, top-0, houlsby-M, lora-R, bitfit or none"
        )


def _trained(model: Any, policy: Policy) -> Iterable[nn.Parameter]:
    whole = policy.rule == "top" and policy.number > 0 and policy.number == len(layers_of(model))
    if policy.rule == "full" or whole:
        return model.parameters()
    if policy.rule == "none":
        return ()
    if policy.rule == "lora":
        return [p for name, p in model.named_parameters() if ".lora_" in name]
    if policy.rule == "bitfit":
        return _biases(model)
    if policy.rule == "layers":
        kept = {id(p) for part in (embeddings_of(model), pooler_of(model)) if part for p in part.parameters()}
        return [p for p in model.parameters() if id(p) not in kept]
    parts: list[nn.Module] = layers_of(model)[-policy.number :] if policy.number else []
    if policy.rule == "cut":
        last = final_norm_of(model)
        parts += [last] if last is not None else []
    else:
        parts += [*norms_of(model), *(adapters_of(model).values() if policy.adapter is not None else ())]
    return chain.from_iterable(part.parameters() for part in parts)


def _biases(model: nn.Module) -> list[nn.Parameter]:
    # DeBERTa keeps the biases of query and value beside the linear module: `q_bias`, `v_bias`.
    pooler = pooler_of(model)
    apart = {id(p) for p in pooler.parameters()} if pooler is not None else set()
    named = model.named_parameters()
    return [p for name, p in named if re.search(r"(^|[._])bias$", name) and id(p) not in apart]


def count_trainable(modules: Iterable[nn.Module]) -> tuple[int, int]:
    """Parameters that train, and all of them; one that several modules hold counts once."""
    found = {id(p): p for module in modules for p in module.parameters()}.values()
    return sum(p.numel() for p in found if p.requires_grad), sum(p.numel() for p in found)
