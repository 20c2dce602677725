"""Policies: what of an encoder trains.

    full             everything, embeddings and pooler included
    none             nothing
    layers           everything but the embeddings (tables and norm) and the pooler
    top-K            the top K layers and every LayerNorm; top-0 is the LayerNorms alone, all layers are `full`
    cut-K            the top K layers and a norm above them; no gradient goes below them
    houlsby-M        adapters of size M in every layer (houlsby.py) and every LayerNorm
    houlsby-M+top-K  both; and houlsby-M+full
    lora-R           matrices of rank R beside every linear module of the layers (lora.py), nothing else
    bitfit           every bias, nothing else

The head trains under all of them, and the pooler, which no state comes from, under `full` alone.
"""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, get_args

from torch import nn

from bertvision.encoder.houlsby import adapters_of, hosts_of, insert_adapters
from bertvision.encoder.lora import check_peft, inject_lora, lora_parameters
from bertvision.encoder.stack import (
    embeddings_of,
    final_norm_of,
    layers_of,
    norms_of,
    pooler_of,
    shares_layers,
)
from bertvision.errors import ConfigError

__all__ = [
    "Policy",
    "apply_policy",
    "check_policy",
    "check_unadapted",
    "count_trainable",
    "counts_text",
    "parse_policy",
    "short_count",
]

Rule = Literal["full", "none", "layers", "top", "cut", "lora", "bitfit"]
_NUMBERED = ("top", "cut", "lora")
_WIDEST = 64
"""Adapters beyond so many times the hidden size are a typing error that would fill the memory."""
_LEAST = {"top": 0, "cut": 1, "lora": 1}
_WAYS = "full, none, layers, top-K, cut-K, houlsby-M, houlsby-M+top-K, houlsby-M+full, lora-R or bitfit"


@dataclass(frozen=True)
class Policy:
    """What of an encoder trains; `str` gives the text that `parse_policy` reads."""

    rule: Rule
    """What of the encoder's own weights."""
    number: int = 0
    """Layers of `top` and `cut`, rank of `lora`; 0 for the other rules."""
    adapter: int | None = None
    """Size of the Houlsby adapters; None for no adapters."""

    def __post_init__(self) -> None:
        if self.rule not in get_args(Rule):
            raise ConfigError(f"--policy {self.rule} is not known: use {_WAYS}")
        least = _LEAST.get(self.rule, self.number)
        if self.number < least:
            what = "rank" if self.rule == "lora" else "number of layers"
            raise ConfigError(f"--policy {self}: the {what} must be at least {least}, not {self.number}")
        if self.adapter is not None and self.adapter < 1:
            raise ConfigError(f"--policy {self}: the adapter size must be at least 1, not {self.adapter}")
        if self.adapter is not None and self.rule not in ("top", "full"):
            raise ConfigError(f"--policy {self}: houlsby-M goes together with top-K and full alone")

    def __str__(self) -> str:
        own = f"{self.rule}-{self.number}" if self.rule in _NUMBERED else self.rule
        if self.adapter is None:
            return own
        return f"houlsby-{self.adapter}" if own == "top-0" else f"houlsby-{self.adapter}+{own}"

    @property
    def saves_delta(self) -> bool:
        """Whether what trains is kept apart from the encoder it was trained on."""
        return self.adapter is not None or self.rule in ("lora", "bitfit")


def parse_policy(text: str) -> Policy:
    """`top-6` and the like; a ConfigError says what is wrong with any other text."""
    words = text.strip().lower()
    if words.startswith("houlsby"):
        first, plus, rest = words.partition("+")
        own = parse_policy(rest) if plus else Policy("top", 0)
        if own.adapter is not None:
            raise ConfigError(f"--policy {words}: houlsby-M goes together with top-K and full alone")
        return Policy(own.rule, own.number, adapter=_number(first, "houlsby", text))
    for rule in _NUMBERED:
        if re.fullmatch(rf"{rule}(-.*)?", words):
            return Policy(rule, _number(words, rule, text))
    for rule in get_args(Rule):
        if words == rule:
            return Policy(rule)
    known = [*get_args(Rule), "houlsby"]
    close = difflib.get_close_matches(re.split(r"[-+_\d]", words)[0], known, n=1)
    hint = f"did you mean {close[0]}{_letter(close[0])}?" if close else f"use {_WAYS}"
    raise ConfigError(f"--policy {text} is not known: {hint}")


def _letter(rule: str) -> str:
    return {"top": "-K", "cut": "-K", "lora": "-R", "houlsby": "-M"}.get(rule, "")


def _number(word: str, rule: str, text: str) -> int:
    found = re.fullmatch(rf"{rule}-(-?\d{{1,9}})", word)
    if not found:
        example = {"top": 6, "cut": 6, "lora": 16, "houlsby": 64}[rule]
        raise ConfigError(f"--policy {text}: {rule} needs a whole number, such as {rule}-{example}")
    return int(found[1])


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


def check_policy(model: Any, policy: Policy, *, name: str) -> None:
    """Refuse, before anything is changed, what this model (or this installation) cannot do."""
    hidden = model.config.hidden_size
    if policy.rule == "lora":
        check_peft(policy.number)
        if policy.number > hidden:
            raise ConfigError(
                f"--policy {policy}: the states of {name} have {hidden} numbers, so R is at most {hidden}"
            )
    if adapters_of(model):
        check_unadapted(policy, name=name)
    if policy.adapter is not None:
        hosts_of(model)
        if policy.adapter > _WIDEST * hidden:
            raise ConfigError(
                f"--policy {policy}: M is at most {_WIDEST} times the {hidden} numbers of the states of {name}"
            )
    if policy.rule == "bitfit" and not _biases(model):
        raise ConfigError(f"--policy bitfit: {name} has no biases; use top-0, houlsby-64 or lora-16")
    if policy.rule not in ("top", "cut") or policy.number == 0:
        return
    layers = len(layers_of(model))
    if policy.number > layers:
        raise ConfigError(
            f"--policy {policy}: {name} has {layers} layers, so K of {policy.rule}-K is at most {layers}"
        )
    if shares_layers(model) and not (policy.rule == "top" and policy.number == layers):
        raise ConfigError(
            f"--policy {policy}: the layers of {name} share their weights, so they train together or not at all; "
            "use full, layers, top-0, houlsby-M, lora-R, bitfit or none"
        )


def check_unadapted(policy: Policy, *, name: str) -> None:
    """Refuse what an encoder with adapters cannot have once more."""
    if policy.adapter is not None or policy.rule == "lora":
        raise ConfigError(
            f"--policy {policy}: {name} has adapters already; tune the encoder it was made from"
        )


def _trained(model: Any, policy: Policy) -> Iterable[nn.Parameter]:
    whole = policy.rule == "top" and policy.number > 0 and policy.number == len(layers_of(model))
    if policy.rule == "full" or whole:
        return model.parameters()
    if policy.rule == "none":
        return ()
    if policy.rule == "lora":
        return lora_parameters(model)
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
        parts += norms_of(model)
        if policy.adapter is not None:
            parts += adapters_of(model).values()
    return chain.from_iterable(part.parameters() for part in parts)


def _biases(model: nn.Module) -> list[nn.Parameter]:
    # DeBERTa keeps the biases of query and value beside the linear module: `q_bias`, `v_bias`.
    pooled = pooler_of(model)
    apart = {id(p) for p in pooled.parameters()} if pooled is not None else set()
    named = model.named_parameters()
    return [p for name, p in named if re.search(r"(^|[._])bias$", name) and id(p) not in apart]


def count_trainable(modules: Iterable[nn.Module]) -> tuple[int, int]:
    """Parameters that train, and all; one that several modules hold counts once."""
    found = {id(p): p for module in modules for p in module.parameters()}.values()
    return sum(p.numel() for p in found if p.requires_grad), sum(p.numel() for p in found)


def counts_text(trainable: int, total: int) -> str:
    """`trainable 2.42 M of 110.7 M (2.2 %)`."""
    share = 100 * trainable / max(total, 1)
    percent = f"{share:.0f}" if share >= 9.95 else f"{share:.2g}"
    return f"trainable {short_count(trainable)} of {short_count(total)} ({percent} %)"


def short_count(count: int) -> str:
    """`2.42 M`."""
    for letter, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size * 0.9995:
            value = count / size
            return f"{value:.{2 if value < 9.995 else 1}f} {letter}"
    return str(count)
