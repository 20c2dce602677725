"""Policies: what of an encoder trains, as a text such as `top-6`.

    full             everything, embeddings and pooler included
    none             nothing
    layers           everything but the embeddings (tables and norm) and the pooler
    top-K            the top K layers and every LayerNorm; top-0 is the LayerNorms alone, all layers are `full`
    cut-K            the top K layers and a norm above them; no gradient goes below them
    houlsby-M        adapters of size M in every layer and every LayerNorm
    houlsby-M+top-K  both; and houlsby-M+full
    lora-R           matrices of rank R beside every linear module of the layers, nothing else
    bitfit           every bias, nothing else

The head trains under all of them; the pooler, which no state comes from, trains under `full` alone. `freeze.py`
applies a policy to a model. This module does not import torch.
"""

import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

from bertvision.errors import ConfigError, nearest

Rule = Literal["full", "none", "layers", "top", "cut", "lora", "bitfit"]
_LEAST = {"top": 0, "cut": 1, "lora": 1}
"""The rules that have a number, and the least it can be."""
_FORMS = ("full", "none", "layers", "top-K", "cut-K", "houlsby-M", "houlsby-M+top-K", "houlsby-M+full", "lora-R",
          "bitfit")  # fmt: skip


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
        least = _LEAST.get(self.rule, self.number)
        if self.number < least:
            what = "rank" if self.rule == "lora" else "number of layers"
            raise ConfigError(f"--policy {self}: the {what} must be at least {least}, not {self.number}")
        if self.adapter is not None and self.adapter < 1:
            raise ConfigError(f"--policy {self}: the adapter size must be at least 1, not {self.adapter}")
        if self.adapter is not None and self.rule not in ("top", "full"):
            raise ConfigError(f"--policy {self}: houlsby-M goes together with top-K and full alone")

    def __str__(self) -> str:
        own = f"{self.rule}-{self.number}" if self.rule in _LEAST else self.rule
        if self.adapter is None:
            return own
        return f"houlsby-{self.adapter}" if own == "top-0" else f"houlsby-{self.adapter}+{own}"

    @property
    def saves_delta(self) -> bool:
        """Whether what trains is saved apart from the encoder it was trained on."""
        return self.adapter is not None or self.rule in ("lora", "bitfit")


def parse_policy(text: str) -> Policy:
    words = text.strip().lower()
    adapter, _, own = words.rpartition("+") if "+" in words else (words, "", "top-0")
    size = re.fullmatch(r"houlsby-(-?\d{1,9})", adapter)
    found = re.fullmatch(r"([a-z]+)(?:-(-?\d{1,9}))?", own if size else words)
    rule: Any = found[1] if found else ""
    if found and rule in get_args(Rule) and (found[2] is not None) == (rule in _LEAST):
        return Policy(rule, int(found[2] or 0), adapter=int(size[1]) if size else None)
    raise ConfigError(f"--policy {text} is not known: {nearest(words, _FORMS)}")


def counts_text(trainable: int, total: int) -> str:
    share = 100 * trainable / max(total, 1)
    percent = f"{share:.0f}" if share >= 9.95 else f"{share:.2g}"
    return f"trainable {short_count(trainable)} of {short_count(total)} ({percent} %)"


def short_count(count: int) -> str:
    for letter, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size * 0.9995:
            value = count / size
            return f"{value:.{2 if value < 9.995 else 1}f} {letter}"
    return str(count)
